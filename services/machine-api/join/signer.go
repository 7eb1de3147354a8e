package join

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Names of the authorities, as their files spell them.
const (
	AuthorityWindlass   = "windlass"
	AuthorityEtcdClient = "etcd-client"
	AuthorityEtcdPeer   = "etcd-peer"
)

// Signer makes the certificates of machines. Names, roles and addresses come from the machine, never from a request.
type Signer struct {
	windlass, client, peer *identity.Authority
	lifetime               time.Duration
}

// LoadSigner reads the three authorities in a directory. lifetime is that of a certificate.
func LoadSigner(dir string, lifetime time.Duration) (*Signer, error) {
	s := &Signer{lifetime: lifetime}
	for name, into := range map[string]**identity.Authority{AuthorityWindlass: &s.windlass, AuthorityEtcdClient: &s.client, AuthorityEtcdPeer: &s.peer} {
		a, err := identity.LoadAuthority(dir, name)
		if err != nil {
			return nil, fmt.Errorf("authority %q: %w", name, err)
		}
		*into = a
	}
	return s, nil
}

// NewSigner returns a signer with the given authorities.
func NewSigner(windlass, client, peer *identity.Authority, lifetime time.Duration) *Signer {
	return &Signer{windlass: windlass, client: client, peer: peer, lifetime: lifetime}
}

// AuthorityHash identifies the authority of the cluster's services.
func (s *Signer) AuthorityHash() string { return s.windlass.Hash() }

// requests are the certificate requests of one machine; the last two are nil for workers.
type requests struct{ agent, server, peer *x509.CertificateRequest }

// fault is a certificate request that cannot be used.
type fault struct{ field, text string }

func (f *fault) Error() string { return f.field + ": " + f.text }

func parseRequests(agent, server, peer []byte, role string) (r requests, err error) {
	for _, p := range []struct {
		field  string
		der    []byte
		into   **x509.CertificateRequest
		needed bool
	}{{"agentRequest", agent, &r.agent, true}, {"etcdServerRequest", server, &r.server, role == plan.RoleMaster}, {"etcdPeerRequest", peer, &r.peer, role == plan.RoleMaster}} {
		if !p.needed {
			continue // a worker that asks for more gets no more
		}
		csr, err := x509.ParseCertificateRequest(p.der)
		if err == nil {
			err = csr.CheckSignature()
		}
		if err != nil {
			return r, &fault{p.field, "is no certificate request: " + err.Error()}
		}
		*p.into = csr
	}
	return r, nil
}

// keys returns the hash of the public keys that certificates are asked for.
func (r requests) keys() string {
	h := sha256.New()
	for _, csr := range []*x509.CertificateRequest{r.agent, r.server, r.peer} {
		if csr != nil {
			sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
			h.Write(sum[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sign makes the certificates of a machine whose instance has that provider id and address.
func (s *Signer) sign(who sealed, providerID, address string, r requests) (*machinev1.JoinResponse, error) {
	node := who.Name
	ip := net.ParseIP(address)
	if ip == nil {
		return nil, fmt.Errorf("machine %q: %q is no address", node, address)
	}
	// Loopback too: the peer port compares a caller's source address, which on one host may be that one.
	ips := []net.IP{ip, net.IPv4(127, 0, 0, 1)}
	out := &machinev1.JoinResponse{
		NodeName: node, MachineNamespace: who.Namespace, MachineName: who.Name,
		ProviderId: providerID, Role: who.Role, Address: address, Authority: s.windlass.PEM(),
	}
	var err error
	// An agent only calls: its certificate serves nothing, so it stands for no address and no name but the node's own.
	if out.AgentCertificate, err = s.windlass.Sign(r.agent, identity.Request{
		CommonName: node, URI: identity.NodeURI(node, who.UID), Client: true, Lifetime: s.lifetime,
	}); err != nil {
		return nil, err
	}
	if out.ExpiryTime, err = expiry(out.AgentCertificate); err != nil {
		return nil, err
	}
	if out.Role != plan.RoleMaster {
		return out, nil
	}
	out.EtcdClientAuthority, out.EtcdPeerAuthority = s.client.PEM(), s.peer.PEM()
	// A server's certificate alone: used as a client's it would name an etcd user.
	if out.EtcdServerCertificate, err = s.client.Sign(r.server, identity.Request{
		CommonName: node, IPs: ips, Server: true, Lifetime: s.lifetime,
	}); err != nil {
		return nil, err
	}
	out.EtcdPeerCertificate, err = s.peer.Sign(r.peer, identity.Request{
		CommonName: node, IPs: ips, Server: true, Client: true, Lifetime: s.lifetime,
	})
	return out, err
}

func expiry(certificate []byte) (*timestamppb.Timestamp, error) {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, errors.New("certificate is no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	return timestamppb.New(c.NotAfter), nil
}
