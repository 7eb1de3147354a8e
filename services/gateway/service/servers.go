package service

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // or compressed calls get UNIMPLEMENTED
	"google.golang.org/grpc/keepalive"

	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/authn"
	"github.com/windlass-dev/windlass/services/gateway/proxy"
	"github.com/windlass-dev/windlass/services/gateway/rest"
	"github.com/windlass-dev/windlass/services/gateway/split"
)

const (
	// grace is what running calls have to end after the signal to stop.
	grace = 2 * time.Second
	// streamsPerConn is what one client may have open at a time; one more waits, it is not refused.
	streamsPerConn = 1000
	headerBytes    = 64 << 10
	connIdle       = 2 * time.Minute
)

func newGRPC(calls grpc.StreamHandler, auth *authn.Authenticator, r rooms, m *metrics, age time.Duration,
	log *slog.Logger, more ...grpc.ServerOption,
) *grpc.Server {
	panics := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		log.ErrorContext(ctx, "panic", "error", p)
		return rpcerr.From(errPanic)
	})
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(split.Credentials()),
		grpc.ForceServerCodecV2(proxy.Codec()),
		grpc.UnknownServiceHandler(calls),
		grpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(panics), m.stream, r.strikeStream, auth.Stream,
			r.stream),
		grpc.StaticStreamWindowSize(dial.StreamWindow),
		grpc.StaticConnWindowSize(dial.ConnWindow),
		grpc.ReadBufferSize(8 << 10),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.MaxRecvMsgSize(rest.MaxBody),
		grpc.MaxSendMsgSize(dial.MaxMessage),
		grpc.MaxConcurrentStreams(streamsPerConn),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
			// Without a grace for the age: new calls go to a new connection, open streams live on.
			MaxConnectionIdle: connIdle, MaxConnectionAge: age,
		}),
	}, more...)...)
}

// named reports whether a host is an IP address, or a name of the certificate that settings show: only these can lead a
// client here that verifies certificates.
func named(settings *tls.Config) func(host string) bool {
	return func(host string) bool {
		if _, err := netip.ParseAddr(host); err == nil {
			return true
		}
		now, err := settings.GetConfigForClient(nil)
		return err == nil && now.Certificates[0].Leaf.VerifyHostname(host) == nil
	}
}

var errPanic = errors.New("panic")

func newHTTP(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       connIdle,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          streamsPerConn,
			MaxReceiveBufferPerStream:     dial.StreamWindow,
			MaxReceiveBufferPerConnection: dial.ConnWindow,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   10 * time.Second,
		},
	}
}

type bornKey struct{}

// aging has a server ask its clients to connect again once a connection is older than age: an answer then ends the
// connection, or over HTTP/2 announces its end. 0 means never.
func aging(s *http.Server, age time.Duration) *http.Server {
	if age <= 0 {
		return s
	}
	s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, bornKey{}, time.Now())
	}
	inner := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if born, ok := r.Context().Value(bornKey{}).(time.Time); ok && time.Since(born) > age {
			w.Header().Set("Connection", "close")
		}
		inner.ServeHTTP(w, r)
	})
	return s
}

// serveGRPC serves a lane until ctx ends, then gives running calls the grace.
func serveGRPC(ctx context.Context, s *grpc.Server, l net.Listener) error {
	if err := untilDone(ctx, func() error { return s.Serve(l) }); err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		s.Stop()
		<-stopped
	}
	return nil
}

// serveHTTP serves a lane until ctx ends, then gives running requests the grace.
func serveHTTP(ctx context.Context, s *http.Server, l net.Listener) error {
	defer l.Close()
	if err := untilDone(ctx, func() error { return s.Serve(l) }); err != nil {
		return err
	}
	end, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if s.Shutdown(end) != nil {
		s.Close() //nolint:errcheck // only what was running is left
	}
	return nil
}

// untilDone runs serve in the background and returns nil when ctx ends, or serve's error if that comes first. Once ctx
// has ended, serve's error means nothing: its listener is closed at the same time.
func untilDone(ctx context.Context, serve func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
		if ctx.Err() != nil {
			return nil
		}
		return err
	case <-ctx.Done():
		return nil
	}
}
