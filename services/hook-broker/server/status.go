package server

import (
	"errors"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

// statusOf returns the error that a caller gets for a refusal of the plan; other errors stay as they are.
func statusOf(err error) error {
	var r *plan.Refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.Cause {
	case plan.NotOwner:
		return rpcerr.Forbidden(r.Error())
	case plan.HeldByOther:
		return rpcerr.HeldByOther("hooktasks/"+r.Task, r.Text)
	case plan.ProtectsQuorum:
		return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, "hooktasks/"+r.Task, r.Text)
	}
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, "hooktasks/"+r.Task, r.Text)
}
