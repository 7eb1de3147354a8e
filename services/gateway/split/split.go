// Package split sorts the connections of one TLS listener by what the client offered in its handshake: a client that
// speaks h2 and nothing else is a gRPC client and gets gRPC's own transport, everybody else gets net/http. The handshake
// is finished here, so both lanes hand out a *tls.Conn whose client certificate, if there is one, is verified.
//
// A REST client that offers h2 only is taken for a gRPC client; that is the limit of this way.
package split

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
)

// handshakeTime is what a client has for its handshake; a local one takes 2 ms.
const handshakeTime = 5 * time.Second

// Splitter accepts connections and sorts them. Run must be called once; both lanes must be served.
type Splitter struct {
	inner  net.Listener
	config *tls.Config
	failed func(net.Addr, error)
	valid  *identity.Validity
	log    *slog.Logger
	grpc   *lane
	http   *lane
}

// New makes a splitter of inner, which it owns. config is the server's TLS configuration; its protocols are set here.
// failed is told of every handshake that failed, with the client's address; it may be nil and may be called concurrently. A connection is
// closed soon after its certificate is no longer good by valid.
func New(inner net.Listener, config *tls.Config, failed func(net.Addr, error), valid *identity.Validity, log *slog.Logger) *Splitter {
	if failed == nil {
		failed = func(net.Addr, error) {}
	}
	return &Splitter{
		inner:  inner,
		config: sorting(config),
		failed: failed,
		valid:  valid,
		log:    log,
		grpc:   newLane(inner.Addr()),
		http:   newLane(inner.Addr()),
	}
}

// GRPC is the listener of the clients that offered h2 alone. Its connections are *tls.Conn after the handshake.
func (s *Splitter) GRPC() net.Listener { return s.grpc }

// HTTP is the listener of everybody else. Its connections are *tls.Conn after the handshake.
func (s *Splitter) HTTP() net.Listener { return s.http }

// Run accepts until ctx ends, then closes the listener and both lanes. It returns nil then, or the listener's error.
// Connections that a lane has handed out are its server's to close.
func (s *Splitter) Run(ctx context.Context) error {
	var handshakes sync.WaitGroup
	defer handshakes.Wait()
	defer s.grpc.Close()
	defer s.http.Close()
	stop := context.AfterFunc(ctx, func() { s.inner.Close() })
	defer stop()
	defer s.inner.Close()

	shaking, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := s.inner.Accept()
		switch {
		case err == nil:
			handshakes.Go(func() { s.sort(shaking, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of file descriptors, mostly: what closes meanwhile makes room.
			s.log.WarnContext(ctx, "connection not accepted", "error", err)
			pause(ctx, 20*time.Millisecond)
		}
	}
}

func (s *Splitter) sort(ctx context.Context, raw net.Conn) {
	noted := &offer{Conn: raw}
	conn := tls.Server(noted, s.config)
	handshake, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := conn.HandshakeContext(handshake); err != nil {
		raw.Close()
		s.failed(raw.RemoteAddr(), err)
		return
	}
	if state := conn.ConnectionState(); len(state.VerifiedChains) > 0 {
		noted.follow(s.valid.CloseConn(raw, state.PeerCertificates[0]))
	}
	target := s.http
	if noted.onlyH2 {
		target = s.grpc
	}
	target.hand(conn)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// offer is a connection that remembers what its client offered, and until when its certificate is followed.
type offer struct {
	net.Conn
	onlyH2 bool

	mu     sync.Mutex
	closed bool
	stop   func() // ends the following of the certificate; nil if there is none
}

func (o *offer) follow(stop func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		stop()
		return
	}
	o.stop = stop
}

func (o *offer) Close() error {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
		o.stop = nil
	}
	o.mu.Unlock()
	return o.Conn.Close()
}

// sorting returns a configuration that notes each client's offer in its connection. The configuration that is then used
// is one object for all connections until base changes it, because session resumption needs that.
func sorting(base *tls.Config) *tls.Config {
	fixed := withProtocols(base)
	inner := base.GetConfigForClient
	var mu sync.Mutex
	var last, lastWith *tls.Config
	current := func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if inner == nil {
			return nil, nil
		}
		c, err := inner(hello)
		if c == nil || err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if c != last {
			last, lastWith = c, withProtocols(c)
		}
		return lastWith, nil
	}
	fixed.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if noted, ok := hello.Conn.(*offer); ok {
			noted.onlyH2 = onlyH2(hello.SupportedProtos)
		}
		return current(hello)
	}
	return fixed
}

func withProtocols(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

func onlyH2(offered []string) bool {
	h2 := false
	for _, p := range offered {
		switch p {
		case "h2":
			h2 = true
		case "http/1.1", "http/1.0":
			return false
		}
	}
	return h2
}
