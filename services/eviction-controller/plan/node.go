// Package plan decides about nodes and drains: whether a node is ready, which taints it has, what holds it
// unschedulable, which pods must leave it and when, and what a drain does next. It does no I/O and reads no clock: the
// same view always gives the same plan. Views are never modified.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Annotations of a node that only this service writes.
const (
	// CordonedBy holds the user whose cordon keeps a node unschedulable.
	CordonedBy = "windlass.dev/cordoned"
	// RebootOf holds the ID of the boot that is to end; it is removed once the node reports another boot ID.
	RebootOf = "windlass.dev/reboot"
)

// Ready is the type of the condition that reports whether a node can run pods.
const Ready = "Ready"

// TaintNode is the action that is held back while a node that is not ready gets no NoExecute taint.
const TaintNode = "TaintNode"

// Reasons of the Ready condition. Those for silence are Kubernetes' own, which tools depend on.
const (
	reasonReady        = "AgentReady"
	reasonNotReady     = "AgentNotReady"
	reasonUnknown      = "NodeStatusUnknown"
	reasonNeverUpdated = "NodeStatusNeverUpdated"
)

// Agent is the state of a node's agent.
type Agent struct {
	// Reported is whether a heartbeat was received since its silence counts.
	Reported bool
	// Silence is the time without a heartbeat, counting only time in which this service ran.
	Silence time.Duration
	// BootID, NotReady and Conditions are from its last heartbeat.
	BootID     string
	NotReady   string // why it is not ready; empty if it is
	Conditions []*nodev1.NodeCondition
}

// NodeView is everything that a decision about a node depends on.
type NodeView struct {
	Now    time.Time // UTC
	Node   *nodev1.Node
	Drains []*nodev1.Drain // those that name the node, in any order
	Reachability
	Turn  Turn                // the last one in the node's zone
	Pause time.Duration       // between two nodes of a zone whose pods are evicted for the silence of their agents
	Pods  []*schedulingv1.Pod // of the node, in any order
	Known bool                // false until the list of pods was received from the scheduler
	Clock Clock
}

// Node decides the state of a node: its conditions and taints, whether it is unschedulable, and whether a reboot has
// ended.
func Node(v NodeView) Plan {
	var p Plan
	disrupted := p.disruption(&v.Reachability)
	next := proto.Clone(v.Node).(*nodev1.Node)
	if next.Status == nil {
		next.Status = &nodev1.NodeStatus{}
	}
	next.Status.Conditions = conditions(v)
	correct(next, v.Now, v.Clock)
	held := len(HeldBy(v.Node, v.Drains)) > 0
	leave := p.leave(v, next, disrupted)
	setTaints(next, taints(next.GetSpec().GetTaints(), marksOf(next.Status.Conditions, leave, held), v.Now))
	setUnschedulable(next, held)
	switch {
	case !p.Wake.IsZero(): // its turn
	case v.Agent.Silence < v.Grace:
		p.Wake = v.Now.Add(v.Grace - v.Agent.Silence)
	case disrupted:
		p.Wake = v.Now.Add(v.Grace / 2) // a heartbeat of another node's agent does not trigger this node
	}
	p.zone(v)
	next.Status.Evictions = p.evictions(v, next, disrupted)
	Observe(next, v.Clock)
	p.reboot(v, next)
	p.storeNode(v.Node, next)
	return p
}

// zone adds a change of the state of the node's zone to the plan. It is decided with each node of the zone; the other
// nodes that are affected decide again.
func (p *Plan) zone(v NodeView) {
	if v.Given || v.Census.empty() {
		return
	}
	zone := Zone(v.Node)
	z := v.Census.health(zone)
	if z.state != cmp.Or(v.ZoneState, Normal) {
		p.Do = append(p.Do, Action{
			Verb: ChangeZone, Object: object.Reference(v.Node), Zone: zone, ZoneState: z.state,
			Reason: z.text(zone, v.Pause),
		})
	}
	if z.state != Normal && !v.Agent.Healthy(v.Grace) {
		p.wake(v.Now.Add(v.Grace / 2)) // a heartbeat of another node's agent does not trigger this node
	}
}

