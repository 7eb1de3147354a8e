package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// checkEvery is the least time between two checks of the files: at most three calls of stat a second.
const checkEvery = time.Second

// Files names a certificate, its key and the authorities to trust. The settings made from it follow the files: they are
// checked during handshakes, at most once a second, and a change that cannot be read leaves the former one in force.
type Files struct{ Cert, Key, CA string }

// ServerTLS returns settings for a server, TLS 1.3 only. protos are the application protocols in order of preference;
// none means HTTP/2 alone. The server also shows its authority, so that a client which knows only its hash can
// recognize it (PinnedTLS).
func (f Files) ServerTLS(clientAuth tls.ClientAuthType, protos ...string) (*tls.Config, error) {
	if len(protos) == 0 {
		protos = []string{"h2"}
	}
	l := &live{files: f, clientAuth: clientAuth, protos: protos}
	if _, err := l.get(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := l.get()
			if err != nil {
				return nil, err
			}
			return m.server, nil
		},
	}, nil
}

// ClientTLS returns settings for a client, TLS 1.3 only. serverName is the DNS name or IP address that the server's
// certificate must hold. If it is empty, the dialer says it (gRPC, etcd's client and net/http take it from the
// address), and then the authorities are those of now; the client's own certificate follows its file all the same.
func (f Files) ClientTLS(serverName string) (*tls.Config, error) {
	l := &live{files: f}
	m, err := l.get()
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    m.pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, err := l.get()
			if err != nil {
				return nil, err
			}
			return m.leaf, nil
		},
	}
	if serverName != "" {
		// The check is made below, against the authorities of the moment: RootCAs cannot change.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = l.verifyServer(serverName)
	}
	return cfg, nil
}

// ClientCredentials returns credentials of a gRPC client that calls servers at several addresses, such as etcd's
// members: each must show a certificate of the host in its address. TLS 1.3 only. The authorities and the client's own
// certificate follow their files.
func (f Files) ClientCredentials() (credentials.TransportCredentials, error) {
	l := &live{files: f}
	m, err := l.get()
	if err != nil {
		return nil, err
	}
	return following{TransportCredentials: m.client, live: l}, nil
}

// ServiceCredentials returns credentials of a gRPC client that calls a service at several addresses: each must show a
// certificate of the host in its address and of the service. TLS 1.3 only. They follow the files.
func (f Files) ServiceCredentials(service string) (credentials.TransportCredentials, error) {
	creds, err := f.ClientCredentials()
	if err != nil {
		return nil, err
	}
	return named{TransportCredentials: creds, uri: ServiceURI(service)}, nil
}

// named are credentials that also demand that the other side's certificate names uri.
type named struct {
	credentials.TransportCredentials
	uri string
}

func (n named) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error,
) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	shown, ok := info.(credentials.TLSInfo)
	if !ok {
		return nil, nil, errors.Join(errors.New("the connection has no TLS"), conn.Close())
	}
	if err := demandURI(shown.State, n.uri); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, info, nil
}

func (n named) Clone() credentials.TransportCredentials { return n }

// Follow returns a function that returns the certificate with its key, and the authorities, as they are in the files:
// for what is signed and verified outside of TLS.
func (f Files) Follow() func() (*tls.Certificate, *x509.CertPool, error) {
	l := &live{files: f}
	return func() (*tls.Certificate, *x509.CertPool, error) {
		m, err := l.get()
		if err != nil {
			return nil, nil, err
		}
		return m.leaf, m.pool, nil
	}
}

// following are credentials that each handshake reads.
type following struct {
	credentials.TransportCredentials
	live *live
}

func (f following) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error,
) {
	m, err := f.live.get()
	if err != nil {
		return nil, nil, err
	}
	return m.client.ClientHandshake(ctx, authority, raw)
}

func (f following) Clone() credentials.TransportCredentials { return f }

// WithURI returns a copy of cfg that also demands that the other side's certificate names uri.
func WithURI(cfg *tls.Config, uri string) *tls.Config {
	cfg = cfg.Clone()
	before := cfg.VerifyConnection
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if before != nil {
			if err := before(state); err != nil {
				return err
			}
		}
		return demandURI(state, uri)
	}
	return cfg
}

