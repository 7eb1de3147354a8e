package split_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/split"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server struct {
	*split.Splitter
	address  string
	failures chan error
	pool     *tls.Config
	ca       *identity.Authority
}

func (s *server) certificate(t *testing.T, user string) tls.Certificate {
	t.Helper()
	cert, key, err := s.ca.Issue(identity.Request{
		CommonName: user, URI: identity.UserURI(user), Client: true,
		Lifetime: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func serverOf(t *testing.T) *server { return limited(t, split.Limits{}) }

func limited(t *testing.T, limits split.Limits) *server {
	t.Helper()
	authority, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Issue(identity.Request{
		CommonName: "gateway", URI: identity.ServiceURI("gateway"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"crt": cert, "key": key, "ca": authority.PEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := identity.Files{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
	settings, err := files.ServerTLS(tls.VerifyClientCertIfGiven, "h2", "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{
		address: inner.Addr().String(), failures: make(chan error, 100), ca: authority,
		pool: &tls.Config{RootCAs: authority.Pool(), ClientSessionCache: tls.NewLRUClientSessionCache(4)},
	}
	validity, err := identity.OpenValidity("")
	if err != nil {
		t.Fatal(err)
	}
	s.Splitter = split.New(inner, split.Config{
		TLS: settings, Limits: limits, Valid: validity, Failed: func(_ net.Addr, err error) { s.failures <- err },
		Log: slog.New(slog.DiscardHandler),
		User: func(state tls.ConnectionState) string {
			if len(state.PeerCertificates) == 0 {
				return ""
			}
			return state.PeerCertificates[0].Subject.CommonName
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return s
}

// offer connects with protocols and reads one byte, so that a session ticket can come.
func (s *server) offer(t *testing.T, protocols ...string) (tls.ConnectionState, error) {
	t.Helper()
	settings := s.pool.Clone()
	settings.NextProtos = protocols
	conn, err := tls.Dial("tcp", s.address, settings)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return tls.ConnectionState{}, err
	}
	return conn.ConnectionState(), nil
}

// answer accepts and sends a byte until the lane is closed.
func answer(wg *sync.WaitGroup, l net.Listener, accepted chan<- string, name string) {
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte{1}) //nolint:errcheck
			conn.Close()
			accepted <- name
		}
	})
}

func TestConnectionsAreSortedByWhatTheClientOffers(t *testing.T) {
	s := serverOf(t)
	accepted := make(chan string, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.GRPC().Close()
	defer s.HTTP().Close()
	answer(&wg, s.GRPC(), accepted, "grpc")
	answer(&wg, s.HTTP(), accepted, "http")
	for _, c := range []struct {
		name       string
		offered    []string
		lane       string
		negotiated string
	}{
		{"h2 alone is gRPC", []string{"h2"}, "grpc", "h2"},
		{"h2 with another unknown protocol is gRPC", []string{"grpc-exp", "h2"}, "grpc", "h2"},
		{"h2 and HTTP/1.1 is net/http, over h2", []string{"h2", "http/1.1"}, "http", "h2"},
		{"HTTP/1.1 alone is net/http", []string{"http/1.1"}, "http", "http/1.1"},
		{"nothing is net/http", nil, "http", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, err := s.offer(t, c.offered...)
			if err != nil {
				t.Fatal(err)
			}
			if lane := <-accepted; lane != c.lane || state.NegotiatedProtocol != c.negotiated {
				t.Errorf("lane %s over %q, want %s over %q", lane, state.NegotiatedProtocol, c.lane, c.negotiated)
			}
		})
	}
}

func TestSessionsResume(t *testing.T) {
	s := serverOf(t)
	accepted := make(chan string, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.HTTP().Close()
	answer(&wg, s.HTTP(), accepted, "http")
	for i := range 2 {
		state, err := s.offer(t, "http/1.1")
		if err != nil || state.DidResume != (i == 1) {
			t.Errorf("connection %d resumed: %v, %v", i, state.DidResume, err)
		}
	}
}

func TestClosingOneLaneLeavesTheOther(t *testing.T) {
	s := serverOf(t)
	accepted := make(chan string, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.HTTP().Close()
	answer(&wg, s.HTTP(), accepted, "http")
	s.GRPC().Close()
	if _, err := s.GRPC().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed lane = %v", err)
	}
	if _, err := s.offer(t, "h2"); err == nil {
		t.Error("a closed lane took a connection")
	}
	if _, err := s.offer(t, "http/1.1"); err != nil {
		t.Errorf("the other lane: %v", err)
	}
}

func TestAFailedHandshakeIsTold(t *testing.T) {
	s := serverOf(t)
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-s.failures; err == nil {
		t.Error("no reason was reported")
	}
}

// hold accepts on a lane and keeps what it accepts open until the client closes it.
func hold(wg *sync.WaitGroup, l net.Listener) {
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				conn.Write([]byte{1})      //nolint:errcheck
				conn.Read(make([]byte, 1)) //nolint:errcheck
			})
		}
	})
}

// connect returns a connection that got its byte, or the error of one that was closed.
func (s *server) connect(t *testing.T, settings *tls.Config) (net.Conn, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", s.address, settings)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		conn.Close()
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	return conn, nil
}

func TestCallersWithCertificatesComeThroughWhereOthersDoNot(t *testing.T) {
	s := limited(t, split.Limits{Anonymous: 8, PerAddress: 100, PerUser: 3})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { s.HTTP().Close() })
	hold(&wg, s.HTTP())
	var open []net.Conn
	for i := range 10 {
		conn, err := s.connect(t, s.pool)
		if (err == nil) != (i < 6) { // three quarters of the share
			t.Errorf("connection %d: %v", i, err)
		}
		if conn != nil {
			open = append(open, conn)
		}
	}
	// Clients that never begin their handshake hold two places, and the oldest gives way.
	for range 5 {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	known := s.pool.Clone()
	known.ClientSessionCache = nil
	known.Certificates = []tls.Certificate{s.certificate(t, "alice")}
	for i := range 4 {
		if _, err := s.connect(t, known); (err == nil) != (i < 3) {
			t.Errorf("connection %d with a certificate: %v", i, err)
		}
	}
	// A token makes a connection known, and there is room for another one.
	s.Known(open[0].LocalAddr().String(), "bob")
	if _, err := s.connect(t, s.pool); err != nil {
		t.Errorf("after a caller was known: %v", err)
	}
	if shaking, anonymous, knowns := s.Counts(); shaking > 2 || anonymous != 6 || knowns != 4 {
		t.Errorf("%d handshakes, %d anonymous and %d known connections, want at most 2, 6 and 4", shaking, anonymous, knowns)
	}
	for _, conn := range open {
		conn.Close()
	}
	for {
		if _, anonymous, _ := s.Counts(); anonymous == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOneAddressDoesNotHoldTheShare(t *testing.T) {
	s := limited(t, split.Limits{Anonymous: 40, PerAddress: 2})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { s.HTTP().Close() })
	hold(&wg, s.HTTP())
	for i := range 4 {
		if _, err := s.connect(t, s.pool); (err == nil) != (i < 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

func TestStrikesEndAConnection(t *testing.T) {
	s := serverOf(t)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { s.HTTP().Close() })
	hold(&wg, s.HTTP())
	conn, err := s.connect(t, s.pool)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		s.Strike(conn.LocalAddr().String())
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
}

func TestWhoStaysUnknownLosesTheConnection(t *testing.T) {
	s := limited(t, split.Limits{Unknown: 200 * time.Millisecond})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { s.HTTP().Close() })
	hold(&wg, s.HTTP())
	for begun := time.Now(); ; { // on a slow host a connection may end before its caller is known
		known, err := s.connect(t, s.pool)
		if err == nil {
			s.Known(known.LocalAddr().String(), "bob")
		}
		if _, _, knowns := s.Counts(); knowns == 1 {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("no connection becomes known: %v", err)
		}
	}
	if unknown, err := s.connect(t, s.pool); err == nil {
		_ = unknown.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := unknown.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that stays unknown still has its connection: %v", err)
		}
	}
	if shaking, anonymous, knowns := s.Counts(); shaking != 0 || anonymous != 0 || knowns != 1 {
		t.Errorf("%d handshakes, %d anonymous and %d known connections", shaking, anonymous, knowns)
	}
}
