package rpcerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestStatus(t *testing.T) {
	about := map[string]string{"kind": "machine", "name": "m-1"}
	retry := func(d time.Duration) proto.Message { return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)} }
	precondition := func(kind, subject, text string) proto.Message {
		return &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
			{Type: kind, Subject: subject, Description: text},
		}}
	}
	tests := []struct {
		name    string
		err     error
		code    codes.Code
		message string
		reason  string
		meta    map[string]string
		detail  proto.Message
	}{
		{
			"a wrong field is named by its path", rpcerr.Invalid(object.Fault{Path: "spec.a[0]", Description: "must be set"}),
			codes.InvalidArgument, "spec.a[0]: must be set", "INVALID_FIELD", nil,
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "spec.a[0]", Description: "must be set"},
			}},
		},
		{
			"a missing object is named", rpcerr.NotFound("machine", "m-1"), codes.NotFound, `machine "m-1" not found`,
			"NOT_FOUND", about, nil,
		},
		{
			"what is in no place names the places", rpcerr.NotFoundAnywhere("machine", "m-1", "not on h1"), codes.NotFound,
			`machine "m-1" not found: not on h1`, "NOT_FOUND", about, nil,
		},
		{
			"a taken name is named", rpcerr.Exists("machine", "m-1"), codes.AlreadyExists, `machine "m-1" already exists`,
			"ALREADY_EXISTS", about, nil,
		},
		{
			"a stale revision says what did not match", rpcerr.Conflict("machine", "m-1", "uid differs"), codes.Aborted,
			`machine "m-1" changed since it was read: uid differs`, "CONFLICT", about, nil,
		},
		{"a refusal carries its text", rpcerr.Forbidden("no"), codes.PermissionDenied, "no", "FORBIDDEN", nil, nil},
		{
			"an unknown caller is unauthenticated", rpcerr.Unauthenticated("who"), codes.Unauthenticated, "who",
			"UNAUTHENTICATED", nil, nil,
		},
		{
			"a used token differs from an unknown caller", rpcerr.BadToken("used"), codes.Unauthenticated, "used", "BAD_TOKEN",
			nil, nil,
		},
		{
			"an old revision asks for a new list", rpcerr.Expired("list again"), codes.OutOfRange, "list again", "EXPIRED", nil,
			nil,
		},
		{
			"a pending hook names its subject", rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_HOOK_PENDING, "machines/m-1",
				"complete it"),
			codes.FailedPrecondition, "machines/m-1: complete it", "HOOK_PENDING", nil,
			precondition("HOOK_PENDING", "machines/m-1", "complete it"),
		},
		{
			"a permit of another holder is named", rpcerr.HeldByOther("permit", "held by x"), codes.FailedPrecondition,
			"permit: held by x", "HELD_BY_OTHER", nil, precondition("HELD_BY_OTHER", "permit", "held by x"),
		},
		{
			"a service that is starting asks to retry", rpcerr.Unavailable("starting"), codes.Unavailable, "starting",
			"UNAVAILABLE", nil, retry(250 * time.Millisecond),
		},
		{
			"a part that is not built says why", rpcerr.NotBuilt("snapshots", "later"), codes.Unimplemented,
			"snapshots is not built yet: later", "NOT_BUILT", nil, nil,
		},
		{
			"a spent budget says when to retry", rpcerr.TooMany("budget", time.Second), codes.ResourceExhausted, "budget",
			"TOO_MANY", nil, retry(time.Second),
		},
		{
			"a size that is too large asks for no retry", rpcerr.TooMany("size", 0), codes.ResourceExhausted, "size", "TOO_MANY",
			nil, nil,
		},
		{
			"text that is not UTF-8 is repaired", rpcerr.Forbidden("a\xffb"), codes.PermissionDenied, "a\uFFFDb", "FORBIDDEN",
			nil, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := status.Convert(tt.err)
			if st.Code() != tt.code || st.Message() != tt.message {
				t.Errorf("status %v %q, want %v %q", st.Code(), st.Message(), tt.code, tt.message)
			}
			want := []any{&errdetails.ErrorInfo{Domain: "windlass.dev", Reason: tt.reason, Metadata: tt.meta}}
			if tt.detail != nil {
				want = append(want, tt.detail)
			}
			if diff := cmp.Diff(want, st.Details(), protocmp.Transform()); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
			if got := "ERROR_REASON_" + tt.reason; rpcerr.Reason(tt.err).String() != got {
				t.Errorf("Reason = %v, want %s", rpcerr.Reason(tt.err), got)
			}
		})
	}
}

