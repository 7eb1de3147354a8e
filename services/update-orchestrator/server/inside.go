package server

import (
	"context"
	"fmt"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/services/update-orchestrator/custom"
)

// inside is a connection to the services of this process's own kinds. The kinds of releases are not known when the
// policy is written, so no role could name them; the service that owns them needs no right.
type inside struct {
	custom      *Custom
	definitions resource.Standard[*custom.Definition]
	methods     map[string]resource.Method // of definitions, by the full name
	watched     protoreflect.MethodDescriptor
}

// Inside returns a connection to CustomResourceDefinitionService and CustomObjectService for callers in this process,
// which are this service. Watch is the only stream.
func (s *Custom) Inside(definitions *resource.Table[*custom.Definition]) (grpc.ClientConnInterface, error) {
	methods, err := resource.Methods((&custom.Definition{}).ProtoReflect().Descriptor())
	c := inside{
		custom: s, definitions: resource.NewStandard(definitions, nil), methods: map[string]resource.Method{},
		watched: methods[resource.Watch],
	}
	for verb, m := range methods {
		c.methods[fullName(m)] = verb
	}
	return c, err
}

// fullName returns a method as it is called.
func fullName(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// called returns the context of a call by this service.
func called(ctx context.Context) context.Context {
	return identity.WithCaller(ctx, identity.Caller{
		User:   identity.ServiceUser(topology.UpdateOrchestrator),
		Groups: []string{identity.GroupServices, identity.GroupAuthenticated},
	})
}

// Invoke calls a method that answers once.
func (c inside) Invoke(ctx context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	answer, err := c.answer(called(ctx), method, in)
	if err != nil {
		return rpcerr.From(err)
	}
	to, ok := out.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "%T is no message", out)
	}
	proto.Reset(to)
	proto.Merge(to, answer)
	return nil
}

func (c inside) answer(ctx context.Context, method string, in any) (proto.Message, error) {
	if verb, ok := c.methods[method]; ok {
		req, _ := in.(proto.Message)
		return c.definitions.Call(ctx, verb, nil, req)
	}
	switch req := in.(type) {
	case *apiextensionsv1.GetCustomObjectRequest:
		return c.custom.GetCustomObject(ctx, req)
	case *apiextensionsv1.CreateCustomObjectRequest:
		return c.custom.CreateCustomObject(ctx, proto.CloneOf(req))
	case *apiextensionsv1.ApplyCustomObjectRequest:
		return c.custom.ApplyCustomObject(ctx, proto.CloneOf(req))
	case *apiextensionsv1.DeleteCustomObjectRequest:
		return c.custom.DeleteCustomObject(ctx, req)
	}
	return nil, status.Errorf(codes.Unimplemented, "method %s is not called within the process", method)
}

// NewStream begins a watch.
func (c inside) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	s := &insideStream{ctx: called(ctx), sent: make(chan proto.Message), over: make(chan struct{})}
	switch method {
	case fullName(c.custom.methods[resource.Watch]):
		s.watch = func(ctx context.Context, m proto.Message, send func(proto.Message) error) error {
			req, ok := m.(*apiextensionsv1.WatchCustomObjectsRequest)
			if !ok {
				return status.Errorf(codes.Internal, "%T is no request of a watch of custom objects", m)
			}
			return c.custom.watch(ctx, req, send)
		}
	case fullName(c.watched):
		s.watch = func(ctx context.Context, m proto.Message, send func(proto.Message) error) error {
			return c.definitions.Watch(ctx, c.watched, m, send)
		}
	default:
		return nil, status.Errorf(codes.Unimplemented, "method %s is not called within the process", method)
	}
	return s, nil
}

// insideStream is a watch. Its messages come one by one: the next is made when the last one was received.
type insideStream struct {
	watch func(ctx context.Context, req proto.Message, send func(proto.Message) error) error
	ctx   context.Context // of the stream, as its interface has it
	sent  chan proto.Message
	over  chan struct{} // closed at the end
	err   error         // why it ended; read after over
}

// SendMsg takes the one request, and begins the watch.
func (s *insideStream) SendMsg(m any) error {
	req, ok := m.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "%T is no message", m)
	}
	go func() {
		defer close(s.over)
		s.err = s.watch(s.ctx, proto.Clone(req), func(m proto.Message) error {
			select {
			case s.sent <- m:
				return nil
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		})
	}()
	return nil
}

// RecvMsg returns the next message.
func (s *insideStream) RecvMsg(m any) error {
	select {
	case got := <-s.sent:
		// The events are encoded once for all watches, so the message has to be read.
		raw, err := proto.Marshal(got)
		if err != nil {
			return err
		}
		to, ok := m.(proto.Message)
		if !ok {
			return status.Errorf(codes.Internal, "%T is no message", m)
		}
		return proto.Unmarshal(raw, to)
	case <-s.over:
		return rpcerr.From(s.err)
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// Header returns no headers.
func (s *insideStream) Header() (metadata.MD, error) { return metadata.MD{}, nil }

// Trailer returns no trailers.
func (s *insideStream) Trailer() metadata.MD { return metadata.MD{} }

// CloseSend does nothing: there is one request.
func (s *insideStream) CloseSend() error { return nil }

// Context returns the context of the stream.
func (s *insideStream) Context() context.Context { return s.ctx }
