package backend

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/discovery"
	"github.com/windlass-dev/windlass/kit/rpcerr"
)

const (
	// hold is how long a call waits for a backend that went away: a restart takes about one second.
	hold = 2 * time.Second
)

// link is the connection to one address of a program, or to the nearest process of it. It never stays idle, so that its
// state says whether the backend is there.
type link struct {
	conn    *grpc.ClientConn
	program string
	stop    context.CancelFunc
	done    chan struct{}
	// lost is when the connection went away, with the monotonic clock's reading; nil while it is up.
	lost atomic.Pointer[time.Time]
	// streams is how many streams are open, or about to be.
	streams atomic.Int64
}

func newLink(program, address string, creds credentials.TransportCredentials, more []grpc.DialOption) (*link, error) {
	options := append(dial.Sibling(5*time.Second),
		grpc.WithTransportCredentials(creds),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy())
	to := discovery.Target(program)
	if address != "" {
		to = "passthrough:///" + address
	}
	conn, err := grpc.NewClient(to, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("%s at %q: %w", program, to, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{conn: conn, program: program, stop: cancel, done: make(chan struct{})}
	l.gone()
	go l.follow(ctx)
	return l, nil
}

func (l *link) follow(ctx context.Context) {
	defer close(l.done)
	for {
		state := l.conn.GetState()
		switch state {
		case connectivity.Ready:
			l.lost.Store(nil)
		case connectivity.Idle:
			l.gone()
			l.conn.Connect()
		default:
			l.gone()
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// gone notes when the connection went away.
func (l *link) gone() {
	now := time.Now()
	l.lost.CompareAndSwap(nil, &now)
}

// await returns nil as soon as the backend is there, UNAVAILABLE if it has been away for longer than hold, and ctx's
// error.
func (l *link) await(ctx context.Context) error {
	first := time.Now()
	for {
		state := l.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return l.away()
		}
		since := first // the loss is so fresh that follow has not seen it
		if lost := l.lost.Load(); lost != nil {
			since = *lost
		}
		if time.Since(since) >= hold {
			return l.away()
		}
		wait, cancel := context.WithDeadline(ctx, since.Add(hold))
		l.conn.WaitForStateChange(wait, state)
		cancel()
		if err := ctx.Err(); err != nil {
			return rpcerr.From(err)
		}
	}
}

// back waits until the backend is there again; false if the link was closed.
func (l *link) back() bool {
	for {
		switch state := l.conn.GetState(); state {
		case connectivity.Ready:
			return true
		case connectivity.Shutdown:
			return false
		default:
			l.conn.WaitForStateChange(context.Background(), state)
		}
	}
}

// ready reports whether the backend is there now.
func (l *link) ready() bool { return l.conn.GetState() == connectivity.Ready }

func (l *link) away() error {
	return rpcerr.Unavailable(l.program + " cannot be reached")
}

func (l *link) close() {
	l.stop()
	l.conn.Close()
	<-l.done
}
