package access

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// probePatience bounds the probe of all programs.
const probePatience = 10 * time.Second

// probePrograms returns which program of this host does not have a policy or tokens in force yet; empty if all have.
func probePrograms(ctx context.Context, c *cluster.Cluster, policyHash, tokensHash string) string {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	for _, program := range c.Programs() {
		has, err := inForce(ctx, c, program)
		if err != nil {
			return fmt.Sprintf("%s does not answer: %s", program, status.Convert(err).Message())
		}
		if pending := behind(program, has, policyHash, tokensHash); pending != "" {
			return pending
		}
	}
	return ""
}

// behind says what a program does not have in force, by the headers of its answer to a health check.
func behind(program string, has metadata.MD, policyHash, tokensHash string) string {
	type part struct{ header, hash, name string }
	parts := []part{{serve.PolicyHeader, policyHash, policyName}}
	if program == topology.Gateway {
		parts = append(parts, part{serve.TokensHeader, tokensHash, tokensName})
	}
	for _, p := range parts {
		switch got := has.Get(p.header); {
		case len(got) == 0:
			return program + " does not report what it has in force: it is of an earlier version"
		case got[0] != p.hash:
			return fmt.Sprintf("%s has not loaded %s yet", program, p.name)
		}
	}
	return ""
}

// inForce returns what a program of this host says that it has in force.
func inForce(ctx context.Context, c *cluster.Cluster, program string) (metadata.MD, error) {
	address := c.Address(program)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var cfg *tls.Config
	if cfg, err = c.HostFiles().ClientTLS(host); err != nil {
		return nil, err
	}
	cfg = identity.WithURI(cfg, identity.ServiceURI(program))
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var header metadata.MD
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header))
	return header, err
}