// evictions returns what the status of the node reports about evictions; nil for a ready node that no pod has to leave.
func (p *Plan) evictions(v NodeView, next *nodev1.Node, disrupted bool) *nodev1.NodeEvictions {
	ready := find(next.GetStatus().GetConditions(), Ready)
	out, had := &nodev1.NodeEvictions{}, v.Node.GetStatus().GetEvictions()
	stopped := disrupted
	if ready != nil && ready.GetStatus() != "True" {
		zone := Zone(v.Node)
		switch {
		case v.Given:
			return nil
		case !v.Census.empty():
			z := v.Census.health(zone)
			wait, slow := z.pace(v.Pause)
			stopped = stopped || slow
			out.Zone, out.ZoneState = zoneName(zone), z.state
			if !stopped && wait > 0 {
				out.NodesPerSecond = float64(time.Second) / float64(wait)
			}
			p.place(v, out, ready, accused(next), stopped, wait)
		case had != nil: // the state of the agents is not known yet
			out = proto.CloneOf(had)
		default:
			out.Zone, out.ZoneState = zoneName(zone), Normal
		}
	}
	switch {
	case !v.Known:
		out.NextDeadline = had.GetNextDeadline()
	case NoExecutes(next):
		e := EvictionView{Now: v.Now, Node: next, Pods: v.Pods}
		out.NextDeadline = object.Timestamp(nextDeadline(e, stopped))
		p.wake(nextDeadline(e, stopped))
	default:
		out.NextDeadline = nil
	}
	out.Observed = next.GetStatus().GetEvictions().GetObserved() // see Observe
	if !NoExecutes(next) {
		out.Observed = nil
	}
	if proto.Equal(out, &nodev1.NodeEvictions{}) {
		return nil
	}
	return out
}

// place sets the place of a node in the queue of its zone.
func (p *Plan) place(v NodeView, out *nodev1.NodeEvictions, ready *nodev1.NodeCondition, accused, stopped bool,
	wait time.Duration,
) {
	if accused {
		return
	}
	n, _ := v.Census.ahead(Zone(v.Node), v.Node.GetMetadata().GetName(), v.Turn.Node,
		ready.GetLastTransitionTime().AsTime())
	out.QueuePosition = int32(min(n+1, mostQueue))
	if stopped || n >= mostQueue {
		return
	}
	if at := v.Turn.At.Add(wait * time.Duration(n+1)); at.After(v.Now) {
		out.TurnTime = &timestamppb.Timestamp{Seconds: at.Unix()}
	}
}

// leave decides whether pods have to leave the node for the silence of its agent. What it holds back is held back since
// the node is not ready.
func (p *Plan) leave(v NodeView, next *nodev1.Node, disrupted bool) bool {
	ready := find(next.GetStatus().GetConditions(), Ready)
	hold := func(until time.Time, reason, unblock string) bool {
		p.wake(until)
		p.hold(&metav1.HeldBack{
			Action: TaintNode, Object: object.Reference(v.Node), Reason: reason, Unblock: unblock,
			SinceTime: ready.GetLastTransitionTime(),
		})
		return false
	}
	switch {
	case ready == nil || ready.GetStatus() == "True":
		return false
	case disrupted:
		return hold(time.Time{}, noHeartbeats+", so it is more likely that this service is disconnected",
			"an agent sends a heartbeat")
	case accused(v.Node):
		return true
	case !v.Agent.Settled(v.Grace) && !v.Given:
		return hold(time.Time{}, maySpeak, "")
	}
	zone, name := Zone(v.Node), v.Node.GetMetadata().GetName()
	wait, stopped := v.Census.health(zone).pace(v.Pause)
	n, first := v.Census.ahead(zone, name, v.Turn.Node, ready.GetLastTransitionTime().AsTime())
	switch until := v.Turn.At.Add(wait); {
	case stopped:
		return hold(v.Now.Add(v.Grace/2), mostLost, "more nodes of the zone are ready")
	case v.Turn.Node == name:
		return true
	case v.Turn.Node != "" && v.Now.Before(until):
		return hold(until, comesBefore(v.Turn.Node), "")
	case n > 0:
		return hold(v.Now.Add(comesFirst), comesBefore(first), "")
	}
	p.Do = append(p.Do, Action{
		Verb: TakeTurn, Object: object.Reference(v.Node), Zone: zone,
		Turn: Turn{Node: name, At: v.Now},
	})
	return true
}

// reboot ends a reboot once the node has restarted, and releases the disruption permit that was acquired for it unless
// a drain uses the permit.
func (p *Plan) reboot(v NodeView, next *nodev1.Node) {
	boot := v.Node.GetMetadata().GetAnnotations()[RebootOf]
	switch {
	case boot == "":
		return
	case boot == v.Node.GetStatus().GetNodeInfo().GetBootId():
		p.WaitsFor = "waits for the node to restart"
		return
	}
	delete(next.GetMetadata().GetAnnotations(), RebootOf)
	if ControlPlane(v.Node) && !slices.ContainsFunc(v.Drains, UsesPermit) {
		p.Do = append(p.Do, Action{
			Verb: ReleasePermit, Object: object.Reference(v.Node), Reason: "the reboot has ended",
			Machine: MachineOfNode(v.Node.GetMetadata().GetName()),
		})
	}
}

// HeldBy returns what holds a node unschedulable, for people: the user who cordoned it, and drains. Empty means none.
func HeldBy(node *nodev1.Node, drains []*nodev1.Drain) []string {
	var held []string
	if user, ok := node.GetMetadata().GetAnnotations()[CordonedBy]; ok {
		held = append(held, fmt.Sprintf("user %q", user))
	}
	var names []string
	for _, d := range drains {
		if holds(d) {
			names = append(names, fmt.Sprintf("drain %q", d.GetMetadata().GetName()))
		}
	}
	slices.Sort(names)
	return append(held, names...)
}

