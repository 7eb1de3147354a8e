package gateway

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	// maxSilence is how long a gateway may say nothing before it is asked; heartbeats are answered once a second.
	maxSilence = 2 * time.Second
	// answerLimit is what it has for the answer. A process that is stopped keeps its connections, and gRPC's own pings
	// take 15 s to detect that.
	answerLimit = 2 * time.Second
	// firstPause and longPause bound the pause before a gateway whose watch broke is tried again.
	firstPause, longPause = 100 * time.Millisecond, 5 * time.Second
)

// link is one of the gateways. What has no other lock is under that of its Conn.
type link struct {
	endpoint string
	conn     *grpc.ClientConn
	heard    atomic.Pointer[time.Time] // when it said something last, with the monotonic clock's reading; nil before that

	state   plan.Gateway
	said    int                // how often its health was said
	calls   *tenure            // the last one; nil before the first
	stop    context.CancelFunc // of its follower; nil if it has none
	unwatch context.CancelFunc // ends the watch of its health, for another one
}

func (l *link) answered() {
	now := time.Now()
	l.heard.Store(&now)
}

func (l *link) silence() time.Duration { return time.Since(*l.heard.Load()) }

// use begins a tenure in which calls go through the link, unless it is in use.
func (l *link) use() {
	if l.calls == nil || l.calls.over.Err() != nil {
		l.calls = newTenure(l.endpoint)
	}
}

// leave ends the calls and streams that are under way.
func (l *link) leave() {
	if l.calls != nil {
		l.calls.end()
	}
}

// unfollow ends the watch of the link's health.
func (l *link) unfollow() {
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
	l.state = plan.Gateway{}
	l.said++
}

// end closes the link.
func (l *link) end() {
	l.leave()
	l.unfollow()
	_ = l.conn.Close()
}

// follow starts to watch a link's health; c.mu is held.
func (c *Conn) follow(l *link) {
	ctx, stop := context.WithCancel(c.running)
	l.stop, l.unwatch = stop, func() {}
	c.followers.Go(func() {
		for again := backoff.Spread(firstPause, longPause); ctx.Err() == nil; again.Wait(ctx) {
			if c.watch(ctx, l) {
				again.Reset()
			}
			c.say(ctx, l, plan.Away)
		}
	})
}

// watch follows a gateway's health until the stream breaks, and reports whether the gateway said anything.
func (c *Conn) watch(ctx context.Context, l *link) (heard bool) {
	follower := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.answered() // silence counts from now on
	c.mu.Lock()
	if follower.Err() == nil { // else it is another follower's
		l.unwatch = cancel
	}
	c.mu.Unlock()
	c.followers.Go(func() { c.listen(ctx, l) })
	heard, unknown := c.receive(ctx, follower, l, topology.HealthForAgents)
	if unknown {
		heard, _ = c.receive(ctx, follower, l, "")
	}
	return heard
}

// receive is one watch of a gateway's health, and reports whether the gateway said anything, and whether it does not
// know the service, as one of an earlier version.
func (c *Conn) receive(ctx, follower context.Context, l *link, service string) (heard, unknown bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := grpc_health_v1.NewHealthClient(l.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return false, false
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return heard, false
		}
		heard = true
		l.answered()
		switch r.GetStatus() {
		case grpc_health_v1.HealthCheckResponse_SERVING:
			c.say(follower, l, plan.Serving)
		case grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN:
			return heard, true
		default:
			c.say(follower, l, plan.NotServing)
		}
	}
}

// listen asks a gateway that is silent whether it is there.
func (c *Conn) listen(ctx context.Context, l *link) {
	ticker := time.NewTicker(maxSilence / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if l.silence() > maxSilence {
				c.ask(ctx, l)
			}
		case <-ctx.Done():
			return
		}
	}
}

// ask asks a gateway that is watched for its health. Only what is worse than what the watch said is believed: the
// answer may be the older one.
func (c *Conn) ask(ctx context.Context, l *link) {
	c.mu.Lock()
	said := l.said
	c.mu.Unlock()
	question, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	r, err := grpc_health_v1.NewHealthClient(l.conn).Check(question, &grpc_health_v1.HealthCheckRequest{})
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch code := status.Code(err); {
	case l.stop == nil || l.said != said:
	case code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled:
		l.unwatch() // the next one says when it is back
		c.set(l, plan.Away)
	case err == nil && r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING && l.state.Health == plan.Serving:
		c.set(l, plan.NotServing)
	default:
		l.answered()
	}
}

// say notes a gateway's health, unless ctx, its follower's, has ended.
func (c *Conn) say(ctx context.Context, l *link, health plan.Health) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() == nil {
		c.set(l, health)
	}
}

// set notes a gateway's health; c.mu is held.
func (c *Conn) set(l *link, health plan.Health) {
	l.said++
	if l.state.Health == health {
		return
	}
	l.state = plan.Gateway{Health: health, Since: time.Now()}
	c.decide()
}

// errLeft is why a call or stream ended whose gateway was left.
var errLeft = errors.New("the gateway was left for another one")

// tenure is the time in which calls go through one gateway.
type tenure struct {
	endpoint string
	over     context.Context
	end      context.CancelFunc
}

func newTenure(endpoint string) *tenure {
	t := &tenure{endpoint: endpoint}
	t.over, t.end = context.WithCancel(context.Background())
	return t
}

// bind returns a context for a call, which also ends with the tenure. end must be called when the call is over.
func (t *tenure) bind(ctx context.Context) (bound context.Context, end func()) {
	bound, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.over, func() { cancel(errLeft) })
	context.AfterFunc(bound, func() { stop() })
	return bound, func() { cancel(nil) }
}

// reword replaces the error of a call that ended because its gateway was left: its caller did not cancel it.
func (t *tenure) reword(bound context.Context, err error) error {
	if status.Code(err) == codes.Canceled && errors.Is(context.Cause(bound), errLeft) {
		return status.Errorf(codes.Unavailable, "gateway %s: %v", t.endpoint, errLeft)
	}
	return err
}

// stream is a stream through a gateway.
type stream struct {
	grpc.ClientStream
	ctx   context.Context
	end   func()
	link  *link
	calls *tenure
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.link.answered()
		return nil
	}
	err = s.calls.reword(s.ctx, err)
	s.end()
	return err
}
