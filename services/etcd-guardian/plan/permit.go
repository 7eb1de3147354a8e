package plan

import (
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Disruption is the answer to whether the voter of a machine may be disrupted.
type Disruption struct {
	Needless bool               // the machine has no member: nothing has to be held
	Reason   metav1.ErrorReason // why not; ERROR_REASON_UNSPECIFIED if it may
	Why      string             // the same for people
	// Withdraw is true if the permit is held for this machine, whose voter is up, and must not be used now: the voter of
	// another machine fell silent since it was given. It ends then, so that the loss can be repaired; its holder asks
	// again.
	Withdraw bool
}

// Disrupt decides whether the voter of machine may go down for a while. A permit that another service holds for the
// same machine is no hindrance, but the other voters are checked for its holder too: it asks again just before the
// voter goes down.
func Disrupt(v View, machine Machine) Disruption {
	if !v.Fresh {
		return Disruption{Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Why: "no majority of etcd answers: " +
			v.Trouble}
	}
	m, ok := v.MemberOfMachine(machine)
	if !ok {
		return Disruption{Needless: true}
	}
	// The guardian's own permit counts also for that machine: it ends with the guardian's work, whatever others began
	// under it.
	if v.Permit != nil && (v.Permit.Ours || !machine.is(v.Permit.Machine)) {
		return Disruption{
			Reason: metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER,
			Why:    fmt.Sprintf("%s holds it for %s (%s)", v.Permit.Holder, v.Permit.Machine.GetName(), v.Permit.Reason),
		}
	}
	if v.NoSpace {
		return Disruption{
			Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK,
			Why:    "etcd has no space left and its members are defragmented",
		}
	}
	if m.Learner {
		return Disruption{} // the others need it for nothing, and it is not promoted while the permit is held for it
	}
	voters, rest, silent := 0, 0, ""
	for _, o := range v.Members {
		if o.Learner {
			continue
		}
		voters++
		switch {
		case o.ID == m.ID:
		case o.Healthy:
			rest++
		default:
			silent = nameOf(o)
		}
	}
	switch {
	case silent != "":
		return Disruption{
			Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Why: silent + " does not answer",
			Withdraw: v.Permit != nil && m.Healthy,
		}
	case rest < Majority(voters):
		return Disruption{
			Reason: metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, Withdraw: v.Permit != nil && m.Healthy,
			Why: fmt.Sprintf("without it %d of %d voters would be left, and %d are needed", rest, voters, Majority(voters)),
		}
	}
	return Disruption{}
}
