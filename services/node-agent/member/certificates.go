package member

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// Files of the member's certificates below its directory, as etcd-member reads them.
const (
	serverCert = "tls/etcd-server.crt"
	serverKey  = "tls/etcd-server.key"
	peerCert   = "tls/peer.crt"
	peerKey    = "tls/peer.key"
	clientCA   = "tls/etcd-ca.crt"
	peerCA     = "tls/peer-ca.crt"

	// The copies that the process makes of the authorities when it starts.
	startedClientCA = "data/trusted-etcd-ca.crt"
	startedPeerCA   = "data/trusted-peer-ca.crt"
)

const (
	certifyPatience = 5 * time.Second  // for one call to the guardian
	certifyAgain    = 10 * time.Second // after a renewal that failed
)

// Certifier signs the certificates of the member that is planned for a node.
type Certifier func(ctx context.Context, r *etcdv1.CertifyMemberRequest) (*etcdv1.CertifyMemberResponse, error)

// Certify gets the certificates of the member that is planned for the node. The keys are made once and stay; a member
// that runs takes the new certificates at its next handshake.
func (m *Member) Certify(ctx context.Context, node string, sign Certifier) error {
	ctx, cancel := context.WithTimeout(ctx, certifyPatience)
	defer cancel()
	r := &etcdv1.CertifyMemberRequest{Node: node}
	var err error
	if r.ServerRequest, err = identity.RequestFor(m.path(serverKey), node); err != nil {
		return err
	}
	if r.PeerRequest, err = identity.RequestFor(m.path(peerKey), node); err != nil {
		return err
	}
	out, err := sign(ctx, r)
	if err != nil {
		return fmt.Errorf("certificates of the member: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{clientCA, out.GetClientAuthority()},
		{peerCA, out.GetPeerAuthority()},
		{serverCert, out.GetServerCertificate()},
		{peerCert, out.GetPeerCertificate()}, // the last says that the others are there
	} {
		if err := renameio.WriteFile(filepath.Join(m.cfg.Dir, f.name), f.data, 0o600); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.renewal = time.Time{}
	m.mu.Unlock()
	return nil
}

// NeedsCertificates reports whether the member cannot be started with the certificates on the disk: some are missing,
// or the member is a new one, so that they are those of one that was removed.
func (m *Member) NeedsCertificates() bool {
	if !m.HasData() {
		return true
	}
	for _, name := range []string{serverCert, peerCert} {
		if cert, err := identity.ReadCertificate(m.path(name)); err != nil || time.Now().After(cert.NotAfter) {
			return true
		}
	}
	return false
}

// Trusts reports whether the member trusts the authorities with this hash when it is started: its files hold these and
// no others.
func (m *Member) Trusts(hash string) bool { return m.trust(clientCA, peerCA) == hash }

// startedWith returns the hash of the authorities that the process trusts since it was started; empty if it never was.
func (m *Member) startedWith() string { return m.trust(startedClientCA, startedPeerCA) }

// trust returns the hash of the authorities in files; empty if they cannot be read.
func (m *Member) trust(files ...string) string {
	var bundles [][]byte
	for _, name := range files {
		raw, err := os.ReadFile(m.path(name))
		if err != nil {
			return ""
		}
		bundles = append(bundles, raw)
	}
	hash, err := identity.TrustHash(bundles...)
	if err != nil {
		return ""
	}
	return hash
}

// RenewalDue reports whether it is time to renew the certificates of a member that is on the disk. After a failure it
// is due again a while later.
func (m *Member) RenewalDue(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.noted {
		return false // there is no member
	}
	if m.renewal.IsZero() {
		m.renewal = m.renewAt(now)
	}
	if now.Before(m.renewal) {
		return false
	}
	m.renewal = now.Add(certifyAgain)
	return true
}

// renewAt returns when the certificates on the disk are to be renewed: now if they cannot be read.
func (m *Member) renewAt(now time.Time) time.Time {
	at := time.Time{}
	for _, name := range []string{serverCert, peerCert} {
		info, err := os.Stat(m.path(name))
		if err != nil {
			return now
		}
		cert, err := identity.ReadCertificate(m.path(name))
		if err != nil {
			return now
		}
		if t := plan.RenewAt(info.ModTime(), cert.NotAfter, rand.Float64()); at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}
