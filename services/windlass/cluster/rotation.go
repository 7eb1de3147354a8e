package cluster

import (
	"crypto/tls"
	"fmt"
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
