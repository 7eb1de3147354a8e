package rpcerr

import (
	"context"
	"errors"
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// From turns any error into a status error that may leave the service; nil stays nil. A status made by this package
// passes unchanged, also through wrapping. What is not foreseen becomes INTERNAL without its text: log err first if
// Code(From(err)) is INTERNAL.
func From(err error) error {
	if err == nil {
		return nil
	}
	if ours := own(err); ours != nil {
		return ours
	}
	if v := new(protovalidate.ValidationError); errors.As(err, &v) {
		return Invalid(fields(v, nil)...)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return build(codes.DeadlineExceeded, metav1.ErrorReason_ERROR_REASON_UNAVAILABLE,
			"the deadline passed before the answer was known", nil)
	case errors.Is(err, context.Canceled):
		return build(codes.Canceled, metav1.ErrorReason_ERROR_REASON_UNAVAILABLE, "the call was cancelled", nil)
	}
	return foreign(err)
}

// own finds a status of this package in err's chain, without the text that wrapping put around it.
func own(err error) error {
	var holder interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &holder) || infoOf(holder.GRPCStatus().Err()) == nil {
		return nil
	}
	return holder.GRPCStatus().Err()
}

// foreign maps a status that gRPC itself or another program made. Texts of the transport name addresses, so they stay
// inside; those about the caller's own message go out.
func foreign(err error) error {
	var holder interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &holder) {
		return internal()
	}
	st := holder.GRPCStatus()
	switch st.Code() {
	case codes.Unavailable:
		return Unavailable("a service that this call needs cannot be reached")
	case codes.DeadlineExceeded:
		return From(context.DeadlineExceeded)
	case codes.Canceled:
		return From(context.Canceled)
	case codes.ResourceExhausted:
		return TooMany(st.Message(), 0)
	case codes.Unimplemented:
		return build(codes.Unimplemented, metav1.ErrorReason_ERROR_REASON_NOT_BUILT, st.Message(), nil)
	case codes.InvalidArgument:
		return Invalid(object.Fault{Description: st.Message()})
	}
	return internal()
}

// Validate checks m against its protovalidate rules and returns nil or INVALID_ARGUMENT with the paths in JSON names. A
// rule that cannot be evaluated is an INTERNAL error of ours, not the caller's; its text is kept for the log by
// wrapping.
func Validate(v protovalidate.Validator, m proto.Message, options ...protovalidate.ValidationOption) error {
	err := v.Validate(m, options...)
	if err == nil {
		return nil
	}
	if invalid := new(protovalidate.ValidationError); errors.As(err, &invalid) {
		return Invalid(fields(invalid, m.ProtoReflect().Descriptor())...)
	}
	return fmt.Errorf("rules of %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
}

// fields translates violations; root is the message that was validated, or nil if it is not known.
func fields(v *protovalidate.ValidationError, root protoreflect.MessageDescriptor) []object.Fault {
	out := make([]object.Fault, 0, len(v.Violations))
	for _, violation := range v.Violations {
		text := violation.Proto.GetMessage()
		if text == "" {
			text = "breaks the rule " + violation.Proto.GetRuleId()
		}
		out = append(out, object.Fault{Path: path(violation, root), Description: text})
	}
	return out
}
