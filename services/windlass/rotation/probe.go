// Package rotation carries out the rotation of an authority on this host: it probes whether programs and members of
// etcd use what the disk says, and follows the rotation of a cluster on hosts. When the next step is taken is decided
// elsewhere.
package rotation

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

// probePatience is for a member to answer.
const probePatience = 2 * time.Second

// ProbeProgram calls a program of c on a new connection, by the authority that the rotation of name leads to.
func ProbeProgram(ctx context.Context, c *cluster.Cluster, name, program string) error {
	address := c.Address(program)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	var cfg *tls.Config
	if cfg, err = c.ProbeTLS(name, host); err != nil {
		return err
	}
	cfg = identity.WithURI(cfg, identity.ServiceURI(program))
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// ProbeMember connects to a member's client or peer port and waits for one byte of an answer: only then has the member
// accepted the certificate.
func ProbeMember(ctx context.Context, c *cluster.Cluster, name string, m *etcdv1.Member) error {
	urls, protocol, hello := m.GetClientUrls(), "h2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	if name == topology.EtcdPeerAuthority {
		urls, protocol, hello = m.GetPeerUrls(), "http/1.1", "GET / HTTP/1.0\r\n\r\n"
	}
	if len(urls) == 0 {
		return errors.New("its address is not known yet")
	}
	u, err := url.Parse(urls[0])
	if err != nil {
		return err
	}
	cfg, err := c.ProbeTLS(name, u.Hostname())
	if err != nil {
		return err
	}
	cfg.NextProtos = []string{protocol}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probePatience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(hello)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
