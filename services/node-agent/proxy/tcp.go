package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

const (
	// dialPatience is how long one pod has to take a connection, and allPatience all of those that are tried.
	dialPatience, allPatience = 3 * time.Second, 10 * time.Second
	// firstAccept and longAccept bound the pause after a connection could not be taken: this process has too many files
	// open.
	firstAccept, longAccept = 5 * time.Millisecond, time.Second
)

// keepAlive is for both sides of a connection: that of a client or a pod whose host is gone ends, and gives back its
// slot, a minute after the last sign of life. A connection that is only idle lasts, as in Kubernetes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// accept leads the connections to l until it is closed.
func (o *port) accept(ctx context.Context, l *net.TCPListener, work *sync.WaitGroup) {
	for again := backoff.New(firstAccept, longAccept); ; {
		c, err := l.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				reset(c)
			}
			return
		case err != nil:
			again.Wait(ctx)
		case !o.take(ctx):
			reset(c)
		default:
			again.Reset()
			work.Go(func() {
				defer o.slots.give()
				o.lead(ctx, c)
			})
		}
	}
}

// lead leads one connection to a pod until it ends. Without a pod that takes it, it is reset.
func (o *port) lead(ctx context.Context, c *net.TCPConn) {
	source := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	f := o.connect(ctx, c, source)
	if f == nil {
		reset(c)
		return
	}
	defer o.remove(f)
	f.copy()
}

// connect returns a connection to the first pod that takes it, nil if none does.
func (o *port) connect(ctx context.Context, c *net.TCPConn, source netip.Addr) *pair {
	ctx, cancel := context.WithTimeout(ctx, allPatience)
	defer cancel()
	for _, e := range o.choose(source) {
		to, err := dial(ctx, e)
		if err != nil {
			continue
		}
		f := &pair{c, to}
		if o.add(f, source, e.Pod) {
			return f
		}
		reset(to) // the pod has left the service
	}
	return nil
}

func dial(ctx context.Context, e plan.Endpoint) (*net.TCPConn, error) {
	var d net.Dialer
	d.Timeout, d.KeepAliveConfig = dialPatience, keepAlive
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", e.Address.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// pair is a connection of a client and the one to a pod.
type pair struct{ client, pod *net.TCPConn }

// copy copies both ways until both have ended, or one broke off. The end of one way is passed on, so that a client that
// has sent everything still gets its answer.
func (f *pair) copy() {
	var back sync.WaitGroup
	back.Go(func() { f.pass(f.client, f.pod) })
	f.pass(f.pod, f.client)
	back.Wait()
	_ = f.client.Close()
	_ = f.pod.Close()
}

// pass copies one way; the kernel does so without this process.
func (f *pair) pass(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		f.abort()
		return
	}
	_ = to.CloseWrite()
}

// abort implements flow: both sides see a reset.
func (f *pair) abort() {
	reset(f.client)
	reset(f.pod)
}

// reset ends a connection at once: the other side reads an error, not an end that it may take for a complete answer.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
