// Package dial is the settings of gRPC connections that all clients of Windlass share, and the limits that its servers
// have in common with them.
package dial

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// Limits of connections between services. Windows are fixed: growing ones let readers that stall take gigabytes.
const (
	StreamWindow = 256 << 10
	ConnWindow   = 1 << 20
	MaxMessage   = 16 << 20
	MaxHeaders   = 64 << 10
	ReadBuffer   = 8 << 10
)

const (
	// PingEvery is how often clients ping, so that a peer that is stopped is noticed without a call. It is the least that
	// grpc-go allows a client.
	PingEvery = 10 * time.Second
	// PingTimeout is how long the answer to a ping may take before the connection is given up.
	PingTimeout = 5 * time.Second
)

// Reconnect sets how a lost connection is opened again: at first after about first, then ever later up to most, each
// attempt with at least attempt to succeed. The default of gRPC grows to two minutes.
func Reconnect(first, most, attempt time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: first, Multiplier: 1.6, Jitter: 0.2, MaxDelay: most},
		MinConnectTimeout: attempt,
	})
}

// KeepAlive has a peer that does not answer pings in time noticed, also while there is no call.
func KeepAlive(timeout time.Duration) grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{
		Time: PingEvery, Timeout: timeout, PermitWithoutStream: true,
	})
}

// Sibling returns the settings of a connection from one service to another. A sibling that restarts is back within a
// tenth of a second.
func Sibling(attempt time.Duration) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(StreamWindow),
		grpc.WithStaticConnWindowSize(ConnWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithMaxHeaderListSize(MaxHeaders),
		grpc.WithReadBufferSize(ReadBuffer),
		KeepAlive(PingTimeout),
		Reconnect(50*time.Millisecond, 250*time.Millisecond, attempt),
	}
}
