package plan

import (
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

// MachineOf is the annotation of a node that names its machine as "namespace/name".
const MachineOf = "machine.openshift.io/machine"

// AgentLabels are the labels that an agent may set on its node. Roles, zones and the like are others' to say.
func AgentLabels() []string {
	return []string{"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os"}
}

// ForeignLabels returns the labels of a registration that are not the agent's to set, in order.
func ForeignLabels(r *nodev1.RegisterNodeRequest) []string {
	var out []string
	for k := range r.GetLabels() {
		if !slices.Contains(AgentLabels(), k) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Registered returns a node as its agent's registration makes it; old is nil for a new one. What is not the agent's to say (other
// labels, taints, the cordon, whether it is ready) stays as it is. A new node of a machine takes no pods until it is linked to it.
func Registered(old *nodev1.Node, r *nodev1.RegisterNodeRequest, now time.Time) *nodev1.Node {
	node := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: r.GetName()}}
	if old != nil {
		node = proto.Clone(old).(*nodev1.Node)
	}
	node.Spec = ensured(node.Spec)
	if old == nil && r.GetMachine().GetName() != "" {
		node.Spec.Taints = []*nodev1.Taint{{Key: UninitializedTaint, Value: proto.String("true"), Effect: placement.NoSchedule}}
	}
	if r.GetProviderId() != "" {
		node.Spec.ProviderId = r.GetProviderId()
	}
	for _, k := range AgentLabels() {
		if v, ok := r.GetLabels()[k]; ok {
			if node.Metadata.Labels == nil {
				node.Metadata.Labels = map[string]string{}
			}
			node.Metadata.Labels[k] = v
		}
	}
	if m := r.GetMachine(); m.GetName() != "" {
		setAnnotation(node, MachineOf, m.GetNamespace()+"/"+m.GetName(), true)
	}
	seen := proto.Clone(r.GetStatus()).(*nodev1.NodeStatus)
	if seen == nil {
		seen = &nodev1.NodeStatus{}
	}
	// What it says of memory and disks counts before its first heartbeat, too.
	agent := Agent{Conditions: seen.GetConditions()}
	seen.Conditions, seen.Phase = conditions(NodeView{Now: now, Node: node, Agent: agent, Grace: 1}), node.GetStatus().GetPhase()
	node.Status = seen
	return node
}
