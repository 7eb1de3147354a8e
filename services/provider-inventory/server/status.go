package server

import (
	"errors"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

// statusOf returns the error that a caller gets for a refusal of the plan; other errors stay as they are.
func statusOf(err error) error {
	var r *plan.Refusal
	if !errors.As(err, &r) {
		return err
	}
	return refused("hosts/"+r.Host, r.Error())
}

// refused returns the error of a call that is not carried out in the present state.
func refused(subject, why string) error {
	return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION, subject, why)
}

// notLeading returns the error of a call that only the leader answers.
func notLeading() error {
	return rpcerr.Unavailable("this replica of provider-inventory does not lead: another one leads, or will in a moment")
}
