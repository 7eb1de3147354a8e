package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sentinel is an error of the store that knows its status, so that it may leave a service as it is: rpcerr.From finds
// it. record and name say what it is about, "" if that is not known.
type sentinel struct {
	text string
	as   func(record, name string) error
}

func (s *sentinel) Error() string { return s.text }

// GRPCStatus returns the status without the name of the record, which only an OpError knows.
func (s *sentinel) GRPCStatus() *status.Status { return status.Convert(s.as("record", "")) }

func expired(message string) func(string, string) error {
	return func(string, string) error { return rpcerr.Expired(message) }
}

func unavailable(message string) func(string, string) error {
	return func(string, string) error { return rpcerr.Unavailable(message) }
}

// Each of these may leave a service: its status says NOT_FOUND, ALREADY_EXISTS and so on with the name of the record.
var (
	// ErrNotFound means that there is no record with that key.
	ErrNotFound error = &sentinel{"not found", rpcerr.NotFound}
	// ErrExists means that a record which had to be new is already there.
	ErrExists error = &sentinel{"already exists", rpcerr.Exists}
	// ErrConflict means that the record changed after it was read; read again and retry.
	ErrConflict error = &sentinel{"changed since it was read", func(record, name string) error {
		return rpcerr.Conflict(record, name, "")
	}}
	// ErrCompacted means that the history asked for is gone; list again.
	ErrCompacted error = &sentinel{"revision is compacted", expired("the revision is no longer kept; list again")}
	// ErrFenced means that the election key this write depends on is gone or has a new holder.
	ErrFenced error = &sentinel{"leadership was lost", unavailable("this replica is no longer the leader")}
	// ErrUnreadable means that there is a record whose value cannot be opened or decoded. It is left as it is.
	ErrUnreadable error = &sentinel{"record cannot be read", rpcerr.Unreadable}
	// ErrNoSpace means that etcd takes no more writes until space is freed. The write did nothing.
	ErrNoSpace error = &sentinel{"etcd has no space left", func(string, string) error {
		return rpcerr.TooMany("etcd has no space left: it accepts no writes until space is freed", 0)
	}}
	// ErrBehind means that a watch has more to deliver than its reader may leave waiting; list again.
	ErrBehind error = &sentinel{"too far behind", expired("the revision is too far back; list again")}
	// ErrUnavailable means that etcd gave no answer before the deadline. The outcome of a write is unknown.
	ErrUnavailable error = &sentinel{
		"store is unavailable", unavailable("the store does not answer; it may be electing a leader"),
	}
)

// OpError says which operations of a Commit did not hold. It unwraps to ErrNotFound, ErrExists, ErrConflict or
// ErrFenced.
type OpError struct {
	Index   int    // of the first such operation in the call to Commit; -1 for the fence
	Refused []int  // indexes of all operations that did not hold, ascending; empty for the fence
	Key     string // relative to the prefix; the absolute election key for the fence
	Current Record // the record when the transaction was refused; zero if there is none
	Err     error
}

// Error names the key and the reason.
func (e *OpError) Error() string { return fmt.Sprintf("%q: %v", e.Key, e.Err) }

// Unwrap returns the sentinel.
func (e *OpError) Unwrap() error { return e.Err }

// GRPCStatus returns the status of the sentinel with the record's name: "machines/openshift-machine-api/m-1" is
// "openshift-machine-api/m-1" of the kind "machines"; the "-" for no namespace is left out.
func (e *OpError) GRPCStatus() *status.Status {
	kind, name, ok := strings.Cut(e.Key, "/")
	if !ok {
		kind, name = "record", e.Key
	}
	var s *sentinel
	if !errors.As(e.Err, &s) {
		return status.Convert(rpcerr.From(e.Err))
	}
	return status.Convert(s.as(kind, strings.TrimPrefix(name, "-/")))
}

// outcome is what an error of etcd says about the request that it answers.
type outcome int

const (
	refused outcome = iota // the request did nothing, and the same request would do nothing again
	unknown                // the request may have been carried out, and may be tried again
)

// outcomeOf judges err. Whatever is not known to be a refusal counts as unknown, since the guards make another try
// harmless.
func outcomeOf(err error) outcome {
	switch rpctypes.ErrorDesc(err) {
	// A try that met a change of users, a member that is no voter yet, or one that is overrun: the next may succeed.
	case rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision), rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner),
		rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests):
		return unknown
	}
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return refused
	default:
		return unknown
	}
}

// code returns the gRPC code of err; etcd's own error type hides it from the status package.
func code(err error) codes.Code {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code()
	}
	return status.Code(err)
}

// ended says why a call that was tried until ctx ended has no result; last is the error of its last try.
func ended(ctx context.Context, what string, last error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	if last == nil {
		last = ctx.Err()
	}
	// The cause is text only, so that a caller who matches context errors does not take this for its own.
	return fmt.Errorf("%s: %w: %v", what, ErrUnavailable, last)
}
