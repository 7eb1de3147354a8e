// Package rpcerr makes the errors that leave a service: a gRPC status with a message for people and details for
// programs. It is the only maker of google.rpc.Status; everything else returns Go errors and lets From map them.
//
// Each status carries an ErrorInfo of the domain "windlass.dev" whose reason is a name of metav1.ErrorReason without
// its prefix, and the further details that its code calls for.
package rpcerr

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// domain is the domain of every ErrorInfo that Windlass makes.
const domain = "windlass.dev"

const (
	reasonPrefix = "ERROR_REASON_"
	// retryUnavailable is about one election of etcd's at its quickest; callers back off from there themselves.
	retryUnavailable = 250 * time.Millisecond
	// maxListed bounds the fields that the message spells out; the details always hold all of them.
	maxListed = 10
)

// Invalid says that fields of the request are wrong (INVALID_ARGUMENT).
func Invalid(fields ...object.Fault) error {
	lines := make([]string, 0, len(fields))
	detail := &errdetails.BadRequest{}
	for _, f := range fields {
		lines = append(lines, f.String())
		detail.FieldViolations = append(detail.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: f.Path, Description: f.Description})
	}
	if more := len(lines) - maxListed; more > 0 {
		lines = append(lines[:maxListed], fmt.Sprintf("and %d more", more))
	}
	message := strings.Join(lines, "; ")
	if message == "" {
		message = "the request is not valid"
	}
	return build(codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD, message, nil, detail)
}

// NotFound says that there is no object of that kind and name.
func NotFound(kind, name string) error {
	return build(codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
		fmt.Sprintf("%s %q not found", kind, name), about(kind, name))
}

// NotFoundAnywhere is NotFound for what several places were asked for; places says which, and what they answered.
func NotFoundAnywhere(kind, name, places string) error {
	return build(codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND,
		fmt.Sprintf("%s %q not found: %s", kind, name, places), about(kind, name))
}

// Exists says that the name is taken (ALREADY_EXISTS).
func Exists(kind, name string) error {
	return build(codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS,
		fmt.Sprintf("%s %q already exists", kind, name), about(kind, name))
}

// Taken says that another object has a value that only one may have (ALREADY_EXISTS). path is the field that holds the
// value, in JSON names; detail says whose it is.
func Taken(kind, name, path, detail string) error {
	meta := about(kind, name)
	meta["field"] = path
	return build(codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS,
		fmt.Sprintf("%s %q: %s: %s", kind, name, path, detail), meta)
}

// TakenField returns the field whose value another object has, if err is of Taken; else nothing, such as for an error
// of Exists, which has the same reason.
func TakenField(err error) string {
	if Reason(err) != metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return ""
	}
	return infoOf(err).GetMetadata()["field"]
}

// Conflict says that the object changed after it was read, or is another one of the same name (ABORTED): the caller
// reads again and retries. detail says what did not match; it may be empty.
func Conflict(kind, name, detail string) error {
	message := fmt.Sprintf("%s %q changed since it was read", kind, name)
	if detail != "" {
		message += ": " + detail
	}
	return build(codes.Aborted, metav1.ErrorReason_ERROR_REASON_CONFLICT, message, about(kind, name))
}

// Forbidden says that the caller is known and has no right to this (PERMISSION_DENIED).
func Forbidden(msg string) error {
	return build(codes.PermissionDenied, metav1.ErrorReason_ERROR_REASON_FORBIDDEN, msg, nil)
}

// Unauthenticated says that the caller is not known.
func Unauthenticated(msg string) error {
	return build(codes.Unauthenticated, metav1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, msg, nil)
}

// BadToken says that a one-time token was used already, ran out or never was (UNAUTHENTICATED).
func BadToken(msg string) error {
	return build(codes.Unauthenticated, metav1.ErrorReason_ERROR_REASON_BAD_TOKEN, msg, nil)
}

// Expired says that a revision to resume from is gone (OUT_OF_RANGE): the caller lists again.
func Expired(msg string) error {
	return build(codes.OutOfRange, metav1.ErrorReason_ERROR_REASON_EXPIRED, msg, nil)
}

