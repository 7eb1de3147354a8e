// Package peers signs the certificates of etcd's members. Only the guardian does, for members that it has planned: a
// peer certificate lets its holder write raft messages, and with that anything in etcd.
package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	"github.com/windlass-dev/windlass/kit/identity"
)

// The authorities, as their files spell them.
const (
	clientAuthority = "etcd-client"
	peerAuthority   = "etcd-peer"
)

const (
	renewAt    = 0.8             // of a certificate's life; the bootstrap member's are renewed then
	checkEvery = 1 * time.Minute // for that
)

// Signer signs with the authorities in a directory, which it reads at each use, so that a new authority takes effect.
type Signer struct {
	dir      string
	lifetime time.Duration
}

// New returns a signer. The error names the file of an authority that is missing: none is ever made here.
func New(dir string, lifetime time.Duration) (*Signer, error) {
	s := &Signer{dir: dir, lifetime: lifetime}
	for _, name := range []string{clientAuthority, peerAuthority} {
		if _, err := identity.LoadAuthority(dir, name); err != nil {
			return nil, fmt.Errorf("authority %q: %w", name, err)
		}
	}
	return s, nil
}

// Member is a member that certificates are for.
type Member struct {
	Name        string
	Cluster, ID uint64
	Address     net.IP
}

// MemberAt returns a member whose address is that of its peer URL.
func MemberAt(name string, cluster, id uint64, peerURL string) (Member, error) {
	u, err := url.Parse(peerURL)
	if err != nil {
		return Member{}, err
	}
	m := Member{Name: name, Cluster: cluster, ID: id, Address: net.ParseIP(u.Hostname())}
	if m.Address == nil || cluster == 0 || id == 0 {
		return Member{}, fmt.Errorf("member %q of cluster %x: id %x and peer address %q do not do for a certificate", name,
			cluster, id, peerURL)
	}
	return m, nil
}

// First returns the member that begins a cluster alone. Its ids follow from its name, its address and the token, as
// etcd makes them.
func First(name, peerURL, token string) (Member, error) {
	urls, err := types.NewURLs([]string{peerURL})
	if err != nil {
		return Member{}, err
	}
	c, err := membership.NewClusterFromURLsMap(zap.NewNop(), token, types.URLsMap{name: urls})
	if err != nil {
		return Member{}, err
	}
	return MemberAt(name, uint64(c.ID()), uint64(c.MemberByName(name).ID), peerURL)
}

// ErrRequest means that a certificate request cannot be used.
var ErrRequest = errors.New("no usable certificate request")

// Sign makes the certificates of a member for the keys of two requests in DER. Nothing else is taken from them.
func (s *Signer) Sign(m Member, server, peer []byte) (*etcdv1.CertifyMemberResponse, error) {
	clients, err := identity.LoadTrust(s.dir, clientAuthority)
	if err != nil {
		return nil, err
	}
	peers, err := identity.LoadTrust(s.dir, peerAuthority)
	if err != nil {
		return nil, err
	}
	out := &etcdv1.CertifyMemberResponse{
		MemberId: fmt.Sprintf("%x", m.ID), ClientAuthority: clients.Bundle(),
		PeerAuthority: peers.Bundle(),
	}
	// A server's certificate alone: used as a client's it would name an etcd user.
	if out.ServerCertificate, err = sign(clients, server, identity.Request{
		CommonName: m.Name, IPs: []net.IP{m.Address}, Server: true, Lifetime: s.lifetime,
	}); err != nil {
		return nil, fmt.Errorf("serverRequest: %w", err)
	}
	if out.PeerCertificate, err = sign(peers, peer, identity.Request{
		CommonName: m.Name, URI: identity.MemberURI(m.Cluster, m.ID), IPs: []net.IP{m.Address}, Server: true, Client: true,
		Lifetime: s.lifetime,
	}); err != nil {
		return nil, fmt.Errorf("peerRequest: %w", err)
	}
	end := time.Now().Add(s.lifetime)
	for _, a := range []identity.Trust{clients, peers} {
		if a.NotAfter().Before(end) {
			end = a.NotAfter()
		}
	}
	out.ExpiryTime = timestamppb.New(end)
	return out, nil
}

// Trust returns the hash of the authorities that members have to trust. While they are being replaced there may be none
// for a moment.
func (s *Signer) Trust() (string, error) {
	var bundles [][]byte
	for _, name := range []string{clientAuthority, peerAuthority} {
		t, err := identity.LoadTrust(s.dir, name)
		if err != nil {
			return "", err
		}
		bundles = append(bundles, t.Bundle())
	}
	return identity.TrustHash(bundles...)
}

func sign(a identity.Trust, der []byte, r identity.Request) ([]byte, error) {
	csr, err := identity.ParseRequest(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	cert, err := a.Sign(csr, r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return cert, nil
}

// Ensure makes or renews the certificates of a member in a directory, as etcd-member reads them. The keys stay.
func (s *Signer) Ensure(m Member, dir string) error {
	if fresh(filepath.Join(dir, "etcd-server.crt")) && fresh(filepath.Join(dir, "peer.crt")) {
		return nil
	}
	server, err := identity.RequestFor(filepath.Join(dir, "etcd-server.key"), m.Name)
	if err != nil {
		return err
	}
	peer, err := identity.RequestFor(filepath.Join(dir, "peer.key"), m.Name)
	if err != nil {
		return err
	}
	r, err := s.Sign(m, server, peer)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"etcd-ca.crt", r.GetClientAuthority()},
		{"peer-ca.crt", r.GetPeerAuthority()},
		{"etcd-server.crt", r.GetServerCertificate()},
		{"peer.crt", r.GetPeerCertificate()},
	} {
		if err := renameio.WriteFile(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fresh reports whether a certificate is there and has not come to renewAt of its life.
func fresh(path string) bool {
	cert, err := identity.ReadCertificate(path)
	if err != nil {
		return false
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	return time.Now().Before(cert.NotBefore.Add(time.Duration(renewAt * float64(life))))
}

// Keep renews the certificates of a member in a directory until ctx ends or the member has left. failed is called with
// each error.
func (s *Signer) Keep(ctx context.Context, m Member, dir string, left func() bool, failed func(error)) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if left() {
				<-ctx.Done() // the end of a part ends the process
				return nil
			}
			if err := s.Ensure(m, dir); err != nil {
				failed(err)
			}
		}
	}
}
