package resource

import (
	"context"

	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Standard answers the requests of standard methods from a table, for a gRPC service that serves several tables and
// chooses one by the request. It is safe for concurrent use.
type Standard[T object.Object] struct{ server server[T] }

// NewStandard returns the standard methods of a table. as returns an object as callers see it, such as in another
// apiVersion: the object itself or a copy. It is nil if objects are seen as they are stored.
func NewStandard[T object.Object](t *Table[T], as func(T) T) Standard[T] {
	return Standard[T]{server[T]{t, as}}
}

// Call answers a request of a method that is not a stream. m is the method, and verb the standard method that it is.
func (s Standard[T]) Call(ctx context.Context, verb Method, m protoreflect.MethodDescriptor, req proto.Message) (
	proto.Message, error,
) {
	call, ok := s.server.calls()[verb]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "%s is no method that answers once", verb)
	}
	out, err := call(ctx, m, request{req.ProtoReflect()})
	if err != nil {
		return nil, err
	}
	if o, ok := out.(T); ok {
		return s.server.shown(o), nil
	}
	return out, nil
}

// Watch answers a request of a Watch method with messages until ctx ends or send fails; see Table.Watching.
func (s Standard[T]) Watch(ctx context.Context, m protoreflect.MethodDescriptor, req proto.Message,
	send func(proto.Message) error,
) error {
	return s.server.watch(ctx, m, request{req.ProtoReflect()}, send)
}