// Precondition says that the state of subject forbids the change (FAILED_PRECONDITION). description says what to do.
func Precondition(reason metav1.ErrorReason, subject, description string) error {
	message := description
	if subject != "" {
		message = subject + ": " + description
	}
	return build(codes.FailedPrecondition, reason, message, nil, &errdetails.PreconditionFailure{
		Violations: []*errdetails.PreconditionFailure_Violation{
			{Type: name(reason), Subject: subject, Description: description},
		},
	})
}

// HeldByOther says that another holder has subject: a hook task, a permit (FAILED_PRECONDITION).
func HeldByOther(subject, description string) error {
	return Precondition(metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER, subject, description)
}

// Unavailable says that the service cannot answer now and a retry is worth while.
func Unavailable(msg string) error {
	return build(codes.Unavailable, metav1.ErrorReason_ERROR_REASON_UNAVAILABLE, msg, nil, retryAfter(retryUnavailable))
}

// NotBuilt says that a part of Windlass is not built yet (UNIMPLEMENTED). why may be empty.
func NotBuilt(what, why string) error {
	message := what + " is not built yet"
	if why != "" {
		message += ": " + why
	}
	return build(codes.Unimplemented, metav1.ErrorReason_ERROR_REASON_NOT_BUILT, message, nil)
}

// TooMany says that the caller asked for too much at once (RESOURCE_EXHAUSTED) and may try again after retry. A retry
// of zero or less means that waiting does not help: then no RetryInfo is sent.
func TooMany(msg string, retry time.Duration) error {
	if retry <= 0 {
		return build(codes.ResourceExhausted, metav1.ErrorReason_ERROR_REASON_TOO_MANY, msg, nil)
	}
	return build(codes.ResourceExhausted, metav1.ErrorReason_ERROR_REASON_TOO_MANY, msg, nil, retryAfter(retry))
}

// Unreadable says that an object is stored in a form that this program cannot read (DATA_LOSS). It is left as it is.
func Unreadable(kind, name string) error {
	return build(codes.DataLoss, metav1.ErrorReason_ERROR_REASON_INTERNAL,
		fmt.Sprintf("the record of %s %q cannot be read; it is left as it is", kind, name), about(kind, name))
}

// internal hides the cause from the caller: the code that maps the error logs it.
func internal() error {
	return build(codes.Internal, metav1.ErrorReason_ERROR_REASON_INTERNAL, "internal error", nil)
}

// Reason returns why Windlass refused a call, read from the details of err's status; ERROR_REASON_UNSPECIFIED if err is
// nil, no status, or none of Windlass' making.
func Reason(err error) metav1.ErrorReason {
	if info := infoOf(err); info != nil {
		return metav1.ErrorReason(metav1.ErrorReason_value[reasonPrefix+info.GetReason()])
	}
	return metav1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// IgnoreChanged returns nil for an object that was changed or deleted concurrently (CONFLICT, NOT_FOUND), and any other
// error as it is. It is for controllers, which the change triggers again.
func IgnoreChanged(err error) error {
	switch Reason(err) {
	case metav1.ErrorReason_ERROR_REASON_NOT_FOUND, metav1.ErrorReason_ERROR_REASON_CONFLICT:
		return nil
	}
	return err
}

func infoOf(err error) *errdetails.ErrorInfo {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info
		}
	}
	return nil
}

func name(reason metav1.ErrorReason) string { return strings.TrimPrefix(reason.String(), reasonPrefix) }

func about(kind, name string) map[string]string {
	return map[string]string{"kind": kind, "name": name}
}

func retryAfter(d time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// Retry returns the time after which an error says that the call may be made again; 0 if it does not say.
func Retry(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func build(code codes.Code, reason metav1.ErrorReason, msg string, meta map[string]string,
	details ...protoadapt.MessageV1,
) error {
	info := &errdetails.ErrorInfo{Reason: name(reason), Domain: domain, Metadata: meta}
	// A status message must be UTF-8 or it cannot be sent; names in it may come from anywhere.
	st := status.New(code, strings.ToValidUTF8(msg, "\uFFFD"))
	full, err := st.WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	if err != nil {
		return st.Err() // details that cannot be encoded (bytes that are not UTF-8) are left out
	}
	return full.Err()
}
