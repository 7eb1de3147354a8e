package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// recoverUnary turns a panic of the handlers that it wraps into an error, so that one bad call does not end the
// process.
func recoverUnary(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any,
		err error,
	) {
		defer func() { err = recovered(ctx, log, info.FullMethod, recover(), err) }()
		return handler(ctx, req)
	}
}

func recoverStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() { err = recovered(ss.Context(), log, info.FullMethod, recover(), err) }()
		return handler(srv, ss)
	}
}

func recovered(ctx context.Context, log *slog.Logger, method string, cause any, err error) error {
	if cause == nil {
		return err
	}
	log.ErrorContext(ctx, "call panicked", "method", method, "error", cause, "stack", string(debug.Stack()))
	return rpcerr.From(fmt.Errorf("panic: %v", cause))
}

// longestCall is the timeout of a unary call: without a majority of etcd a read would otherwise hang until its caller's
// deadline. It is several times as long as a change of leader.
const longestCall = 10 * time.Second

func limitUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestCall, errTooLong)
	defer cancel()
	resp, err := handler(ctx, req)
	if err != nil && errors.Is(context.Cause(ctx), errTooLong) && errors.Is(err, context.DeadlineExceeded) {
		return nil, rpcerr.Unavailable(errTooLong.Error())
	}
	return resp, err
}

var errTooLong = fmt.Errorf("no answer within %s: etcd or a service that this call needs does not answer", longestCall)

// validateUnary checks requests against their protovalidate rules.
func validateUnary(v protovalidate.Validator) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := validate(v, info.FullMethod, req); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

func validateStream(v protovalidate.Validator) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, &validatedStream{ServerStream: ss, validator: v, method: info.FullMethod})
	}
}

// validatedStream validates each received message.
type validatedStream struct {
	grpc.ServerStream
	validator protovalidate.Validator
	method    string
}

func (s *validatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return validate(s.validator, s.method, m)
}

func validate(v protovalidate.Validator, method string, req any) error {
	m, ok := req.(proto.Message)
	if !ok || !strings.HasPrefix(method, "/windlass.") {
		return nil
	}
	if storesObject(path.Base(method)) {
		return rpcerr.Validate(v, m, protovalidate.WithFilter(protovalidate.FilterFunc(notResource)))
	}
	return rpcerr.Validate(v, m)
}

// storesObject reports whether a method stores the resource in its request. kit/resource validates such a resource,
// after defaults and with paths that begin at the resource; only the rest of the request is validated here.
func storesObject(method string) bool {
	method = strings.TrimPrefix(method, "Batch")
	for _, verb := range []string{"Create", "Update", "Apply", "Patch"} {
		if strings.HasPrefix(method, verb) {
			return true
		}
	}
	return false
}

// notResource filters out fields that contain resources.
func notResource(_ protoreflect.Message, d protoreflect.Descriptor) bool {
	field, ok := d.(protoreflect.FieldDescriptor)
	if !ok || field.Message() == nil {
		return true
	}
	return !proto.HasExtension(field.Message().Options(), metav1.E_Resource)
}
