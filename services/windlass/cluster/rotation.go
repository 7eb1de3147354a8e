package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

// Rotation returns how far the rotation of an authority has come.
func (c *Cluster) Rotation(name string) (identity.RotationStep, error) {
	return identity.Rotation(c.Dir("pki"), name)
}

// PrepareRotation makes the next authority and has everything in the cluster trust it besides the one that signs. Like
// the other two steps it can be called again after it was interrupted.
func (c *Cluster) PrepareRotation(name string) error {
	return c.rotate(func(dir string) error { return identity.PrepareRotation(dir, name, authorityLifetime) })
}

// ActivateRotation has the next authority sign, and signs all certificates of the cluster by it. Everything must trust
// it before.
func (c *Cluster) ActivateRotation(name string) error {
	return c.rotate(func(dir string) error { return identity.ActivateRotation(dir, name) })
}

// RetireFormer ends the trust in the former authority.
func (c *Cluster) RetireFormer(name string) error {
	return c.rotate(func(dir string) error { return identity.RetireFormer(dir, name) })
}

// EndRotation ends the rotation once nothing trusts the former authority any more: until then RetireFormer is to be
// called again.
func (c *Cluster) EndRotation(name string) error {
	return c.rotate(func(dir string) error { return identity.EndRotation(dir, name) })
}

func (c *Cluster) rotate(step func(dir string) error) error {
	unlock, err := c.lockPKI()
	if err != nil {
		return err
	}
	defer unlock()
	if err := step(c.Dir("pki")); err != nil {
		return err
	}
	_, err = c.ensureCertificates(time.Now())
	return err
}

// MemberTrust returns the hash of the authorities that members of etcd have to trust.
func (c *Cluster) MemberTrust() (string, error) {
	var bundles [][]byte
	for _, name := range []string{topology.EtcdClientAuthority, topology.EtcdPeerAuthority} {
		trust, err := identity.LoadTrust(c.Dir("pki"), name)
		if err != nil {
			return "", err
		}
		bundles = append(bundles, trust.Bundle())
	}
	return identity.TrustHash(bundles...)
}

// ProbeTLS returns settings that call a server at host by the authority that a rotation leads to and by no other: the
// caller's certificate, which names no one with any right, is signed by it and, once it signs, the server must show one
// that is, too.
func (c *Cluster) ProbeTLS(name, host string) (*tls.Config, error) {
	step, err := c.Rotation(name)
	if err != nil {
		return nil, err
	}
	dir := c.Dir("pki")
	signs, err := identity.LoadAuthority(dir, name)
	if err != nil {
		return nil, err
	}
	shown := signs
	if step == identity.Prepared {
		if signs, err = identity.NextAuthority(dir, name); err != nil {
			return nil, err
		}
	}
	cert, key, err := signs.Issue(identity.Request{
		CommonName: "rotation", URI: identity.UserURI("rotation"), Client: true,
		Lifetime: 5 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: shown.Pool(), ServerName: host,
		Certificates: []tls.Certificate{pair},
	}, nil
}

// RotationState is how far the rotation of an authority has come on this disk.
type RotationState struct {
	Step    identity.RotationStep
	Signing []byte // certificate of the authority that signs, in PEM
	Next    []byte // that of the one that was prepared; nil if none was
	Trust   string // hash of the authorities that all files of programs and machines trust; empty if they differ
	Others  int    // certificates on this disk that another authority than Signing has signed
}

// RotationState reads how far the rotation of an authority has come on this disk.
func (c *Cluster) RotationState(name string) (RotationState, error) {
	unlock, err := c.lockPKI()
	if err != nil {
		return RotationState{}, err
	}
	defer unlock()
	dir := c.Dir("pki")
	if err := identity.CompleteActivation(dir, name); err != nil {
		return RotationState{}, err
	}
	step, err := identity.Rotation(dir, name)
	if err != nil {
		return RotationState{}, err
	}
	trust, err := identity.LoadTrust(dir, name)
	if err != nil {
		return RotationState{}, err
	}
	out := RotationState{Step: step, Signing: trust.PEM()}
	if step == identity.Prepared {
		next, err := identity.NextAuthority(dir, name)
		if err != nil {
			return out, err
		}
		out.Next = next.PEM()
	}
	if out.Trust, err = c.trusted(name, trust); err != nil {
		return out, err
	}
	err = c.leaves(func(_ string, cert *x509.Certificate) error {
		if trust.Knows(cert) && !trust.Issued(cert) {
			out.Others++
		}
		return nil
	})
	return out, err
}

// trusted returns the hash of what all files of the cluster trust of an authority; empty if they differ. own is what
// this host has to trust.
func (c *Cluster) trusted(name string, own identity.Trust) (string, error) {
	hash, err := identity.TrustHash(own.Bundle())
	if err != nil {
		return "", err
	}
	same := func(bundle []byte) {
		if other, err := identity.TrustHash(bundle); err != nil || other != hash {
			hash = ""
		}
	}
	for _, s := range c.services() {
		if !slices.Contains(s.Signs, name) {
			continue
		}
		copied, err := identity.LoadTrust(c.Service(s.Name, "pki"), name)
		if err != nil {
			return "", err
		}
		same(copied.Bundle())
	}
	err = c.files(func(path string) error {
		if bundleFiles[filepath.Base(path)] != name {
			return nil
		}
		bundle, err := os.ReadFile(path)
		if err == nil {
			same(bundle)
		}
		return ignoreMissing(err)
	})
	return hash, err
}

// AdoptNext makes an authority that another host prepared the next one here, as PrepareRotation does with one of its
// own.
func (c *Cluster) AdoptNext(name string, certPEM, keyPEM []byte) error {
	return c.rotate(func(dir string) error { return identity.AdoptNext(dir, name, certPEM, keyPEM) })
}

// MachineJoins reports whether this host has a machine that has not joined the cluster yet: it knows the authorities
// that were trusted when it was claimed.
func (c *Cluster) MachineJoins() (bool, error) {
	has, err := exists(c.Dir("node", "machine.json"))
	if err != nil || !has {
		return false, err
	}
	joined, err := exists(c.Dir("node", "pki", "agent.crt"))
	return !joined, err
}
