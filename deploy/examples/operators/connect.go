package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// target is the address of a cluster and the credentials for it.
type target struct{ server, ca, cert, key string }

// dial returns a connection to the cluster. It connects on the first call and reconnects whenever the connection is
// lost.
func (t target) dial() (*grpc.ClientConn, error) {
	cfg, err := t.tls()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(t.server,
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		// A gateway that disappears without closing the connection is noticed after 15 seconds.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}))
}

func (t target) tls() (*tls.Config, error) {
	ca, err := os.ReadFile(t.ca)
	if err != nil {
		return nil, fmt.Errorf("--cacert: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("--cacert %s: contains no certificate", t.ca)
	}
	if _, err := tls.LoadX509KeyPair(t.cert, t.key); err != nil {
		return nil, fmt.Errorf("--cert, --key: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    roots,
		// Read for each connection, so that a renewed certificate is used without a restart.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.cert, t.key)
			return &pair, err
		},
	}, nil
}
