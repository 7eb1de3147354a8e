package join

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// AuthorityWindlass is the name of the authority, as its files spell it.
const AuthorityWindlass = "windlass"

// Signer makes the certificates of machines' agents. Names, roles and addresses come from the machine, never from a
// request. Those of etcd's members are the guardian's to sign.
//
// It follows the files of the authority, which a rotation changes. Its methods may be called concurrently.
type Signer struct {
	dir      string
	lifetime time.Duration

	mu   sync.Mutex
	last identity.Trust
}

// LoadSigner reads the authority in a directory. lifetime is that of a certificate.
func LoadSigner(dir string, lifetime time.Duration) (*Signer, error) {
	s := &Signer{dir: dir, lifetime: lifetime}
	_, err := s.read()
	return s, err
}

// read returns the authority as it is in its files; if these cannot be read, the former one and the error.
func (s *Signer) read() (identity.Trust, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := identity.LoadTrust(s.dir, AuthorityWindlass)
	if err != nil {
		return s.last, fmt.Errorf("authority %q: %w", AuthorityWindlass, err)
	}
	s.last = a
	return a, nil
}

// now returns the authority that was read last, now if that is possible: in the moment in which it is replaced it is
// not.
func (s *Signer) now() identity.Trust {
	a, _ := s.read()
	return a
}

// AuthorityHash identifies the authorities of the cluster's services that are trusted.
func (s *Signer) AuthorityHash() string { return s.now().Hash() }

// fault is a certificate request that cannot be used.
type fault struct{ field, text string }

func (f *fault) Error() string { return f.field + ": " + f.text }

func parseRequest(agent []byte) (*x509.CertificateRequest, error) {
	csr, err := identity.ParseRequest(agent)
	if err != nil {
		return nil, &fault{"agentRequest", err.Error()}
	}
	return csr, nil
}

// keyOf returns the hash of the public key that a certificate is asked for.
func keyOf(csr *x509.CertificateRequest) string {
	inner := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	sum := sha256.Sum256(inner[:])
	return hex.EncodeToString(sum[:])
}

// sign makes the certificate of a machine whose instance has that provider id and address.
func (s *Signer) sign(who sealed, providerID, address string, csr *x509.CertificateRequest) (*machinev1.JoinResponse,
	error,
) {
	a := s.now()
	node := who.Name
	if net.ParseIP(address) == nil {
		return nil, fmt.Errorf("machine %q: %q is no address", node, address)
	}
	out := &machinev1.JoinResponse{
		NodeName: node, MachineNamespace: who.Namespace, MachineName: who.Name,
		ProviderId: providerID, Role: who.Role, Address: address, Authority: a.Bundle(),
	}
	var err error
	// An agent only calls: its certificate serves nothing, so it names no address and only the node.
	if out.AgentCertificate, err = a.Sign(csr, identity.Request{
		CommonName: node, URI: identity.NodeURI(node, who.UID), Client: true, Lifetime: s.lifetime,
	}); err != nil {
		return nil, err
	}
	out.ExpiryTime, err = expiry(out.AgentCertificate)
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
