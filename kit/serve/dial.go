package serve

import (
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/dial"
	"github.com/windlass-dev/windlass/kit/identity"
)

// Dial returns a connection to another service, whose address is in Config.Peers. It connects at the first call, fails
// calls immediately while the service is unavailable, and reconnects at least four times a second. The server's
// certificate must name both the address and the service. The process closes the connection when it ends.
func (p *Process) Dial(peer string) (*grpc.ClientConn, error) {
	address, ok := p.cfg.Peers[peer]
	if !ok {
		return nil, fmt.Errorf("dial %q: no address of that service was given", peer)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", peer, err)
	}
	cfg, err := p.cfg.files().ClientTLS(host)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", peer, err)
	}
	creds := credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI(peer)))
	options := append(dial.Sibling(2*time.Second), grpc.WithTransportCredentials(creds))
	conn, err := grpc.NewClient(address, append(options, p.traces.Client()...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", peer, err)
	}
	p.onClose(func() error {
		if err := conn.Close(); err != nil && status.Code(err) != codes.Canceled {
			return err
		}
		return nil
	})
	return conn, nil
}

func (p *Process) serverCredentials() (credentials.TransportCredentials, error) {
	auth := tls.RequireAndVerifyClientCert
	if p.cfg.AdmitStrangers {
		auth = tls.VerifyClientCertIfGiven
	}
	cfg, err := p.cfg.files().ServerTLS(auth)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(cfg), nil
}
