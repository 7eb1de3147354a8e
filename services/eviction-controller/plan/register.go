package plan

import (
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

// MachineOf is the annotation of a node that names its machine as "namespace/name".
const MachineOf = "machine.openshift.io/machine"

// agentLabels are the labels that an agent may set on its node. Roles, zones and other labels are set by users and
// services.
func agentLabels() []string {
	return []string{
		"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os", nodeid.FilesLabel, placement.PodAddressLabel,
	}
}

// ForeignLabels returns the labels of a registration that an agent may not set, in order.
func ForeignLabels(r *nodev1.RegisterNodeRequest) []string {
	var out []string
	for k := range r.GetLabels() {
		if !slices.Contains(agentLabels(), k) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Role labels of a machine: its value for control-plane machines.
const (
	machineRoleLabel = "machine.openshift.io/cluster-api-machine-role"
	master           = "master"
	worker           = "worker"
)

// RegistrationFault returns why an agent whose certificate is for the machine with that uid may not register a node;
// empty if it may. m is the machine that machine-api has under the node's name, nil if there is none.
func RegistrationFault(uid string, m *machinev1.Machine) string {
	switch {
	case m.GetMetadata().GetUid() != uid:
		return fmt.Sprintf("the agent's certificate is for the machine with uid %s, which does not exist", uid)
	case m.GetMetadata().GetDeletionTimestamp() != nil:
		return "its machine is being deleted"
	}
	return ""
}

// Registered returns a node after its agent's registration. old is nil for a new node; m is nil if the node is already
// linked to the agent's machine. What the agent may not set (machine and instance, other labels, taints, the cordon,
// readiness) comes from the machine or does not change. A new node accepts no pods until machine-api has linked it to
// its machine.
func Registered(old *nodev1.Node, r *nodev1.RegisterNodeRequest, m *machinev1.Machine, now time.Time) *nodev1.Node {
	node := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: r.GetName()}}
	if old != nil {
		node = proto.Clone(old).(*nodev1.Node)
	}
	node.Spec = ensured(node.Spec)
	if old == nil {
		node.Spec.Taints = []*nodev1.Taint{
			{Key: UninitializedTaint, Value: proto.String("true"), Effect: placement.NoSchedule},
		}
	}
	if m != nil {
		role := worker
		if m.GetMetadata().GetLabels()[machineRoleLabel] == master {
			role = master
		}
		node.Spec.ProviderId = m.GetSpec().GetProviderId()
		setAnnotation(node, nodeid.MachineUID, m.GetMetadata().GetUid(), true)
		setAnnotation(node, nodeid.MachineRole, role, true)
		setAnnotation(node, MachineOf, m.GetMetadata().GetNamespace()+"/"+m.GetMetadata().GetName(), true)
	}
	for _, k := range []string{nodeid.FilesLabel, placement.PodAddressLabel} { // as in this registration, or not at all
		delete(node.GetMetadata().GetLabels(), k)
	}
	for _, k := range agentLabels() {
		if v, ok := r.GetLabels()[k]; ok {
			if node.Metadata.Labels == nil {
				node.Metadata.Labels = map[string]string{}
			}
			node.Metadata.Labels[k] = v
		}
	}
	seen := proto.Clone(r.GetStatus()).(*nodev1.NodeStatus)
	if seen == nil {
		seen = &nodev1.NodeStatus{}
	}
	// The conditions of memory and disks are used before the first heartbeat, too.
	agent := Agent{Conditions: seen.GetConditions()}
	seen.Conditions,
		seen.Phase = conditions(NodeView{Now: now, Node: node, Reachability: Reachability{Agent: agent, Grace: 1}}),
		node.GetStatus().GetPhase()
	seen.Evictions = node.GetStatus().GetEvictions() // whatever the agent sends
	node.Status = seen
	return node
}
