package serve

import (
	"time"

	"github.com/windlass-dev/windlass/kit/dial"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // without it compressed calls get UNIMPLEMENTED
	"google.golang.org/grpc/keepalive"
)

const maxStreams = 1000

const (
	handshakeTimeout = 10 * time.Second
	stopGrace        = 2 * time.Second
	// Servers must allow more pings than clients send, or streams die as too many pings.
	pingAllowed = 5 * time.Second
)

func serverOptions(connectionAge time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(dial.StreamWindow),
		grpc.StaticConnWindowSize(dial.ConnWindow),
		grpc.MaxRecvMsgSize(dial.MaxMessage),
		grpc.MaxSendMsgSize(dial.MaxMessage),
		grpc.MaxHeaderListSize(dial.MaxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(dial.ReadBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAllowed, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: dial.PingEvery, Timeout: dial.PingTimeout,
			// No grace period is set: new calls go to a new connection, with the client's newest certificate, and open streams
			// continue.
			MaxConnectionAge: connectionAge,
		}),
	}
}
