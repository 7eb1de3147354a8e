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

// PermitHeld is the condition of a drain that reports whether it holds the disruption permit. It is Unknown once the
// permit is requested, so that the permit is released even if the answer is lost.
const PermitHeld = "PermitHeld"

// Finalizer keeps a drain until its permit is released.
const Finalizer = "windlass.dev/drain"

// DrainView is everything that a decision about a drain depends on.
type DrainView struct {
	Now    time.Time // UTC
	Drain  *nodev1.Drain
	Node   *nodev1.Node    // that the drain names; nil if there is none
	Others []*nodev1.Drain // the other drains that name the node, in any order
	Permit Answer          // to AcquirePermit: the current one, or the last refusal
	Listed Answer          // to ListPods: the current one, or the last failure

	Pods    []*schedulingv1.Pod                 // on the node, in any order
	Known   bool                                // false until the list of pods was received from the scheduler
	Budgets []*schedulingv1.PodDisruptionBudget // in any order
	Tries   map[string]Try                      // evictions that were requested, by the uid of the pod
	Settled time.Time                           // as in EvictionView
}

// With returns the view with the answers to the questions of earlier plans.
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

// draining is a plan for a drain, under construction.
type draining struct {
	Plan
	status   *nodev1.DrainStatus // of the drain, after the plan
	verdicts []PodVerdict        // set once the drain evicts pods
}

// holds reports whether a drain holds its node unschedulable. One that waits for the permit does not: a control-plane
// node is not changed before the permit is granted.
func holds(d *nodev1.Drain) bool {
	switch d.GetStatus().GetPhase() {
	case Draining, Succeeded, Failed:
		return d.GetMetadata().GetDeletionTimestamp() == nil
	}
	return false
}

// Drains reports whether a drain applies to a node of the name that it gives: by uid, since a later node may have the
// same name.
func Drains(d *nodev1.Drain, node *nodev1.Node) bool {
	uid := d.GetSpec().GetNodeUid()
	return uid == "" || uid == node.GetMetadata().GetUid()
}

// UsesPermit reports whether a drain that is not being deleted has requested the disruption permit of its node's
// machine.
func UsesPermit(d *nodev1.Drain) bool {
	return d.GetMetadata().GetDeletionTimestamp() == nil && tookPermit(d)
}

func tookPermit(d *nodev1.Drain) bool {
	s := permitCondition(d).GetStatus()
	return s == "True" || s == "Unknown"
}

// Drain returns the next steps of a drain.
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
		p.succeed(v, "the node does not exist, so there is nothing to drain")
	case ControlPlane(v.Node) && !permitSettled(v.Drain):
		p.permit(v)
	default:
		p.empty(v)
	}
	if !proto.Equal(v.Drain.GetStatus(), p.status) {
		// The status is written first: a permit that is requested but not recorded would not be released.
		next := object.Clone(v.Drain)
		next.Status = p.status
		p.Do = slices.Insert(p.Do, 0, Action{Verb: StoreDrain, Object: object.Reference(next), Drain: next})
	}
	if phase := p.status.GetPhase(); phase == Pending || phase == Draining {
		p.WaitsFor = p.status.GetMessage()
	}
	return p
}

// end releases a drain that is being deleted, after the release of its permit.
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

// permit acquires the permit for a control-plane node before any other change of it.
func (p *draining) permit(v DrainView) {
	switch permitAnswer(v) {
	case NotAsked:
		if p.status.GetPhase() == "" {
			p.enter(v, Pending, "requests the disruption permit")
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

// permitAnswer returns the answer of etcd-guardian; a refusal is valid until the permit is requested again.
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

// emptied ends a drain whose pods have left. The node may go down next, and the drain may have taken long: the permit
// is requested once more, so that the drain succeeds only while every other voter is up.
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

// refused keeps a drain waiting for the permit. A drain that has begun keeps its node unschedulable.
func (p *draining) refused(v DrainView) {
	phase, action := Pending, CordonNode
	if p.status.GetPhase() == Draining {
		phase, action = Draining, "FinishDrain"
	}
	p.enter(v, phase, "waits for the disruption permit: "+v.Permit.Why)
	p.setPermit(v, "Unknown", "Refused")
	p.hold(&metav1.HeldBack{
		Action: action, Object: nodeReference(v), Reason: v.Permit.Why,
		SinceTime: permitCondition(&nodev1.Drain{Status: p.status}).GetLastTransitionTime(),
		Unblock:   "the holder of the permit finishes its work, and every other voter answers",
	})
	p.Wake = v.Permit.At.Add(askAgain)
}

// empty empties the node. It first makes the node unschedulable, so that no pods are added in the meantime.
func (p *draining) empty(v DrainView) {
	if p.status.GetPhase() != Draining || !v.Node.GetSpec().GetUnschedulable() {
		p.enter(v, Draining, "makes the node unschedulable")
		p.act(v, CordonNode, "no new pods may be placed on a node that is being drained")
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

// permitSettled reports whether the permit was granted to a drain, or found not to be needed.
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

// machineOfDrain returns the subject of the permit: the machine that the drain names, or its node.
func machineOfDrain(d *nodev1.Drain) *metav1.ObjectReference {
	if m := d.GetSpec().GetMachineRef(); m.GetName() != "" {
		return m
	}
	return MachineOfNode(d.GetSpec().GetNodeName())
}

// MachineOfNode returns the reference by which etcd-guardian finds the machine of a node.
func MachineOfNode(name string) *metav1.ObjectReference {
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Node", Name: name}
}
