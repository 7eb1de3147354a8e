package store

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrNotFound means that there is no record with that key.
	ErrNotFound = errors.New("not found")
	// ErrExists means that a record which had to be new is already there.
	ErrExists = errors.New("already exists")
	// ErrConflict means that the record changed after it was read; read again and retry.
	ErrConflict = errors.New("changed since it was read")
	// ErrCompacted means that the history asked for is gone; list again.
	ErrCompacted = errors.New("revision is compacted")
	// ErrFenced means that the election key this write depends on is gone or has a new holder.
	ErrFenced = errors.New("leadership was lost")
	// ErrUnreadable means that there is a record whose value cannot be opened or decoded. It is left as it is.
	ErrUnreadable = errors.New("record cannot be read")
	// ErrNoSpace means that etcd takes no more writes until space is freed. The write did nothing.
	ErrNoSpace = errors.New("etcd has no space left")
	// ErrBehind means that a watch has more to deliver than its reader may leave waiting; list again.
	ErrBehind = errors.New("too far behind")
	// ErrUnavailable means that etcd gave no answer before the deadline. The outcome of a write is unknown.
	ErrUnavailable = errors.New("store is unavailable")
)

// OpError says which operation of a Commit did not hold. It unwraps to ErrNotFound, ErrExists, ErrConflict or ErrFenced.
type OpError struct {
	Index   int    // of the operation in the call to Commit; -1 for the fence
	Key     string // relative to the prefix; the absolute election key for the fence
	Current Record // the record as it stood when the transaction was refused; zero if there is none
	Err     error
}

// Error names the key and the reason.
func (e *OpError) Error() string { return fmt.Sprintf("%q: %v", e.Key, e.Err) }

// Unwrap returns the sentinel.
func (e *OpError) Unwrap() error { return e.Err }

// outcome is what an error of etcd says about the request that it answers.
type outcome int

const (
	refused outcome = iota // the request did nothing, and the same request would do nothing again
	unknown                // the request may have been carried out, and may be tried again
)

// outcomeOf judges err. Whatever is not known to be a refusal counts as unknown, since the guards make another try harmless.
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
