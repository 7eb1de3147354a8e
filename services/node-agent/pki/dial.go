package pki

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windlass-dev/windlass/services/node-agent/gateway"
)

// Dial returns the agent's connection to the cluster, which follows the files of the store. It connects with the first
// call.
func (s *Store) Dial(log *slog.Logger) (*gateway.Conn, error) {
	endpoints, err := s.Endpoints()
	if err != nil {
		return nil, err
	}
	return gateway.New(endpoints, func(endpoint string) (*grpc.ClientConn, error) {
		return Connect(endpoint, s.Files().ClientTLS)
	}, log)
}

// maxMessage is how many bytes an agent takes as one message: a service of some 200,000 pods.
const maxMessage = 32 << 20

// Connect returns a connection of an agent to an endpoint; settings makes the TLS settings for a host. The endpoint
// must be the gateway, by the name and address in its certificate, so that no other holder of a certificate can take
// its place.
func Connect(endpoint string, settings func(host string) (*tls.Config, error)) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	cfg, err := settings(host)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithTransportCredentials(credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(topology.Gateway)))),
		dial.Reconnect(firstPause, longPause, 5*time.Second), dial.KeepAlive(dial.PingTimeout),
		// The pods of one service are one message.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// An agent says little: small buffers.
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
}
