package plan

import (
	"slices"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Plan is the outcome of one decision; all plans of this service have this shape. The zero Plan means nothing to do.
type Plan struct {
	Do       []Action           // in this order; one that fails holds up none of the others
	Held     []*metav1.HeldBack // what is held back
	WaitsFor string             // what is waited for, in one line; empty if nothing
	Ask      []Question         // to be answered first; then decide again
	Wake     time.Time          // when to decide again even if nothing changes; zero means never
}

// What an Action does.
const (
	AimPool = "AimPool" // store Action.Config, if it is set, and then the spec of Action.Pool
	// make Action.Target the target of Action.Node, if that is still as it was read
	SetDesired    = "SetDesiredConfig"
	StorePool     = "StorePool"               // write the status of Action.Pool
	DeleteConfig  = "DeleteMachineConfig"     // delete Action.Config
	CreateDrain   = "CreateDrain"             // create Action.Drain
	DeleteDrain   = "DeleteDrain"             // delete Action.Drain
	SendOrder     = "SendOrder"               // send Action.Order to the agent of the node
	ReleasePermit = "ReleaseDisruptionPermit" // give back what this service took for the node, if no drain does that
)

// AcquirePermit is the Question whether the voter of a node, if it has one, may go down now.
const AcquirePermit = "AcquireDisruptionPermit"

// applyConfig is what the agent of a node is not ordered yet while that is held back.
const applyConfig = "ApplyConfig"

// Action is one thing to do; of the last fields those are set that the verb names.
type Action struct {
	Verb   string
	Object *metav1.ObjectReference
	Reason string // for people

	Pool   *configv1.MachineConfigPool
	Config *configv1.MachineConfig
	Node   *nodev1.Node
	Target string // of SetDesired: name of the configuration
	Drain  *nodev1.Drain
	Order  Order
}

// Question is what another service must answer before the next decision.
type Question struct {
	Verb   string
	Object *metav1.ObjectReference
}

// Code says what an Answer is. The zero Code means that nothing was answered.
type Code int

// Codes of answers.
const (
	NotAsked Code = iota
	Granted
	Refused // or the service did not answer
)

// Answer is the answer to a Question.
type Answer struct {
	Code Code
	Why  string // it was refused
}

// Steps returns what the plan does now for Plan RPCs, in order. Writes of this service's own objects are left out: the
// RPCs show those objects.
func (p Plan) Steps() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, a := range p.Do {
		if a.Verb == SetDesired {
			out = append(out, &metav1.PlannedAction{
				Action: a.Verb, Object: a.Object, Reason: a.Reason, Details: map[string]string{"machineConfig": a.Target},
			})
		}
	}
	return out
}

// Asks reports whether a question is part of the plan.
func (p Plan) Asks(verb string) bool {
	return slices.ContainsFunc(p.Ask, func(q Question) bool { return q.Verb == verb })
}

// StatusAfter returns the status of a pool as the plan that was made for it leaves it.
func (p Plan) StatusAfter(pool *configv1.MachineConfigPool) *configv1.MachineConfigPoolStatus {
	for _, a := range p.Do {
		if a.Verb == StorePool {
			return a.Pool.GetStatus()
		}
	}
	return pool.GetStatus()
}

// Aimed returns a pool with the configuration that the plan makes its target; nil if the plan does not aim it.
func (p Plan) Aimed() *configv1.MachineConfigPool {
	for _, a := range p.Do {
		if a.Verb == AimPool {
			return a.Pool
		}
	}
	return nil
}

// wake decides again at a time, unless that is done earlier anyway.
func (p *Plan) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}

// hold holds an action on a node back.
func (p *Plan) hold(n *nodev1.Node, h *metav1.HeldBack) {
	h.Object = object.Reference(n)
	p.Held = append(p.Held, h)
	if p.WaitsFor == "" {
		p.WaitsFor = h.GetReason()
	}
}
