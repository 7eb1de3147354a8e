package service

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
	"github.com/windlass-dev/windlass/services/gateway/proxy"
	"github.com/windlass-dev/windlass/services/gateway/rest"
	"github.com/windlass-dev/windlass/services/gateway/share"
	"github.com/windlass-dev/windlass/services/gateway/split"
)

const (
	// atOnce is below what a caller that gives up a call has waited for it.
	atOnce = time.Second
	// uploadTime is what a caller has to send the first message of a call, in most methods the only one.
	uploadTime = 30 * time.Second
)

// rooms gives every call its room and reports its caller and state to the door, on both lanes.
type rooms struct {
	catalog *catalog.Catalog
	shares  *share.Shares
	door    *split.Splitter
	memory  *large.Budget // of large requests
}

// call takes room for a call whose caller is known, or may be unknown.
func (r rooms) call(ctx context.Context, caller identity.Caller, source, fullMethod string) (func(), error) {
	r.door.Known(source, caller.User)
	method := r.catalog.Method(fullMethod)
	if method != nil && method.Streaming || method == nil && strings.HasPrefix(fullMethod, "/grpc.") {
		return r.shares.Stream(caller, source)
	}
	return r.shares.Call(ctx, caller, source)
}

// ended counts against the client what friendly ones do rarely.
func (r rooms) ended(ctx context.Context, source string, begun time.Time, refused bool) {
	if refused || errors.Is(ctx.Err(), context.Canceled) && time.Since(begun) < atOnce {
		r.door.Strike(source)
	}
}

func (r rooms) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	caller, _ := identity.CallerFrom(stream.Context())
	release, err := r.call(stream.Context(), caller, source(stream.Context()), info.FullMethod)
	if err != nil {
		return err
	}
	defer release()
	if method := r.catalog.Method(info.FullMethod); method != nil && method.Desc.IsStreamingClient() {
		release, err := r.shares.Upwards(caller, source(stream.Context()))
		if err != nil {
			return err
		}
		defer release()
	}
	up := &upload{ServerStream: stream, room: func() (<-chan struct{}, func(), error) {
		return r.shares.Upload(stream.Context(), caller, source(stream.Context()))
	}}
	if method := r.catalog.Method(info.FullMethod); method != nil && large.Plans(method.Desc) &&
		large.Receivable(stream.Context()) {
		up.plan = &largeRoom{rooms: r, caller: caller, source: source(stream.Context())}
		up.plan.users.Store(1)
		up.ctx = context.WithValue(stream.Context(), largeKey{}, up.plan)
		defer up.plan.leave()
	}
	return next(srv, up)
}

// upload is a call whose first message takes room while it comes in, and has a time to come.
type upload struct {
	grpc.ServerStream
	room  func() (late <-chan struct{}, release func(), err error)
	begun bool       // the first message was asked for
	plan  *largeRoom // of a call whose message may be large; else nil
	ctx   context.Context
}

// Context implements grpc.ServerStream.
func (u *upload) Context() context.Context {
	if u.ctx != nil {
		return u.ctx
	}
	return u.ServerStream.Context()
}

// RecvMsg implements grpc.ServerStream.
func (u *upload) RecvMsg(m any) error {
	if u.begun {
		return u.ServerStream.RecvMsg(m)
	}
	u.begun = true
	late, release, err := u.room()
	if err != nil {
		return err
	}
	rest.Receive(u.Context())
	came, becameLarge := make(chan error, 1), make(chan (<-chan struct{}), 1)
	if u.plan != nil {
		u.plan.users.Add(1)
	}
	go func() {
		defer release()
		if u.plan == nil {
			came <- u.ServerStream.RecvMsg(m)
			return
		}
		defer u.plan.leave()
		came <- u.receive(m, func(late <-chan struct{}) {
			release() // it has room of its own
			becameLarge <- late
		})
	}()
	timer := time.NewTimer(uploadTime)
	defer timer.Stop()
	for {
		select {
		case err := <-came:
			return err
		case late = <-becameLarge:
		case <-timer.C: // the call ends, and with it the attempt to receive
			return status.Error(codes.DeadlineExceeded, "the first message of the call did not come to its end")
		case <-late:
			return rpcerr.TooMany("the message of the call was not complete, and another caller waited for its room", atOnce)
		}
	}
}

// receive receives a message that may be large. grown is called when it is, before it comes in.
func (u *upload) receive(m any, grown func(late <-chan struct{})) error {
	data, err := large.Receive(u.Context(), large.MaxMessage, func(total int) error {
		if total <= large.Ordinary {
			return nil
		}
		if u.plan.share != nil {
			return u.plan.Grow(total)
		}
		if err := u.plan.take(u.Context(), total); err != nil {
			return err
		}
		grown(u.plan.late)
		rest.ReceiveLarge(u.Context())
		return nil
	})
	if err != nil {
		return err
	}
	u.plan.Came()
	defer data.Free()
	return proxy.Codec().Unmarshal(data, m)
}

func (r rooms) strikeStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	next grpc.StreamHandler,
) error {
	begun := time.Now()
	err := next(srv, stream)
	r.ended(stream.Context(), source(stream.Context()), begun, status.Code(err) == codes.Unauthenticated)
	return err
}

// Bytes implements proxy.Meter.
func (r rooms) Bytes(ctx context.Context, n int) (func(), error) {
	if plan, ok := ctx.Value(largeKey{}).(*largeRoom); ok && n > large.Ordinary && plan.holds(n) {
		return func() {}, nil // it is counted already, or it is the answer to one that is, which has gone
	}
	caller, _ := identity.CallerFrom(ctx)
	return r.shares.Bytes(caller, source(ctx), n)
}

// Call implements rest.Room.
func (r rooms) Call(q *http.Request, caller identity.Caller, method *catalog.Method) (func(), error) {
	return r.call(q.Context(), caller, q.RemoteAddr, method.FullName)
}

// Text implements rest.Room.
func (r rooms) Text(q *http.Request, caller identity.Caller, n int) (func(), error) {
	return r.shares.Bytes(caller, q.RemoteAddr, n)
}

// source is the client's address; empty if there is none.
func source(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}
