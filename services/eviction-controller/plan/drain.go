package plan

import (
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
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

// PermitHeld is the condition of a drain that says whether the disruption permit was taken for it: Unknown once it is
// asked for, so that it is given back whatever became of the answer.
const PermitHeld = "PermitHeld"

// Finalizer keeps a drain until what was taken for it is given back.
const Finalizer = "windlass.dev/drain"

// DrainView is everything that decides about a drain.
type DrainView struct {
	Now    time.Time // UTC
	Drain  *nodev1.Drain
	Node   *nodev1.Node    // that the drain names; nil if there is none
	Others []*nodev1.Drain // the other drains that name the node, in any order
	Permit Answer          // to AcquirePermit: just now, or the refusal before
	Listed Answer          // to ListPods: just now, or the failure before

	Pods    []*schedulingv1.Pod                 // on the node, in any order
	Known   bool                                // false while the scheduler has not yet said which pods there are
	Budgets []*schedulingv1.PodDisruptionBudget // in any order
	Tries   map[string]Try                      // what became of evictions so far, by the uid of the pod
	Settled time.Time                           // as in EvictionView
}

// With returns the view with answers that were given to the plan of the view before.
func (v DrainView) With(answers []Answered) DrainView {
	for _, a := range answers {
		switch a.Verb {
		case AcquirePermit:
			v.Permit = a.Answer
		case ListPods:
			v.Listed = a.Answer
		}
	}
	if v.Listed.Code == Granted {
		v.Pods = v.Listed.Pods
	}
	return v
}

// draining is a plan for a drain that is being made.
type draining struct {
	Plan
	status   *nodev1.DrainStatus // that the drain gets
	verdicts []PodVerdict        // once the drain is at its pods
}

// holds reports whether a drain holds its node unschedulable. One that waits for a permit does not yet: a control-plane
// node is not touched before.
func holds(d *nodev1.Drain) bool {
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

// UsesPermit reports whether a drain that is not being deleted has asked for the disruption permit of its node's
// machine.
func UsesPermit(d *nodev1.Drain) bool {
	return d.GetMetadata().GetDeletionTimestamp() == nil && tookPermit(d)
}

func tookPermit(d *nodev1.Drain) bool {
	s := permitCondition(d).GetStatus()
	return s == "True" || s == "Unknown"
}

// Drain decides what a drain does next.
func Drain(v DrainView) Plan { return drain(v).Plan }

func drain(v DrainView) draining {
	p := draining{status: proto.Clone(v.Drain.GetStatus()).(*nodev1.DrainStatus)}
	if p.status == nil {
		p.status = &nodev1.DrainStatus{}
	}
	switch {
	case v.Drain.GetMetadata().GetDeletionTimestamp() != nil:
		p.end(v)
	case p.status.GetPhase() == Succeeded || p.status.GetPhase() == Failed:
	case v.Node == nil:
		p.succeed(v, "there is no such node, so there is nothing to drain")
	case ControlPlane(v.Node) && !permitSettled(v.Drain):
		p.permit(v)
	default:
		p.empty(v)
	}
	if !proto.Equal(v.Drain.GetStatus(), p.status) {
		// Before anything else is done: what is asked for and not noted is not given back.
		next := object.Clone(v.Drain)
		next.Status = p.status
		p.Do = slices.Insert(p.Do, 0, Action{Verb: StoreDrain, Object: object.Reference(next), Drain: next})
	}
	if phase := p.status.GetPhase(); phase == Pending || phase == Draining {
		p.WaitsFor = p.status.GetMessage()
	}
	return p
}

// end releases a drain that is being deleted, once what was taken for it is given back.
func (p *draining) end(v DrainView) {
	if !slices.Contains(v.Drain.GetMetadata().GetFinalizers(), Finalizer) {
		return
	}
	rebooting := v.Node.GetMetadata().GetAnnotations()[RebootOf] != ""
	if tookPermit(v.Drain) && !rebooting && !slices.ContainsFunc(v.Others, UsesPermit) {
		p.act(v, ReleasePermit, "the drain ends")
	}
	next := object.Clone(v.Drain)
	next.Metadata.Finalizers = slices.DeleteFunc(next.Metadata.Finalizers, func(f string) bool { return f == Finalizer })
	p.Do = append(p.Do, Action{Verb: ReleaseDrain, Object: object.Reference(next), Drain: next})
}

// permit gets the permit for a control-plane node, before anything else is done to it.
func (p *draining) permit(v DrainView) {
	switch permitAnswer(v) {
	case NotAsked:
		if p.status.GetPhase() == "" {
			p.enter(v, Pending, "asks for the disruption permit")
			p.setPermit(v, "Unknown", "Asked")
		}
		p.askPermit(v, "the node may run a voter of the etcd cluster")
	case Granted:
		p.setPermit(v, "True", "Granted")
		p.empty(v)
	case NotNeeded:
		p.setPermit(v, "False", "NotNeeded")
		p.empty(v)
	default:
		p.refused(v)
	}
}

// permitAnswer returns what the guardian said; a refusal counts until the permit is asked for again.
func permitAnswer(v DrainView) Code {
	if c := v.Permit.Code; c != Refused && c != Away || v.Now.Before(v.Permit.At.Add(askAgain)) {
		return c
	}
	return NotAsked
}

func (p *draining) askPermit(v DrainView, reason string) {
	p.Ask = append(p.Ask, Question{
		Verb: AcquirePermit, Object: nodeReference(v), Reason: reason, Machine: machineOfDrain(v.Drain),
		Drain: uidOf(v.Drain),
	})
}

// emptied ends a drain whose pods have left. What is drained for takes the node down now, and emptying it may have
// taken long: the permit is asked for once more, so that the drain succeeds only while every other voter is up.
func (p *draining) emptied(v DrainView, message string) {
	switch answer := permitAnswer(v); {
	case !tookPermit(v.Drain) || answer == Granted || answer == NotNeeded:
		p.succeed(v, message)
	case answer == NotAsked:
		p.askPermit(v, "the other voters are checked again before the node goes down")
	default:
		p.refused(v)
	}
}

// refused keeps a drain waiting for the permit. One that has begun keeps its node unschedulable.
func (p *draining) refused(v DrainView) {
	phase, action := Pending, CordonNode
	if p.status.GetPhase() == Draining {
		phase, action = Draining, "FinishDrain"
	}
	p.enter(v, phase, "waits for the disruption permit: "+v.Permit.Why)
	p.setPermit(v, "Unknown", "Refused")
	p.hold(Held{
		Action: action, Object: nodeReference(v), Reason: v.Permit.Why,
		Since:   timeOf(permitCondition(&nodev1.Drain{Status: p.status}).GetLastTransitionTime()),
		Unblock: "the holder of the permit finishes its work, and every other voter answers",
	})
	p.Wake = v.Permit.At.Add(askAgain)
}

// empty empties the node: it is first made unschedulable, so that nothing comes while the pods leave.
func (p *draining) empty(v DrainView) {
	if p.status.GetPhase() != Draining || !v.Node.GetSpec().GetUnschedulable() {
		p.enter(v, Draining, "makes the node unschedulable")
		p.act(v, CordonNode, "nothing new may be placed on a node that is drained")
		return
	}
	p.evict(v)
}

func (p *draining) succeed(v DrainView, message string) { p.finish(v, Succeeded, message) }

func (p *draining) finish(v DrainView, phase, message string) {
	p.enter(v, phase, message)
	p.status.CompletionTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
}

func (p *draining) enter(v DrainView, phase, message string) {
	s := p.status
	s.Phase, s.Message = proto.String(phase), proto.String(message)
	if s.StartTime == nil && phase != Pending {
		s.StartTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
	}
	if s.EvictedPods == nil {
		s.EvictedPods, s.RemainingPods = proto.Int32(0), proto.Int32(0)
	}
}

func (p *draining) act(v DrainView, verb, reason string) {
	p.Do = append(p.Do, Action{Verb: verb, Object: nodeReference(v), Reason: reason, Machine: machineOfDrain(v.Drain)})
}

func (p *draining) setPermit(v DrainView, status, reason string) {
	c := &metav1.Condition{Type: PermitHeld, Status: status, Reason: proto.String(reason)}
	c.LastTransitionTime = &timestamppb.Timestamp{Seconds: v.Now.Unix()}
	if status == "False" {
		c.Severity = "Info"
	}
	i := slices.IndexFunc(p.status.Conditions, func(c *metav1.Condition) bool { return c.GetType() == PermitHeld })
	if i < 0 {
		p.status.Conditions = append(p.status.Conditions, c)
		return
	}
	if old := p.status.Conditions[i]; old.GetStatus() != status || old.GetReason() != reason {
		p.status.Conditions[i] = c
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
	return &metav1.ObjectReference{
		ApiVersion: "v1", Kind: "Node", Name: v.Drain.GetSpec().GetNodeName(),
		Uid: v.Node.GetMetadata().GetUid(),
	}
}

func uidOf(d *nodev1.Drain) string { return d.GetMetadata().GetUid() }

// machineOfDrain returns what the guardian is asked about: the machine that the drain names, or its node.
func machineOfDrain(d *nodev1.Drain) *metav1.ObjectReference {
	if m := d.GetSpec().GetMachineRef(); m.GetName() != "" {
		return m
	}
	return MachineOfNode(d.GetSpec().GetNodeName())
}

// MachineOfNode returns the reference by which the guardian finds the machine of a node.
func MachineOfNode(name string) *metav1.ObjectReference {
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: name}
}
