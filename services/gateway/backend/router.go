package backend

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// Router is one client connection to all programs: each call goes to the program that serves its method, as the caller
// that identity.CallerFrom finds in its context. It is the one way out of the gateway, so it refuses by itself a call
// without a caller, except for methods that are open to anonymous callers.
type Router struct {
	catalog *catalog.Catalog
	pool    *Pool
	serving serving
}

// NewRouter makes a router over pool, which stays the caller's to close.
func NewRouter(c *catalog.Catalog, pool *Pool) *Router { return &Router{catalog: c, pool: pool} }

var _ grpc.ClientConnInterface = (*Router)(nil)

// Invoke makes a unary call.
func (r *Router) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return r.invoke(ctx, "", method, args, reply, opts...)
}

// NewStream opens a stream. It ends with ctx, which the caller must cancel if it does not read the stream to its end.
func (r *Router) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	return r.newStream(ctx, "", desc, method, opts...)
}

// To is a connection to one program whatever the method: for services that every program serves.
func (r *Router) To(program string) grpc.ClientConnInterface {
	return direct{router: r, program: program}
}

type direct struct {
	router  *Router
	program string
}

func (d direct) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return d.router.invoke(ctx, d.program, method, args, reply, opts...)
}

func (d direct) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	return d.router.newStream(ctx, d.program, desc, method, opts...)
}

func (r *Router) invoke(ctx context.Context, program, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	t, m, ctx, err := r.route(ctx, program, method)
	if err != nil {
		return err
	}
	return reworded(ctx, t.invoke(ctx, method, args, reply, append(opts, limits(m)...)...))
}

func (r *Router) newStream(ctx context.Context, program string, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	t, m, ctx, err := r.route(ctx, program, method)
	if err != nil {
		return nil, err
	}
	stream, err := t.open(ctx, m.Streaming, desc, method, append(opts, limits(m)...)...)
	if err != nil {
		return nil, reworded(ctx, err)
	}
	return ending{ClientStream: stream, ctx: ctx}, nil
}

// limits returns the options of calls of a method whose requests may be larger than others.
func limits(m *catalog.Method) []grpc.CallOption {
	if large.Plans(m.Desc) {
		return []grpc.CallOption{grpc.MaxCallSendMsgSize(large.MaxMessage)}
	}
	return nil
}

// route finds where a call goes, to program or, if that is empty, to the program that serves the method, and puts the
// caller's identity on it.
func (r *Router) route(ctx context.Context, program, method string) (*target, *catalog.Method, context.Context, error) {
	m := r.catalog.Method(method)
	if m == nil {
		return nil, nil, nil, status.Errorf(codes.Unimplemented, "there is no method %s", method)
	}
	caller, _ := identity.CallerFrom(ctx)
	if caller.User == "" && !m.Open() {
		return nil, nil, nil, rpcerr.Unauthenticated("no credentials: give a client certificate or a bearer token")
	}
	if program == "" {
		program = m.Program
	}
	ctx, err := r.serving.bound(ctx, m)
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := r.pool.target(ctx, program, m)
	if err != nil {
		return nil, nil, nil, err
	}
	if t == nil {
		return nil, nil, nil, rpcerr.Unavailable(program + " is not part of this cluster")
	}
	return t, m, withIdentity(ctx, caller), nil
}

func (l *link) open(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	// The first try may meet a connection that died a moment ago: then nothing was sent and the call may wait once more.
	for try := 0; ; try++ {
		if err := l.await(ctx); err != nil {
			return nil, err
		}
		stream, err := l.conn.NewStream(ctx, desc, method, opts...)
		if err == nil {
			return worded{ClientStream: stream, link: l, call: ctx}, nil
		}
		if try > 0 || status.Code(err) != codes.Unavailable {
			return nil, l.reword(ctx, err)
		}
	}
}

// worded is a stream whose errors do not name addresses.
type worded struct {
	grpc.ClientStream
	link *link
	call context.Context // the caller's: the stream's own ends with the stream, so it does not say who ended it
}

func (w worded) RecvMsg(m any) error {
	err := w.ClientStream.RecvMsg(m)
	if err == nil {
		return nil
	}
	return w.link.reword(w.call, err)
}

func (w worded) Header() (metadata.MD, error) {
	header, err := w.ClientStream.Header()
	return header, w.link.reword(w.call, err)
}

// reword replaces what gRPC itself says of a lost connection: it names addresses. What a backend says has details and
// stays as it is.
func (l *link) reword(ctx context.Context, err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok || len(st.Proto().GetDetails()) > 0 {
		return err // io.EOF among others
	}
	if refusal := identity.Refusal(ctx); refusal != nil {
		return refusal
	}
	switch st.Code() {
	case codes.Unavailable:
		return rpcerr.Unavailable("the connection to " + l.program + " was lost; what the call did is not known")
	case codes.Canceled:
		if ctx.Err() == nil { // this side closed the connection, because the leader moved
			return rpcerr.Unavailable("the leader of " + l.program + " changed")
		}
	}
	return err
}
