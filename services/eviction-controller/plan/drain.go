package plan

import (
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Phases of a drain.
const (
	Pending   = "Pending"
	Draining  = "Draining"
	Succeeded = "Succeeded"
	Failed    = "Failed"
)

// PermitHeld is the condition of a drain that says whether the disruption permit was taken for it: Unknown once it is asked for, so that it
// is given back whatever became of the answer.
const PermitHeld = "PermitHeld"

// askAgain is how soon a permit that was refused is asked for again: soon enough that a replacement does not wait for it noticeably.
const askAgain = time.Second

// Answer is what became of asking for the disruption permit.
type Answer int

// The answers.
const (
	NotAsked  Answer = iota
	Granted          // the machine's voter may go down
	NotNeeded        // the machine has no voter
	Refused          // another holds it, the quorum is at risk, or the guardian does not answer
)

// DrainView is everything that decides about a drain.
type DrainView struct {
	Now    time.Time // UTC
	Drain  *nodev1.Drain
	Node   *nodev1.Node    // that the drain names; nil if there is none
	Others []*nodev1.Drain // the other drains that name the node, in any order
	Permit Answer          // what the guardian said just now
	Why    string          // why it refused

	Pods    []*schedulingv1.Pod                 // on the node, in any order
	Known   bool                                // false while the scheduler has not yet said which pods there are
	Fresh   bool                                // Pods are what the scheduler said just now
	Away    string                              // why it did not, where it was asked just now
	Budgets []*schedulingv1.PodDisruptionBudget // in any order
	Tries   map[string]Try                      // what became of evictions so far, by the uid of the pod
}

// DrainPlan is what a drain shall be, and what it does next. The zero DrainPlan changes nothing.
type DrainPlan struct {
	Status  *nodev1.DrainStatus // that it shall have
	Ask     bool                // ask for the disruption permit, also again, once Status is stored, and plan again with the answer
	Release bool                // give the permit back
	Gone    bool                // the drain is being deleted: once Release is done nothing holds it any more
	Confirm bool                // ask the scheduler once more for the node's pods, and plan again with them
	Wake    time.Time           // when to decide again even if nothing changes; zero means never

	Pods     []PodVerdict            // what becomes of each pod, once the drain is at its pods
	Actions  []*metav1.PlannedAction // what happens now, in this order
	HeldBack []*metav1.HeldBack      // what waits, and for what
}

// Holds reports whether a drain holds its node unschedulable. One that waits for a permit does not yet: a control-plane node is not
// touched before.
func Holds(d *nodev1.Drain) bool {
	switch d.GetStatus().GetPhase() {
	case Draining, Succeeded, Failed:
		return d.GetMetadata().GetDeletionTimestamp() == nil
	}
	return false
}

// Drains reports whether a drain is of that very node, whose name it has: a later node of the same name is another one.
func Drains(d *nodev1.Drain, node *nodev1.Node) bool {
	uid := d.GetSpec().GetNodeUid()
	return uid == "" || uid == node.GetMetadata().GetUid()
}

// UsesPermit reports whether a drain that is not being deleted has asked for the disruption permit of its node's machine.
func UsesPermit(d *nodev1.Drain) bool {
	return d.GetMetadata().GetDeletionTimestamp() == nil && tookPermit(d)
}

func tookPermit(d *nodev1.Drain) bool {
	s := permitCondition(d).GetStatus()
	return s == "True" || s == "Unknown"
}

// Drain decides what a drain does next.
func Drain(v DrainView) DrainPlan {
	status := proto.Clone(v.Drain.GetStatus()).(*nodev1.DrainStatus)
	if status == nil {
		status = &nodev1.DrainStatus{}
	}
	p := DrainPlan{Status: status}
	switch {
	case v.Drain.GetMetadata().GetDeletionTimestamp() != nil:
		p.end(v)
	case status.GetPhase() == Succeeded || status.GetPhase() == Failed:
	case v.Node == nil:
		p.succeed(v, "there is no such node, so there is nothing to drain")
	case ControlPlane(v.Node) && !permitSettled(v.Drain):
		p.permit(v)
	default:
		p.drain(v)
	}
	return p
}

// end lets a drain that is being deleted go.
func (p *DrainPlan) end(v DrainView) {
	p.Gone = true
	rebooting := v.Node.GetMetadata().GetAnnotations()[RebootOf] != ""
	if tookPermit(v.Drain) && !rebooting && !slices.ContainsFunc(v.Others, UsesPermit) {
		p.Release = true
		p.act(v, "ReleaseDisruptionPermit", "the drain ends")
	}
}

// permit gets the permit for a control-plane node, before anything else is done to it.
func (p *DrainPlan) permit(v DrainView) {
	switch v.Permit {
	case NotAsked:
		p.Ask = true
		p.act(v, "AcquireDisruptionPermit", "the node may run a voter of the etcd cluster")
		if p.Status.GetPhase() == "" {
			p.enter(v, Pending, "asks for the disruption permit")
			p.setPermit(v, "Unknown", "Asked")
		}
	case Refused:
		p.refused(v)
	case Granted:
		p.setPermit(v, "True", "Granted")
		p.drain(v)
	case NotNeeded:
		p.setPermit(v, "False", "NotNeeded")
		p.drain(v)
	}
}

// emptied ends a drain whose pods have left. What is drained for takes the node down now, and emptying it may have taken long: the permit is asked
// for once more, so that the drain succeeds only while every other voter is up.
func (p *DrainPlan) emptied(v DrainView, message string) {
	switch {
	case !tookPermit(v.Drain) || v.Permit == Granted || v.Permit == NotNeeded:
		p.succeed(v, message)
	case v.Permit == NotAsked:
		p.Ask = true
		p.act(v, "AcquireDisruptionPermit", "the other voters are checked again before the node goes down")
	default:
		p.refused(v)
	}
}

// refused keeps a drain waiting for the permit. One that has begun keeps its node unschedulable.
func (p *DrainPlan) refused(v DrainView) {
	phase, action := Pending, "CordonNode"
	if p.Status.GetPhase() == Draining {
		phase, action = Draining, "FinishDrain"
	}
	p.enter(v, phase, "waits for the disruption permit: "+v.Why)
	p.setPermit(v, "Unknown", "Refused")
	p.HeldBack = append(p.HeldBack, &metav1.HeldBack{
		Action: action, Object: nodeReference(v), Reason: v.Why, Unblock: "the holder of the permit finishes its work, and every other voter answers",
	})
	p.Wake = v.Now.Add(askAgain)
}

// drain empties the node: it is first made unschedulable, so that nothing comes while the pods leave.
func (p *DrainPlan) drain(v DrainView) {
	if p.Status.GetPhase() != Draining || !v.Node.GetSpec().GetUnschedulable() {
		p.enter(v, Draining, "makes the node unschedulable")
		p.act(v, "CordonNode", "nothing new may be placed on a node that is drained")
		return
	}
	p.empty(v)
}

func (p *DrainPlan) succeed(v DrainView, message string) { p.finish(v, Succeeded, message) }

func (p *DrainPlan) finish(v DrainView, phase, message string) {
	p.enter(v, phase, message)
	p.Status.CompletionTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
}

func (p *DrainPlan) enter(v DrainView, phase, message string) {
	s := p.Status
	s.Phase, s.Message = proto.String(phase), proto.String(message)
	if s.StartTime == nil && phase != Pending {
		s.StartTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
	}
	if s.EvictedPods == nil {
		s.EvictedPods, s.RemainingPods = proto.Int32(0), proto.Int32(0)
	}
}

func (p *DrainPlan) act(v DrainView, action, reason string) {
	p.Actions = append(p.Actions, &metav1.PlannedAction{Action: action, Object: nodeReference(v), Reason: reason})
}

func (p *DrainPlan) setPermit(v DrainView, status, reason string) {
	c := &metav1.Condition{Type: PermitHeld, Status: status, Reason: proto.String(reason)}
	c.LastTransitionTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
	if status == "False" {
		c.Severity = "Info"
	}
	i := slices.IndexFunc(p.Status.Conditions, func(c *metav1.Condition) bool { return c.GetType() == PermitHeld })
	if i < 0 {
		p.Status.Conditions = append(p.Status.Conditions, c)
		return
	}
	if old := p.Status.Conditions[i]; old.GetStatus() != status || old.GetReason() != reason {
		p.Status.Conditions[i] = c
	}
}

func permitCondition(d *nodev1.Drain) *metav1.Condition {
	for _, c := range d.GetStatus().GetConditions() {
		if c.GetType() == PermitHeld {
			return c
		}
	}
	return nil
}

// permitSettled reports whether the question of the permit is answered for a drain.
func permitSettled(d *nodev1.Drain) bool {
	s := permitCondition(d).GetStatus()
	return s == "True" || s == "False"
}

func nodeReference(v DrainView) *metav1.ObjectReference {
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: v.Drain.GetSpec().GetNodeName(), Uid: v.Node.GetMetadata().GetUid()}
}

// MachineOfDrain returns what the guardian is asked about: the machine that the drain names, or its node.
func MachineOfDrain(d *nodev1.Drain) *metav1.ObjectReference {
	if m := d.GetSpec().GetMachineRef(); m.GetName() != "" {
		return m
	}
	return MachineOfNode(d.GetSpec().GetNodeName())
}

// MachineOfNode returns the reference by which the guardian finds the machine of a node.
func MachineOfNode(name string) *metav1.ObjectReference {
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: name}
}
