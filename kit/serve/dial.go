package serve

import (
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/dial"
)

// Dial returns a connection to another service, at the address in Config.Peers or, on a host of several, at those that
// its processes announce. It connects at the first call, fails calls immediately while the service is unavailable, and
// reconnects at least four times a second. The server's certificate must name both the address and the service. The
// process closes the connection when it ends.
func (p *Process) Dial(peer string) (grpc.ClientConnInterface, error) {
	address := p.cfg.Peers[peer]
	switch {
	case address == "" && p.Directory == nil:
		return nil, fmt.Errorf("dial %q: no address of that service was given", peer)
	case address == "":
		options, err := p.dialOptions(peer)
		if err != nil {
			return nil, err
		}
		conn, err := p.Directory.Dial(peer, p.cfg.Host, options...)
		if err != nil {
			return nil, err
		}
		p.onClose(conn.Close)
		return conn, nil
	}
	conn, err := p.DialAt(peer, address)
	if err != nil {
		return nil, err
	}
	p.onClose(func() error {
		if err := conn.Close(); err != nil && status.Code(err) != codes.Canceled {
			return err
		}
		return nil
	})
	return conn, nil
}

// DialAt is Dial for the process of a service at one address, such as one on another host. The caller closes the
// connection.
func (p *Process) DialAt(peer, address string) (*grpc.ClientConn, error) {
	options, err := p.dialOptions(peer)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", peer, err)
	}
	return conn, nil
}

func (p *Process) dialOptions(peer string) ([]grpc.DialOption, error) {
	creds, err := p.cfg.files().ServiceCredentials(peer)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", peer, err)
	}
	options := append(dial.Sibling(2*time.Second), grpc.WithTransportCredentials(creds))
	return append(options, p.traces.Client()...), nil
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
