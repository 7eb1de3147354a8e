package serve

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	_ "google.golang.org/grpc/encoding/gzip" // without it compressed calls get UNIMPLEMENTED
	"google.golang.org/grpc/keepalive"
)

// Windows are fixed: growing ones let readers that stall take gigabytes.
const (
	streamWindow = 256 << 10
	connWindow   = 1 << 20
	maxMessage   = 16 << 20
	maxHeaders   = 64 << 10
	maxStreams   = 1000
	readBuffer   = 8 << 10
)

const (
	handshakeTimeout = 10 * time.Second
	stopGrace        = 2 * time.Second
	// A sibling that restarts is back within a tenth of a second; the default back-off would wait for seconds.
	dialBackoffBase = 50 * time.Millisecond
	dialBackoffMax  = 250 * time.Millisecond
	dialTimeout     = 2 * time.Second
	// Clients ping this often, so a peer that is stopped is noticed after 15 s, also without a call.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// Servers must allow more than that, or streams die as too many pings.
	pingAllowed = 5 * time.Second
)

func serverOptions(connectionAge time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAllowed, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: pingEvery, Timeout: pingTimeout,
			// Without a grace: new calls go to a new connection, with the client's newest certificate, and open streams live on.
			MaxConnectionAge: connectionAge,
		}),
	}
}

func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: dialBackoffBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: dialBackoffMax},
			MinConnectTimeout: dialTimeout,
		}),
	}
}