// ControlPlane reports whether a node belongs to a control-plane machine or has a control-plane role, so that an etcd
// member may run on it.
func ControlPlane(node *nodev1.Node) bool {
	if node.GetMetadata().GetAnnotations()[nodeid.MachineRole] == master {
		return true // whatever its labels
	}
	labels := node.GetMetadata().GetLabels()
	_, old := labels["node-role.kubernetes.io/master"]
	_, control := labels["node-role.kubernetes.io/control-plane"]
	return old || control
}

// ready returns the desired Ready condition; nil to leave it unchanged.
func ready(v NodeView) *nodev1.NodeCondition {
	switch {
	case v.Agent.Silence >= v.Grace:
		return silent(v)
	case !v.Agent.Reported:
		return nil
	case v.Agent.NotReady != "":
		return condition(Ready, "False", reasonNotReady, v.Agent.NotReady)
	}
	return condition(Ready, "True", reasonReady, "the node's agent reports that it is ready")
}

func silent(v NodeView) *nodev1.NodeCondition {
	old := find(v.Node.GetStatus().GetConditions(), Ready)
	if old == nil || old.GetReason() == reasonNeverUpdated {
		return condition(Ready, "Unknown", reasonNeverUpdated, "the node's agent has never sent a heartbeat")
	}
	return condition(Ready, "Unknown", reasonUnknown,
		fmt.Sprintf("the node's agent has sent no heartbeat for more than %s",
			v.Grace))
}

// conditions returns all desired conditions of the node, Ready first and the others by type.
func conditions(v NodeView) []*nodev1.NodeCondition {
	have := v.Node.GetStatus().GetConditions()
	want := map[string]*nodev1.NodeCondition{}
	for _, c := range have {
		want[c.GetType()] = c
	}
	gone := v.Agent.Silence >= v.Grace
	for _, c := range v.Agent.Conditions {
		if c.GetType() != Ready {
			want[c.GetType()] = c
		}
	}
	for t, c := range want {
		if gone && t != Ready && c.GetStatus() != "Unknown" {
			// What an agent reported about memory or disks may be outdated.
			want[t] = condition(t, "Unknown", reasonUnknown, "the node's agent sends no heartbeats")
		}
	}
	if r := ready(v); r != nil {
		want[Ready] = r
	}
	out := make([]*nodev1.NodeCondition, 0, len(want))
	for _, c := range want {
		out = append(out, settled(find(have, c.GetType()), c, v.Now))
	}
	slices.SortFunc(out, func(a, b *nodev1.NodeCondition) int {
		if (a.GetType() == Ready) != (b.GetType() == Ready) {
			if a.GetType() == Ready {
				return -1
			}
			return 1
		}
		return strings.Compare(a.GetType(), b.GetType())
	})
	return out
}

// settled returns c with its times: those of old if nothing else changed, so that a heartbeat without a change never
// leads to a write.
func settled(old, c *nodev1.NodeCondition, now time.Time) *nodev1.NodeCondition {
	if old != nil && old.GetStatus() == c.GetStatus() && old.GetReason() == c.GetReason() &&
		old.GetMessage() == c.GetMessage() {
		return old
	}
	out := proto.Clone(c).(*nodev1.NodeCondition)
	at := &timestamppb.Timestamp{Seconds: now.Unix()}
	out.LastTransitionTime = at
	if old.GetStatus() == c.GetStatus() && old.GetLastTransitionTime() != nil {
		out.LastTransitionTime = old.GetLastTransitionTime()
	}
	out.LastHeartbeatTime = at
	if c.GetStatus() == "Unknown" {
		out.LastHeartbeatTime = old.GetLastHeartbeatTime() // no heartbeat was received
	}
	return out
}

func condition(typ, status, reason, message string) *nodev1.NodeCondition {
	return &nodev1.NodeCondition{Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message)}
}

func find(list []*nodev1.NodeCondition, typ string) *nodev1.NodeCondition {
	for _, c := range list {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// IsReady reports whether the Ready condition of a node is True.
func IsReady(node *nodev1.Node) bool {
	return find(node.GetStatus().GetConditions(), Ready).GetStatus() == "True"
}

func setTaints(node *nodev1.Node, list []*nodev1.Taint) {
	if len(list) > 0 || len(node.GetSpec().GetTaints()) > 0 {
		node.Spec = ensured(node.GetSpec())
		node.Spec.Taints = list
	}
}

// setUnschedulable changes a node's spec.unschedulable. The field is absent from a schedulable node, as in Kubernetes.
func setUnschedulable(node *nodev1.Node, on bool) {
	node.Spec = ensured(node.Spec)
	if on {
		node.Spec.Unschedulable = proto.Bool(true)
	} else if node.Spec.GetUnschedulable() {
		node.Spec.Unschedulable = nil
	}
}
