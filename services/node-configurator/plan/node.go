package plan

import (
	"fmt"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// drained is the phase of a drain that has emptied its node.
const drained = "Succeeded"

// NodeView is everything that decides about one node that has a target.
type NodeView struct {
	Node    *nodev1.Node            // nil if it is gone
	Drain   *nodev1.Drain           // for its configuration; nil if there is none
	Current *configv1.MachineConfig // its current configuration; nil if it is not known
	Desired *configv1.MachineConfig // its target; nil if it is not known

	Policy  *configv1.NodeDisruptionPolicy // the policies in force
	Repairs []*configv1.PathRepair         // what is put back if others change it, while the node has its target
	Window  maintenance.State              // whether a node of its pool may begin to change
	Repair  time.Time                      // when a pause ends that keeps it from being put back; zero for none
}

func mark(n *nodev1.Node, key string) string { return n.GetMetadata().GetAnnotations()[key] }

// done reports whether a node has its target.
func done(n *nodev1.Node) bool {
	desired := mark(n, DesiredConfig)
	return desired != "" && mark(n, CurrentConfig) == desired && mark(n, State) == stateDone
}

// rolling reports whether a node has a target that it has not reached yet.
func rolling(n *nodev1.Node) bool {
	current, desired := mark(n, CurrentConfig), mark(n, DesiredConfig)
	return desired != "" && !done(n) && !(current == desired && failed(n))
}

// changing reports whether a node has another configuration than its target. The way back to the one that a node has
// disturbs no pod, and neither does a first configuration without an operating system.
func changing(n *nodev1.Node) bool {
	current := mark(n, CurrentConfig)
	return rolling(n) && current != "" && current != mark(n, DesiredConfig)
}

// failed reports whether the agent of a node has given up for now.
func failed(n *nodev1.Node) bool {
	s := mark(n, State)
	return s == degraded || s == unreconcilable
}

// stuck reports whether a node could not apply its target.
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

// ready reports whether a node takes part and can be given work: it serves. Source: MCO. Pressure that is not known
// counts, and a condition that is missing does not.
func ready(n *nodev1.Node) bool {
	none := func(typ string) bool { s := condition(n, typ); return s == "" || s == "False" }
	return up(n) && none("DiskPressure") && none("NetworkUnavailable") && !n.GetSpec().GetUnschedulable()
}

// unavailable reports whether a node counts against maxUnavailable. Source: MCO.
func unavailable(n *nodev1.Node) bool {
	return !ready(n) || (!done(n) && !stuck(n))
}

// need returns what applying its target requires of a node, why, and what is done to its services.
func need(v NodeView) (Impact, string, []*configv1.ServiceAction) {
	current, desired := mark(v.Node, CurrentConfig), mark(v.Node, DesiredConfig)
	if current == desired || v.Desired == nil {
		return None, "", nil
	}
	return wayTo(v, current)
}

func wayTo(v NodeView, current string) (Impact, string, []*configv1.ServiceAction) {
	switch {
	case current == "" && !machineconfig.SystemOf(v.Desired).Equal(machineconfig.System{}):
		return Reboot, "the operating system of a first configuration", nil
	case current == "":
		return None, "", nil // a first configuration disturbs no pod
	case v.Current == nil:
		return Reboot, fmt.Sprintf("what %s held is not known any more", current), nil
	}
	changes := Diff(v.Current, v.Desired, v.Policy)
	impact, why := Needed(changes)
	return impact, why, Services(changes)
}

// Way returns what the way of a node to a configuration, which is v.Desired, requires of it, and of its services. Item
// is why. It is nil if the node has that configuration.
func Way(v NodeView) *Change {
	current := mark(v.Node, CurrentConfig)
	if v.Desired == nil || current == v.Desired.GetMetadata().GetName() {
		return nil
	}
	impact, why, services := wayTo(v, current)
	return &Change{Item: why, Action: impact, Services: services}
}

// Node decides about the drain of a node. The decision follows from the marks on the node and its drain alone, so it
// may be made again at any moment.
func Node(v NodeView) Plan {
	impact, why, _ := need(v)
	switch {
	case v.Drain != nil && over(v):
		if ending(v.Drain) {
			return Plan{}
		}
		return Plan{Do: []Action{{Verb: DeleteDrain, Object: object.Reference(v.Drain), Drain: v.Drain}}}
	case v.Drain != nil && v.Node != nil && !ending(v.Drain) && idle(v) && unstaged(v) != "":
		// Its target was replaced by one whose system is not there: until it is, the node serves.
		return Plan{
			Do:       []Action{{Verb: DeleteDrain, Object: object.Reference(v.Drain), Drain: v.Drain}},
			WaitsFor: unstaged(v),
		}
	case v.Node == nil || !impact.Drains():
		return Plan{}
	case v.Drain == nil:
		// Also one that is not ready: a heartbeat may be late, and a node that is cordoned runs its pods.
		if v.Window.Closed() {
			return Plan{WaitsFor: v.Window.Waits, Wake: v.Window.Wake}
		}
		if why := unreachable(v); why != "" {
			return Plan{WaitsFor: why}
		}
		if why := unstaged(v); why != "" {
			return Plan{WaitsFor: why}
		}
		d := drainOf(v.Node.GetMetadata().GetName(), fmt.Sprintf("configuration %s: %s", mark(v.Node, DesiredConfig), why))
		return Plan{
			Do: []Action{{Verb: CreateDrain, Object: object.Reference(d), Reason: d.GetSpec().GetReason(), Drain: d}},
		}
	}
	return Plan{WaitsFor: progress(v.Node, v.Drain)}
}

// restartsFor reports whether the machine of a node restarts for a configuration.
func restartsFor(n *nodev1.Node) bool {
	return mark(n, State) == rebooting || mark(n, EndingBoot) != ""
}

// unreachable says why a node that has the present configuration cannot be brought to its target; empty if it can, as
// far as is known. A node that came from another pool may be so although the other nodes of its pool are not.
func unreachable(v NodeView) string {
	if v.Current == nil {
		return "" // its agent knows
	}
	_, bad := machineconfig.Read(v.Current, v.Desired)
	if len(bad) == 0 {
		return ""
	}
	return mark(v.Node, DesiredConfig) + " cannot be put in force: " + bad[0].String()
}

// unstaged says that the agent of a node is not ready for its target: it has the operating system of that not yet ready
// to boot, or has not compared it with the files of its host, which may not admit it. Empty if it is ready, or need not
// be: a node is drained only for what it can have.
func unstaged(v NodeView) string {
	target := mark(v.Node, DesiredConfig)
	if v.Desired == nil || mark(v.Node, StagedConfig) == target {
		return ""
	}
	text := ""
	switch s := machineconfig.SystemOf(v.Desired); {
	case v.Node.GetMetadata().GetLabels()[nodeid.FilesLabel] != "" && mark(v.Node, CurrentConfig) != target:
		text = fmt.Sprintf("its agent to compare %s with the files of its host", target)
	case v.Current == nil && mark(v.Node, CurrentConfig) != "" || s.Equal(machineconfig.SystemOf(v.Current)):
		return ""
	default:
		text = fmt.Sprintf("its agent to have %s of %s ready to boot", s, target)
	}
	if reason := mark(v.Node, Reason); failed(v.Node) && reason != "" {
		text += ", which says: " + reason
	}
	return text
}

// over reports whether a node needs its drain no longer: it has its target and is back, or it is gone.
func over(v NodeView) bool {
	return v.Node == nil || (mark(v.Node, DesiredConfig) == "" || done(v.Node)) && up(v.Node)
}

// idle reports whether the agent of a node that has a drain neither applies a configuration nor restarts the machine
// for one: it was not ordered to yet, or says that it has failed on the present target.
func idle(v NodeView) bool {
	return (!Emptied(v.Drain) || failed(v.Node)) && !restartsFor(v.Node)
}

// order returns what the agent of a node is to be ordered, as far as that depends on the node and its drain.
func order(v NodeView) Order {
	if v.Desired == nil {
		return Order{}
	}
	impact, _, services := need(v)
	o := Order{
		Config: v.Desired, Reboot: impact == Reboot, Services: services, From: mark(v.Node, CurrentConfig),
		Apply: !impact.Drains() || v.Drain != nil && over(v) || emptied(v) && unstaged(v) == "",
	}
	if mark(v.Node, CurrentConfig) == mark(v.Node, DesiredConfig) && (done(v.Node) || failed(v.Node)) {
		o.Repairs = v.Repairs
	}
	return o
}

// controlPlane reports whether a node is of a control-plane machine or has the role of one, so that a voter of the etcd
// cluster may be on it.
func controlPlane(n *nodev1.Node) bool {
	if n.GetMetadata().GetAnnotations()[nodeid.MachineRole] == MasterPool {
		return true // whatever its labels
	}
	labels := n.GetMetadata().GetLabels()
	_, master := labels["node-role.kubernetes.io/master"]
	_, control := labels["node-role.kubernetes.io/control-plane"]
	_, arbiter := labels["node-role.kubernetes.io/arbiter"]
	return master || control || arbiter
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

// drainOf returns the drain that empties a node.
func drainOf(node, reason string) *nodev1.Drain {
	return &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: DrainName(node)}, Spec: &nodev1.DrainSpec{
		NodeName: node, Reason: reason,
		IgnoreDaemonSets: proto.Bool(true), Force: proto.Bool(true), DeleteEmptyDirData: proto.Bool(true),
	}}
}

// Marks are annotations to set; an empty value takes one away.
type Marks map[string]string

// Target returns the marks that give a node a new target. The result of the former one does not count any more.
func Target(config string) Marks {
	return Marks{DesiredConfig: config, State: working, Reason: ""}
}

// Reported returns the marks that a report of a node's agent changes; none if it says nothing new. A failure to reach a
// target that was taken back in the meantime is not noted, and neither is an end in the very boot that the agent wanted
// to end.
func Reported(node *nodev1.Node, r *configv1.ReportConfigRequest) Marks {
	want := Marks{
		CurrentConfig: r.GetCurrentConfig(), State: r.GetState(), Reason: r.GetReason(), EndingBoot: "",
		StagedConfig: r.GetStagedConfig(),
	}
	failure := r.GetState() == degraded || r.GetState() == unreconcilable
	if failure && r.GetCurrentConfig() == "" {
		delete(want, CurrentConfig) // its record is not readable, which does not mean that it never had one
	}
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