func demandURI(state tls.ConnectionState, uri string) error {
	if len(state.PeerCertificates) > 0 {
		for _, u := range state.PeerCertificates[0].URIs {
			if u.String() == uri {
				return nil
			}
		}
	}
	return fmt.Errorf("the other side is not %s", uri)
}

// PinnedTLS returns settings for a client that knows nothing but the hash of the server's authority (Authority.Hash),
// or several that are separated by commas: it must be one of them. The server must be serverName, a DNS name or IP
// address, by a certificate of that authority.
func PinnedTLS(hash, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         serverName,
		InsecureSkipVerify: true, // replaced by VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			pool := x509.NewCertPool()
			for _, cert := range state.PeerCertificates {
				if cert.IsCA && slices.Contains(strings.Split(hash, ","), keyHash(cert)) {
					pool.AddCert(cert)
				}
			}
			return verify(state, pool, serverName)
		},
	}
}

func (l *live) verifyServer(name string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		m, err := l.get()
		if err != nil {
			return err
		}
		return verify(state, m.pool, name)
	}
}

func verify(state tls.ConnectionState, roots *x509.CertPool, name string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server showed no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, DNSName: name,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// live holds what was read last from files.
type live struct {
	files      Files
	clientAuth tls.ClientAuthType
	protos     []string

	mu      sync.Mutex
	checked time.Time
	stamps  [3]stamp
	current *material
}

// material is one consistent reading of the files.
type material struct {
	leaf   *tls.Certificate
	pool   *x509.CertPool
	server *tls.Config
	client credentials.TransportCredentials // of a client that takes the server's name from the address
}

// stamp identifies a version of a file without reading it.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.info != nil && o.info != nil && s.modified.Equal(o.modified) && s.size == o.size &&
		os.SameFile(s.info, o.info)
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{modified: info.ModTime(), size: info.Size(), info: info}, nil
}

// get returns the newest reading; an error only if there never was one.
func (l *live) get() (*material, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.current != nil && now.Sub(l.checked) < checkEvery {
		return l.current, nil
	}
	l.checked = now
	if err := l.reload(); err != nil && l.current == nil {
		return nil, err
	}
	return l.current, nil
}

func (l *live) reload() error {
	// Stamps are taken before reading: a file that changes in between is read again the next time.
	var stamps [3]stamp
	changed := false
	for i, path := range []string{l.files.Cert, l.files.Key, l.files.CA} {
		var err error
		if stamps[i], err = stampOf(path); err != nil {
			return err
		}
		changed = changed || !stamps[i].same(l.stamps[i])
	}
	if !changed {
		return nil
	}
	m, err := l.read()
	if err != nil {
		return err
	}
	l.current, l.stamps = m, stamps
	return nil
}

func (l *live) read() (*material, error) {
	leaf, err := tls.LoadX509KeyPair(l.files.Cert, l.files.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.files.Cert, err)
	}
	authorities, err := readCertificates(l.files.CA)
	if err != nil {
		return nil, err
	}
	m := &material{leaf: &leaf, pool: x509.NewCertPool()}
	for _, ca := range authorities {
		m.pool.AddCert(ca)
	}
	m.client = credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: m.pool,
		Certificates: []tls.Certificate{leaf},
	})
	m.server, err = l.serverConfig(m, authorities)
	return m, err
}

func (l *live) serverConfig(m *material, authorities []*x509.Certificate) (*tls.Config, error) {
	shown := *m.leaf
	if len(shown.Certificate) == 1 {
		for _, ca := range authorities {
			if shown.Leaf.CheckSignatureFrom(ca) == nil {
				shown.Certificate = [][]byte{shown.Certificate[0], ca.Raw}
				break
			}
		}
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   l.protos,
		ClientAuth:   l.clientAuth,
		ClientCAs:    m.pool,
		Certificates: []tls.Certificate{shown},
	}
	// gRPC clones the settings of each connection, and a clone would make ticket keys of its own: nothing could be
	// resumed. New keys with each reading of the files prevent the resumption of a session after a change of authorities.
	var key [32]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	cfg.SetSessionTicketKeys([][32]byte{key})
	return cfg, nil
}
