package plan

import (
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Plan is the outcome of one decision; all plans of this service have this shape. The zero Plan means nothing to do.
// No decision depends on the answer of another service, so a plan of this service asks no questions.
type Plan struct {
	Do       []Action           // in this order; one that fails holds up none of the others
	Held     []*metav1.HeldBack // what is held back
	WaitsFor string             // what is waited for, in one line; empty if nothing
	Wake     time.Time          // when to decide again even if nothing changes; zero means never
}

// What an Action does.
const (
	CreateTask  = "CreateTask"  // create Action.Task
	StoreTask   = "StoreTask"   // write Action.Task, if it is still at the revision it was read at
	RemoveTask  = "RemoveTask"  // delete Action.Task
	RemoveHook  = "RemoveHook"  // remove the hook of Action.Task from Action.Machine, which is as it was read
	CallWebhook = "CallWebhook" // call the webhook of the owner of Action.Task, and note the answer
	CreateOwner = "CreateOwner" // create Action.Owner
	StoreOwner  = "StoreOwner"  // write the status of Action.Owner
	RemoveOwner = "RemoveOwner" // delete Action.Owner, if it is still at the revision it was read at
)

// Action is one thing to do; of the last fields those are set that the verb names.
type Action struct {
	Verb   string
	Reason string  // for people
	Events []Event // to record about the machine once it is done

	Task    *hookv1.HookTask
	Machine *machinev1.Machine
	Owner   *hookv1.HookOwner
}

// Event is an event about a machine.
type Event struct{ Type, Reason, Message string }

// Steps returns what the plan does now for the Plan RPC, in order.
func (p Plan) Steps() []*metav1.PlannedAction {
	var out []*metav1.PlannedAction
	for _, a := range p.Do {
		s := a.Task.GetSpec()
		out = append(out, &metav1.PlannedAction{
			Action: a.Verb, Reason: a.Reason,
			Object:  &metav1.ObjectReference{Kind: "HookTask", Name: a.Task.GetMetadata().GetName()},
			Details: map[string]string{"hook": s.GetPoint() + " " + s.GetHookName(), "owner": s.GetOwner()},
		})
	}
	return out
}

// wake decides again at a time, unless that is done earlier anyway.
func (p *Plan) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}

func (p *Plan) hold(h *metav1.HeldBack) {
	p.Held = append(p.Held, h)
	if p.WaitsFor == "" {
		p.WaitsFor = h.GetReason()
	}
}