func TestInvalidListsTenFieldsInItsMessageAndAllInItsDetails(t *testing.T) {
	var fields []object.Fault
	for i := range 25 {
		fields = append(fields, object.Fault{Path: fmt.Sprintf("f%d", i), Description: "bad"})
	}
	st := status.Convert(rpcerr.Invalid(fields...))
	want := "f0: bad; f1: bad; f2: bad; f3: bad; f4: bad; f5: bad; f6: bad; f7: bad; f8: bad; f9: bad; and 15 more"
	if st.Message() != want {
		t.Errorf("message %q, want %q", st.Message(), want)
	}
	if n := len(st.Details()[1].(*errdetails.BadRequest).GetFieldViolations()); n != 25 {
		t.Errorf("%d fields in the details, want 25", n)
	}
}

func TestFrom(t *testing.T) {
	tests := []struct {
		name    string
		err     error
		code    codes.Code
		message string
		reason  metav1.ErrorReason
	}{
		{
			"our own status passes through wrapping unchanged", fmt.Errorf("hidden: %w", rpcerr.NotFound("node", "n")),
			codes.NotFound, `node "n" not found`, metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
		},
		{
			"a deadline keeps its code", fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded,
			"the deadline passed before the answer was known", metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		},
		{
			"a cancelled call keeps its code", context.Canceled, codes.Canceled, "the call was cancelled",
			metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		},
		{
			"a transport's text stays inside", status.Error(codes.Unavailable, "dial tcp 127.1.2.1:7101"), codes.Unavailable,
			"a service that this call needs cannot be reached", metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		},
		{
			"an unknown method keeps its text", status.Error(codes.Unimplemented, "method Foo not implemented"),
			codes.Unimplemented, "method Foo not implemented", metav1.ErrorReason_ERROR_REASON_NOT_BUILT,
		},
		{
			"a foreign status of another code stays inside", status.Error(codes.DataLoss, "secret"), codes.Internal,
			"internal error", metav1.ErrorReason_ERROR_REASON_INTERNAL,
		},
		{
			"a record that is missing is named by its key",
			fmt.Errorf("x: %w", &store.OpError{Key: "nodes/-/n", Err: store.ErrNotFound}), codes.NotFound, `nodes "n" not found`,
			metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
		},
		{"a record that is there is named with its namespace", &store.OpError{
			Key: "machines/default/m",
			Err: store.ErrExists,
		}, codes.AlreadyExists, `machines "default/m" already exists`, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS},
		{
			"a record that changed asks to read again", &store.OpError{Key: "nodes/-/n", Err: store.ErrConflict}, codes.Aborted,
			`nodes "n" changed since it was read`, metav1.ErrorReason_ERROR_REASON_CONFLICT,
		},
		{
			"a compacted revision asks to list again", store.ErrCompacted, codes.OutOfRange,
			"the revision is no longer kept; list again", metav1.ErrorReason_ERROR_REASON_EXPIRED,
		},
		{
			"a fallen fence asks to retry", &store.OpError{Index: -1, Key: "/windlass/elections/x", Err: store.ErrFenced},
			codes.Unavailable, "this replica is no longer the leader", metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		},
		{
			"a store that does not answer asks to retry", fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded),
			codes.Unavailable, "the store does not answer; it may be electing a leader",
			metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
		},
		{
			"anything else stays inside", errors.New("secret"), codes.Internal, "internal error",
			metav1.ErrorReason_ERROR_REASON_INTERNAL,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := rpcerr.From(tt.err)
			st := status.Convert(got)
			if st.Code() != tt.code || st.Message() != tt.message || rpcerr.Reason(got) != tt.reason {
				t.Errorf("From = %v %q %v, want %v %q %v", st.Code(), st.Message(), rpcerr.Reason(got), tt.code, tt.message,
					tt.reason)
			}
		})
	}
	if rpcerr.From(nil) != nil {
		t.Error("From(nil) is an error")
	}
}

func TestTheFieldThatIsTaken(t *testing.T) {
	for err, want := range map[error]string{
		rpcerr.Taken("Service", "a", "spec.clusterIP", "it belongs to b"): "spec.clusterIP",
		rpcerr.Exists("Service", "a"):                                     "",
		rpcerr.NotFoundField("Service", "a", "spec.x"):                    "",
		errors.New("no status"):                                           "",
	} {
		if got := rpcerr.TakenField(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
