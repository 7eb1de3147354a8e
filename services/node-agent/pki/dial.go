package pki

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

var errNoEndpoint = errors.New("no endpoint of the cluster is known")

// DialStranger returns a connection for joining: all that is known of the cluster is the hash of its authority.
func DialStranger(endpoints []string, authorityHash string) (*grpc.ClientConn, error) {
	return dial(endpoints, func(host string) (*tls.Config, error) { return identity.PinnedTLS(authorityHash, host), nil })
}

// Dial returns the agent's connection to the cluster, which follows the files of the store. It connects with the first call.
func (s *Store) Dial(endpoints []string) (*grpc.ClientConn, error) {
	return dial(endpoints, s.Files().ClientTLS)
}

// dial takes any of the endpoints. Each must be the gateway, so that no other holder of a certificate can stand in for it.
func dial(endpoints []string, settings func(host string) (*tls.Config, error)) (*grpc.ClientConn, error) {
	if len(endpoints) == 0 {
		return nil, errNoEndpoint
	}
	var addresses []resolver.Address
	for _, e := range endpoints {
		host, _, err := net.SplitHostPort(e)
		if err != nil {
			return nil, fmt.Errorf("endpoint %q: %w", e, err)
		}
		addresses = append(addresses, resolver.Address{Addr: e, ServerName: host})
	}
	host := addresses[0].ServerName
	if len(addresses) > 1 {
		host = "" // each address is checked against its own name
	}
	cfg, err := settings(host)
	if err != nil {
		return nil, err
	}
	r := manual.NewBuilderWithScheme("cluster")
	r.InitialState(resolver.State{Addresses: addresses})
	return grpc.NewClient("cluster:///"+endpoints[0],
		grpc.WithResolvers(r),
		grpc.WithTransportCredentials(credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI("gateway")))),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: longPause},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		// An agent says little: small buffers.
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
}
