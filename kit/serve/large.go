package serve

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// whileDecoded is what a request takes beside its bytes until it is answered, as a multiple of them: a copy in one
// piece while it is decoded, and the decoded objects.
const whileDecoded = 4

// registrar registers services, with the memory of their calls' messages counted. It serves their plan methods as
// streams of one message, which is the same to a client: gRPC reads the message of any other call before anything is
// known about the call but its method.
type registrar struct {
	*grpc.Server
	process *Process
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(d *grpc.ServiceDesc, impl any) {
	own := *d
	own.Methods = nil
	for _, m := range d.Methods {
		if full := fmt.Sprintf("/%s/%s", d.ServiceName, m.MethodName); large.Method(full) {
			own.Streams = append(own.Streams, grpc.StreamDesc{
				StreamName: m.MethodName, Handler: r.process.answerOne(m),
				ServerStreams: true, // otherwise grpc-go would call no interceptor of streams, and not check the caller
			})
		} else {
			m.Handler = r.process.counted(m.Handler)
			own.Methods = append(own.Methods, m)
		}
	}
	r.Server.RegisterService(&own, impl)
}

// counted is a handler of a call whose message takes its memory from that for large requests before it is decoded:
// few bytes can become many objects.
func (p *Process) counted(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, receive func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
		error,
	) {
		var share *large.Share
		defer func() { share.Release() }()
		return handler(srv, ctx, func(v any) (err error) {
			m, ok := v.(proto.Message)
			if !ok {
				return receive(v)
			}
			var raw undecoded
			if err := receive(&raw); err != nil {
				return err
			}
			whole := raw.data.MaterializeToBuffer(mem.DefaultBufferPool())
			raw.data.Free()
			defer whole.Free()
			if n := whole.Len(); n > cheap {
				needs := large.Cost(m.ProtoReflect().Descriptor(), whole.ReadOnlyData()) + n
				if share, err = p.large.TakeOrdinary(ctx, needs); err != nil {
					return err
				}
			}
			return decode(whole.ReadOnlyData(), m)
		}, interceptor)
	}
}

// cheap is the size of a message that takes little memory whatever it has.
const cheap = 4 << 10

// undecoded is a message as it came.
type undecoded struct{ data mem.BufferSlice }

// codec is protobuf, and leaves an undecoded message as it is.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	raw, ok := v.(*undecoded)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	raw.data = data
	return nil
}

func decode(data []byte, m proto.Message) error {
	if err := proto.Unmarshal(data, m); err != nil {
		return rpcerr.Invalid(object.Fault{Description: fmt.Sprintf("the message cannot be decoded: %v", err)})
	}
	return nil
}

// answerOne serves a unary method as a stream. The interceptors of streams have done all but what is here.
func (p *Process) answerOne(m grpc.MethodDesc) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		one := func(v any) error { return ss.RecvMsg(v) }
		out, err := m.Handler(srv, ss.Context(), one, func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler,
		) (any, error) {
			return p.refuseUnary(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				return limitUnary(ctx, req, info, handler)
			})
		})
		if err != nil {
			return err
		}
		return ss.SendMsg(out)
	}
}

// receiveLarge has the message of a plan method received in pieces, within the memory for such requests. All
// interceptors but that of metrics are inside it.
func (p *Process) receiveLarge(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	if !large.Method(info.FullMethod) || !large.Receivable(ss.Context()) {
		return handler(srv, ss)
	}
	stream := &largeStream{ServerStream: ss, budget: p.large}
	stream.users.Store(1)
	defer stream.leave()
	return handler(srv, stream)
}

// arrival is how long the message of a plan method may take to arrive, its wait for memory included.
const arrival = 30 * time.Second

type largeStream struct {
	grpc.ServerStream
	budget *large.Budget
	users  atomic.Int32 // the call, and the attempt to receive its message: the share is released when both have ended
	share  *large.Share // nil until the message is known to be large
}

func (s *largeStream) leave() {
	if s.users.Add(-1) == 0 {
		s.share.Release()
	}
}

// receive receives the bytes of the message, and gives up after a time: a message that does not come to its end would
// hold its memory otherwise. The attempt ends with the call.
func (s *largeStream) receive() (mem.BufferSlice, error) {
	type message struct {
		data mem.BufferSlice
		err  error
	}
	came := make(chan message, 1)
	s.users.Add(1)
	go func() {
		defer s.leave()
		data, err := large.Receive(s.Context(), large.MaxMessage, s.room)
		came <- message{data, err}
	}()
	timer := time.NewTimer(arrival)
	defer timer.Stop()
	select {
	case m := <-came:
		return m.data, m.err
	case <-timer.C:
		return nil, rpcerr.From(context.DeadlineExceeded)
	}
}

// RecvMsg receives the message.
func (s *largeStream) RecvMsg(v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return s.ServerStream.RecvMsg(v)
	}
	data, err := s.receive()
	if err != nil {
		return err
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	data.Free()
	defer whole.Free()
	if s.share != nil {
		needs := large.Cost(m.ProtoReflect().Descriptor(), whole.ReadOnlyData()) + 2*whole.Len()
		if err := s.share.Grow(needs); err != nil {
			return err
		}
	}
	return decode(whole.ReadOnlyData(), m)
}

func (s *largeStream) room(total int) (err error) {
	switch {
	case total <= large.Ordinary:
	case s.share == nil:
		s.share, err = s.budget.Take(s.Context(), whileDecoded*total)
	default:
		err = s.share.Grow(whileDecoded * total)
	}
	return err
}
