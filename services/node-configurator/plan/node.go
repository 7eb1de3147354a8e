package plan

import (
	"fmt"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"google.golang.org/protobuf/proto"
)

// drained is the phase of a drain that has emptied its node.
const drained = "Succeeded"

// NodeView is everything that decides about one node that has a target.
type NodeView struct {
	Node    *nodev1.Node            // nil if it is gone
	Drain   *nodev1.Drain           // for its configuration; nil if there is none
	Current *configv1.MachineConfig // what stands on it; nil if it is not known
	Desired *configv1.MachineConfig // what shall stand there; nil if it is not known
}

// NodeStep is what is done for a node now. The zero NodeStep does nothing.
type NodeStep struct {
	CreateDrain string // why the node has to be empty; empty to create no drain
	DeleteDrain bool
	Order       Order
}

// Order is what the agent of a node is told.
type Order struct {
	Config *configv1.MachineConfig // nil while none is known for the node
	Apply  bool                    // take it up now
	Reboot bool                    // and restart the machine afterwards
}

func mark(n *nodev1.Node, key string) string { return n.GetMetadata().GetAnnotations()[key] }

// done reports whether a node has what it shall have.
func done(n *nodev1.Node) bool {
	desired := mark(n, DesiredConfig)
	return desired != "" && mark(n, CurrentConfig) == desired && mark(n, State) == stateDone
}

// rolling reports whether a node was told to change and has not done so yet.
func rolling(n *nodev1.Node) bool {
	current, desired := mark(n, CurrentConfig), mark(n, DesiredConfig)
	return desired != "" && !done(n) && !(current == desired && failed(n))
}

// failed reports whether the agent of a node has given up for now.
func failed(n *nodev1.Node) bool {
	s := mark(n, State)
	return s == degraded || s == unreconcilable
}

// stuck reports whether a node could not take up what it shall have.
func stuck(n *nodev1.Node) bool {
	return failed(n) && mark(n, CurrentConfig) != mark(n, DesiredConfig)
}

func condition(n *nodev1.Node, typ string) string {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == typ {
			return c.GetStatus()
		}
	}
	return ""
}

// up reports whether a node takes part, whether or not something may be placed on it.
func up(n *nodev1.Node) bool { return condition(n, "Ready") == "True" }

// ready reports whether a node takes part and can be given work. Source: MCO.
func ready(n *nodev1.Node) bool {
	return up(n) && condition(n, "DiskPressure") != "True" && condition(n, "NetworkUnavailable") != "True" &&
		!n.GetSpec().GetUnschedulable()
}

// unavailable reports whether a node counts against maxUnavailable. Source: MCO.
func unavailable(n *nodev1.Node) bool {
	return !ready(n) || (!done(n) && !stuck(n))
}

// need returns what taking up its target means for a node, and why.
func need(v NodeView) (Action, string) {
	current, desired := mark(v.Node, CurrentConfig), mark(v.Node, DesiredConfig)
	switch {
	case current == "" || current == desired || v.Desired == nil:
		return None, "" // a first configuration disturbs nobody
	case v.Current == nil:
		return Reboot, fmt.Sprintf("what %s held is not known any more", current)
	}
	return Needed(Diff(v.Current, v.Desired))
}

// Node decides what is done for a node now. Whatever it decides follows from the marks on the node and its drain alone,
// so it may be decided anew at any moment.
func Node(v NodeView) NodeStep {
	if v.Node == nil {
		return NodeStep{DeleteDrain: v.Drain != nil && !ending(v.Drain)}
	}
	action, why := need(v)
	s := NodeStep{Order: Order{Config: v.Desired, Apply: true, Reboot: action == Reboot}}
	if v.Desired == nil {
		s.Order = Order{}
	}
	finished := mark(v.Node, DesiredConfig) == "" || done(v.Node)
	switch {
	case v.Drain != nil && finished && up(v.Node):
		s.DeleteDrain = !ending(v.Drain)
	case action.Drains():
		s.Order.Apply = emptied(v)
		if v.Drain == nil {
			s.CreateDrain = fmt.Sprintf("configuration %s: %s", mark(v.Node, DesiredConfig), why)
		}
	}
	return s
}

// ControlPlane reports whether a node is of a control-plane machine or has the role of one, so that a voter of the etcd
// cluster may be on it.
func ControlPlane(n *nodev1.Node) bool {
	if n.GetMetadata().GetAnnotations()[nodeid.MachineRole] == masterPool {
		return true // whatever its labels
	}
	labels := n.GetMetadata().GetLabels()
	_, master := labels["node-role.kubernetes.io/master"]
	_, control := labels["node-role.kubernetes.io/control-plane"]
	return master || control
}

// emptied reports whether a node is empty and stays so. Node and drain come from two copies, of which one may be
// behind: a drain that is gone already holds its node no longer, and a node that is held is unschedulable.
func emptied(v NodeView) bool {
	return Emptied(v.Drain) && v.Drain.GetSpec().GetNodeName() == v.Node.GetMetadata().GetName() &&
		v.Node.GetSpec().GetUnschedulable()
}

// Emptied reports whether a drain has emptied its node and still holds it.
func Emptied(d *nodev1.Drain) bool { return d.GetStatus().GetPhase() == drained && !ending(d) }

func ending(d *nodev1.Drain) bool { return d.GetMetadata().GetDeletionTimestamp() != nil }

// DrainOf returns the drain that empties a node.
func DrainOf(node, reason string) *nodev1.Drain {
	return &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: DrainName(node)}, Spec: &nodev1.DrainSpec{
		NodeName: node, Reason: reason,
		IgnoreDaemonSets: proto.Bool(true), Force: proto.Bool(true), DeleteEmptyDirData: proto.Bool(true),
	}}
}

// Marks are annotations to set; an empty value takes one away.
type Marks map[string]string

// Target returns the marks that give a node a new target. What became of the former one counts no more.
func Target(config string) Marks {
	return Marks{DesiredConfig: config, State: working, Reason: ""}
}

// Reported returns the marks that a report of a node's agent changes; none if it says nothing new. A failure to reach a
// target that was taken back meanwhile is not noted, and neither is an end in the very boot that the agent wanted to
// end.
func Reported(node *nodev1.Node, r *configv1.ReportConfigRequest) Marks {
	want := Marks{CurrentConfig: r.GetCurrentConfig(), State: r.GetState(), Reason: r.GetReason(), EndingBoot: ""}
	failure := r.GetState() == degraded || r.GetState() == unreconcilable
	switch {
	case failure && r.GetDesiredConfig() != "" && r.GetDesiredConfig() != mark(node, DesiredConfig):
		want[State], want[Reason] = working, ""
	case r.GetState() == rebooting:
		want[EndingBoot] = r.GetBootId()
	case r.GetState() == stateDone && r.GetBootId() != "" && r.GetBootId() == mark(node, EndingBoot):
		want = Marks{State: rebooting, Reason: "the machine has not been restarted yet"}
	}
	out := Marks{}
	for k, v := range want {
		if mark(node, k) != v {
			out[k] = v
		}
	}
	return out
}
