package plan

import (
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// Plan is the outcome of one decision; all plans of this service have this shape. The zero Plan means nothing to do.
// The controller does Do, asks Ask, remembers the answers (see Memory), and calls the same function again with them.
type Plan struct {
	Do       []Action           // in this order; stop at the first that fails
	Held     []*metav1.HeldBack // what is held back
	WaitsFor string             // what the object waits for, in one line; empty if nothing
	Ask      []Question         // after Do; the first AtOnce of them concurrently, then decide again
	Wake     time.Time          // when to decide again even if nothing changes; zero means never
}

// AtOnce is how many questions of a plan are asked concurrently. The answers may make the remaining questions
// unnecessary.
const AtOnce = 8

// What an Action does.
const (
	StoreNode       = "StoreNode"               // write Action.Node
	StoreDrain      = "StoreDrain"              // write the status of Action.Drain
	CordonNode      = "CordonNode"              // reconcile the node: a drain that holds it makes it unschedulable
	ReleasePermit   = "ReleaseDisruptionPermit" // release the permit that is held for Action.Machine
	ReleaseDrain    = "ReleaseDrain"            // write Action.Drain, whose Finalizer is removed, and drop its state
	TakeTurn        = "TakeTurn"                // record Action.Turn for Action.Zone
	ChangeZone      = "ChangeZone"              // record Action.ZoneState for Action.Zone, and reconcile its nodes
	BeginDisruption = "BeginDisruption"         // record it, and reconcile the nodes that are not ready
	EndDisruption   = "EndDisruption"           // the same; the silence of every agent counts from now
	RebootNode      = "RebootNode"              // order the node's agent to restart it
)

// What a Question asks.
const (
	AcquirePermit = "AcquireDisruptionPermit" // of etcd-guardian, the permit of Question.Machine
	ListPods      = "ListPods"                // of the scheduler, the pods of the node
	EvictPod      = "EvictPod"                // of the scheduler, to evict Question.Pod if its disruption budgets allow it
	DeletePod     = "DeletePod"               // of the scheduler, to delete Question.Pod without regard to budgets
)

// Action is one thing to do. Of the last group of fields, those that the verb names are set.
type Action struct {
	Verb   string
	Object *metav1.ObjectReference
	Reason string // for people

	Node      *nodev1.Node
	Drain     *nodev1.Drain
	Machine   *metav1.ObjectReference
	Zone      string
	ZoneState string
	Turn      Turn
}

// Question is what another service must answer before the next decision.
type Question struct {
	Verb   string
	Object *metav1.ObjectReference
	Reason string // for people

	Machine *metav1.ObjectReference
	Pod     *schedulingv1.Pod
	Grace   *int32 // of EvictPod, in seconds; nil means the pod's own grace period
	Force   bool   // of EvictPod: the object is removed at once if Grace is 0
	Drain   string // uid of the drain that asks; empty if no drain does
	// Revision, of ListPods, is that of the node, which is unschedulable. No pod that the list lacks is bound to the node
	// by a decision that was made before the scheduler had that revision.
	Revision string
}

// Code classifies an Answer. The zero Code means that there is no answer.
type Code int

// Codes of answers.
const (
	NotAsked  Code = iota
	Granted        // the permit is held, the pods are listed, the eviction was accepted
	NotNeeded      // the machine has no voter, so it needs no permit
	Refused        // by the service that was asked
	Away           // the service did not answer
)

// Answer is the result of a Question.
type Answer struct {
	Code Code
	Why  string              // why it was refused, or why the service did not answer
	At   time.Time           // when it came
	Pods []*schedulingv1.Pod // of ListPods
}

// Answered is a question with its answer.
type Answered struct {
	Question
	Answer
}

// Steps returns what the plan does now, in order, for Plan RPCs. It leaves out writes: the RPCs return the complete
// object.
func (p Plan) Steps() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, a := range p.Do {
		switch a.Verb {
		case CordonNode, ReleasePermit, RebootNode:
			out = append(out, &metav1.PlannedAction{Action: a.Verb, Object: a.Object, Reason: a.Reason})
		}
	}
	for _, q := range p.Ask {
		out = append(out, &metav1.PlannedAction{Action: q.Verb, Object: q.Object, Reason: q.Reason})
	}
	return out
}

// Does reports whether an action is part of the plan.
func (p Plan) Does(verb string) bool {
	return slices.ContainsFunc(p.Do, func(a Action) bool { return a.Verb == verb })
}

// Asks reports whether a question is part of the plan.
func (p Plan) Asks(verb string) bool {
	return slices.ContainsFunc(p.Ask, func(q Question) bool { return q.Verb == verb })
}

// HeldReason returns why an action is held back; empty if it is not.
func (p Plan) HeldReason(action string) string {
	for _, h := range p.Held {
		if h.GetAction() == action {
			return h.GetReason()
		}
	}
	return ""
}

// NodeAfter returns a node as it is after the plan that was made for it.
func (p Plan) NodeAfter(node *nodev1.Node) *nodev1.Node {
	for _, a := range p.Do {
		if a.Verb == StoreNode {
			return a.Node
		}
	}
	return node
}

// StatusAfter returns the status of a drain as it is after the plan that was made for it.
func (p Plan) StatusAfter(d *nodev1.Drain) *nodev1.DrainStatus {
	for _, a := range p.Do {
		if a.Verb == StoreDrain {
			return a.Drain.GetStatus()
		}
	}
	return d.GetStatus()
}

// wake has the controller decide again at a time, or earlier if that is already planned; zero changes nothing.
func (p *Plan) wake(at time.Time) {
	if p.Wake.IsZero() || !at.IsZero() && at.Before(p.Wake) {
		p.Wake = at
	}
}

func (p *Plan) hold(h *metav1.HeldBack) {
	p.Held = append(p.Held, h)
	if p.WaitsFor == "" {
		p.WaitsFor = h.GetReason()
	}
}

// storeNode adds the write of a node, if it changes anything.
func (p *Plan) storeNode(have, want *nodev1.Node) {
	if !proto.Equal(have, want) {
		p.Do = append(p.Do, Action{Verb: StoreNode, Object: object.Reference(have), Node: want})
	}
}
