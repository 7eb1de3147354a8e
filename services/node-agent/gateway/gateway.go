// Package gateway is an agent's connection to its cluster: through one of several gateways, which it leaves when
// another one serves better.
//
// gRPC's own health checks fail every call while no gateway serves. Here they only say which gateway is better: without
// a majority of etcd no gateway serves, and it is through the agents' streams that the guardian brings the majority
// back. Nor does gRPC move streams that are open.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// lookAround is how long a call whose gateway was lost waits until it is known whether another one serves.
const lookAround = 3 * time.Second

var errNoEndpoint = errors.New("no endpoint of the cluster is known")

// Dialer returns a connection to the gateway at an endpoint, host:port. Nothing is sent before the first call.
type Dialer func(endpoint string) (*grpc.ClientConn, error)

// Conn is a connection to the cluster. Unary calls that fail because their gateway is lost, or does not serve, are made
// again through another one, so they must be safe to repeat; streams end with UNAVAILABLE. Concurrent calls are safe.
// Close must be called.
type Conn struct {
	dial      Dialer
	log       *slog.Logger
	running   context.Context // ends with Close
	close     context.CancelFunc
	followers sync.WaitGroup

	mu      sync.Mutex
	links   []*link       // in the order of preference
	using   int           // index of the link that calls go through
	changed chan struct{} // closed at the next change of the above, or of a link's health
	wake    *time.Timer
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// New returns a connection through the gateways at the endpoints; the first ones are preferred.
func New(endpoints []string, dial Dialer, log *slog.Logger) (*Conn, error) {
	c := &Conn{dial: dial, log: log, changed: make(chan struct{})}
	c.running, c.close = context.WithCancel(context.Background())
	c.wake = time.AfterFunc(time.Hour, c.look)
	c.wake.Stop()
	if err := c.SetEndpoints(endpoints); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// SetEndpoints replaces the gateways. The one in use stays so if it is among the new ones, and is left later for one
// that is preferred.
func (c *Conn) SetEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return errNoEndpoint
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	former, using := c.links, 0
	var links, fresh []*link
	for _, e := range endpoints {
		if i := slices.IndexFunc(former, func(l *link) bool { return l.endpoint == e }); i >= 0 {
			if i == c.using {
				using = len(links)
			}
			links = append(links, former[i])
			continue
		}
		conn, err := c.dial(e)
		if err != nil {
			for _, l := range fresh {
				_ = l.conn.Close()
			}
			return fmt.Errorf("endpoint %q: %w", e, err)
		}
		l := &link{endpoint: e, conn: conn}
		links, fresh = append(links, l), append(fresh, l)
	}
	c.links, c.using = links, using
	for _, l := range former {
		if !slices.Contains(links, l) {
			l.end()
		}
	}
	links[using].use()
	c.decide()
	return nil
}

// followEvery is how often a file of gateways is checked.
const followEvery = time.Second

// FollowFile replaces the gateways by those that endpoints returns whenever a file has changed, until ctx ends. Without
// a file it returns at once.
func (c *Conn) FollowFile(ctx context.Context, file string, endpoints func() ([]string, error), log *slog.Logger,
) error {
	if file == "" {
		return nil
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var last time.Time
	said := ""
	for {
		if st, err := os.Stat(file); err == nil && !st.ModTime().Equal(last) {
			list, err := endpoints()
			if err == nil {
				err = c.SetEndpoints(list)
			}
			if err == nil {
				last, said = st.ModTime(), ""
			} else if text := err.Error(); text != said {
				said = text
				log.WarnContext(ctx, "gateways are not used", "file", file, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Close ends the connection and everything that runs over it.
func (c *Conn) Close() {
	c.close()
	c.mu.Lock()
	c.wake.Stop()
	for _, l := range c.links {
		l.end()
	}
	c.mu.Unlock()
	c.followers.Wait()
}

// look decides again because time has passed.
func (c *Conn) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decide()
}

// decide does what the plan says; c.mu is held.
func (c *Conn) decide() {
	if c.running.Err() != nil {
		return
	}
	view := plan.GatewayView{Now: time.Now(), Using: c.using}
	for _, l := range c.links {
		view.Gateways = append(view.Gateways, l.state)
	}
	p := plan.ChooseGateway(view)
	if p.Use != c.using {
		from, to := c.links[c.using], c.links[p.Use]
		c.log.Info("other gateway", "from", from.endpoint, "serving", from.state.Health == plan.Serving, "to", to.endpoint)
		c.using = p.Use
		from.leave()
		to.use()
	}
	for i, l := range c.links {
		switch {
		case i >= p.Watch:
			l.unfollow()
		case l.stop == nil:
			c.follow(l)
		}
	}
	if !p.Wake.IsZero() {
		c.wake.Reset(time.Until(p.Wake))
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Invoke makes a unary call.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	for tried := 1; ; tried++ {
		l, calls := c.current()
		bound, end := calls.bind(ctx)
		err := l.conn.Invoke(bound, method, args, reply, opts...)
		err = calls.reword(bound, err)
		end()
		if err == nil {
			l.answered()
		}
		if err == nil || !c.again(ctx, l, tried, err) {
			return err
		}
	}
}

// NewStream opens a stream. It ends when its gateway is left for another one.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	for tried := 1; ; tried++ {
		l, calls := c.current()
		bound, end := calls.bind(ctx)
		s, err := l.conn.NewStream(bound, desc, method, opts...)
		if err == nil {
			return &stream{ClientStream: s, ctx: bound, end: end, link: l, calls: calls}, nil
		}
		err = calls.reword(bound, err)
		end()
		if !c.again(ctx, l, tried, err) {
			return nil, err
		}
	}
}

func (c *Conn) current() (*link, *tenure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[c.using]
	return l, l.calls
}

// again reports whether a call that failed is to be made again: its gateway was left, or is left now. What a service
// that is away says through a gateway that serves is the caller's own matter.
func (c *Conn) again(ctx context.Context, l *link, tried int, err error) bool {
	if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
		return false
	}
	c.mu.Lock()
	enough := tried > len(c.links)
	doubtful := c.links[c.using] == l && l.state.Health == plan.Serving
	c.mu.Unlock()
	if enough {
		return false
	}
	if doubtful {
		c.ask(ctx, l) // its follower gets to know it at about this moment
	}
	ctx, cancel := context.WithTimeout(ctx, lookAround)
	defer cancel()
	for {
		c.mu.Lock()
		moved, changed := c.links[c.using] != l, c.changed
		hope := len(c.links) > 1 && l.state.Health != plan.Serving &&
			slices.ContainsFunc(c.links, func(l *link) bool { return l.state.Health == plan.Unknown })
		c.mu.Unlock()
		if moved || !hope {
			return moved
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
