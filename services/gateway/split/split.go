// Package split sorts the connections of one TLS listener by what the client offered in its handshake: a client that
// speaks h2 and nothing else is a gRPC client and gets gRPC's own transport, everybody else gets net/http. The
// handshake is finished here, so both lanes hand out a *tls.Conn whose client certificate, if there is one, is
// verified.
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
	user   func(tls.ConnectionState) string
	failed func(net.Addr, error)
	valid  *identity.Validity
	door   *door
	log    *slog.Logger
	grpc   *lane
	http   *lane
}

// Config is what a Splitter is made of.
type Config struct {
	TLS    *tls.Config // of the server; the protocols are set by New
	Limits Limits
	// User returns the user that a client's certificate names; empty without one.
	User func(tls.ConnectionState) string
	// Valid closes a connection soon after its certificate is no longer good.
	Valid *identity.Validity
	// Failed is called for every handshake that failed, with the client's address; may be nil. Concurrent calls happen.
	Failed func(net.Addr, error)
	// Closed is called for every connection that the limits end; may be nil. Concurrent calls happen.
	Closed func(reason string)
	Log    *slog.Logger
}

// New makes a splitter of inner, which it owns.
func New(inner net.Listener, c Config) *Splitter {
	if c.Failed == nil {
		c.Failed = func(net.Addr, error) {}
	}
	if c.Closed == nil {
		c.Closed = func(string) {}
	}
	return &Splitter{
		inner:  inner,
		config: sorting(c.TLS),
		user:   c.User,
		failed: c.Failed,
		valid:  c.Valid,
		door:   newDoor(c.Limits, c.Closed),
		log:    c.Log,
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
			o := s.door.enter(conn)
			handshakes.Go(func() { s.sort(shaking, o) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of file descriptors, mostly: closed connections free some.
			s.log.WarnContext(ctx, "connection not accepted", "error", err)
			pause(ctx, 20*time.Millisecond)
		}
	}
}

func (s *Splitter) sort(ctx context.Context, o *offer) {
	conn := tls.Server(o, s.config)
	handshake, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := s.door.shake(handshake, conn, o); err != nil {
		o.Close()
		s.failed(o.RemoteAddr(), err)
		return
	}
	if !s.door.admit(o, s.user(conn.ConnectionState())) {
		s.door.closed("full")
		o.Close()
		return
	}
	if state := conn.ConnectionState(); len(state.VerifiedChains) > 0 {
		o.follow(s.valid.CloseConn(o.Conn, state.PeerCertificates[0]))
	}
	target := s.http
	if o.onlyH2 {
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
