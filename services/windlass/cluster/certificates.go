package cluster

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
)

// authorityLifetime is ten years: authorities are not renewed, they are replaced.
const authorityLifetime = 10 * 365 * 24 * time.Hour

// The authorities of a cluster, as their files are named.
const (
	windlassAuthority   = "windlass"
	etcdClientAuthority = "etcd-client"
	etcdPeerAuthority   = "etcd-peer"
)

func (c *Cluster) lifetime() time.Duration { return time.Duration(c.Lifetime) }

// AdminFiles are the certificate, key and authority with which the user of this machine calls the cluster.
func (c *Cluster) AdminFiles() identity.Files {
	return identity.Files{Cert: c.Dir("admin", "tls.crt"), Key: c.Dir("admin", "tls.key"), CA: c.Dir("admin", "ca.crt")}
}

// EnsureCertificates makes the authorities and certificates that are missing, and renews those on disk (of services, of the user, of machines and members)
// that have come to 80 % of their life or have run out. It returns how many it made or renewed.
func (c *Cluster) EnsureCertificates(now time.Time) (int, error) {
	as, err := c.authorities()
	if err != nil {
		return 0, err
	}
	if err := c.ensurePolicy(); err != nil {
		return 0, err
	}
	if err := c.entrust(as); err != nil {
		return 0, err
	}
	if err := c.ensureRecordKeys(now); err != nil {
		return 0, err
	}
	made := 0
	for _, w := range c.wanted(as) {
		n, err := w.ensure()
		if err != nil {
			return made, err
		}
		made += n
	}
	renewed, err := c.renew(as, now)
	return made + renewed, err
}

// sealing are the services that seal records of theirs.
var sealing = []string{"machine-api"}

// recordKeys is the key ring of a service that seals records.
func (c *Cluster) recordKeys(service string) string {
	return c.Service(service, "tls", serve.RecordKeysFile)
}

// ensureRecordKeys makes the key rings that are missing.
func (c *Cluster) ensureRecordKeys(now time.Time) error {
	for _, service := range sealing {
		path := c.recordKeys(service)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if _, err := store.AddKey(path, now); err != nil {
			return err
		}
	}
	return nil
}

// RotateRecordKeys puts a new key at the head of every key ring and returns the services' new key ids. The services write their sealed
// records again by it within seconds; the older keys stay in the ring.
func (c *Cluster) RotateRecordKeys(now time.Time) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, service := range sealing {
		if _, err := os.Stat(c.recordKeys(service)); err != nil {
			return out, err
		}
		id, err := store.AddKey(c.recordKeys(service), now)
		if err != nil {
			return out, err
		}
		out[service] = id
	}
	return out, nil
}

// ensurePolicy writes the default policy where the user can change it. Only root can run pods under users of their own; without
// root, creating pods and running commands in them are administrators' rights.
func (c *Cluster) ensurePolicy() error {
	if _, err := os.Stat(c.Dir("policy.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	policy := identity.DefaultPolicy()
	if c.PodsIsolated() {
		policy = identity.IsolatedPolicy()
	}
	return renameio.WriteFile(c.Dir("policy.yaml"), policy, 0o600)
}

func (c *Cluster) authorities() (map[string]*identity.Authority, error) {
	dir := c.Dir("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	first, err := c.begin()
	if err != nil {
		return nil, err
	}
	out := map[string]*identity.Authority{}
	for _, name := range authorityNames {
		a, err := identity.LoadAuthority(dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && first:
			if a, err = identity.NewAuthority(name, authorityLifetime); err == nil {
				err = a.Save(dir)
			}
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("authority %q is lost: %w; restore the file: authorities are made only with a new cluster, and this one would not trust another", name, err)
		}
		if err != nil {
			return nil, err
		}
		out[name] = a
	}
	if first {
		return out, c.begun()
	}
	return out, nil
}

// signers are the services that sign, and with which authorities. No other has a key.
var signers = map[string][]string{
	"machine-api":   {windlassAuthority},                      // machines' agents
	"etcd-guardian": {etcdClientAuthority, etcdPeerAuthority}, // members of the etcd cluster
}

// entrust gives each service that signs a copy of the authorities that it signs with.
func (c *Cluster) entrust(as map[string]*identity.Authority) error {
	for service, names := range signers {
		for _, name := range names {
			dir := c.Service(service, "pki")
			if have, err := identity.LoadAuthority(dir, name); err == nil && bytes.Equal(have.PEM(), as[name].PEM()) {
				continue
			}
			if err := as[name].Save(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// wanted is one certificate that must be there.
type wanted struct {
	authority     *identity.Authority
	dir, ca, name string // files: <dir>/<ca>.crt, <dir>/<name>.crt, <dir>/<name>.key
	request       identity.Request
}

func (c *Cluster) wanted(as map[string]*identity.Authority) []wanted {
	host := []net.IP{net.ParseIP(c.Host())}
	if c.Containers {
		host = []net.IP{net.IPv4(127, 0, 0, 1)} // others come by name
	}
	out := []wanted{{
		authority: as[windlassAuthority], dir: c.Dir("admin"), ca: "ca", name: "tls",
		request: identity.Request{CommonName: "admin", Organizations: []string{"system:masters"}, URI: identity.UserURI("admin"), Client: true},
	}}
	for name, p := range programs {
		dir := c.Service(name, "tls")
		out = append(out, wanted{
			authority: as[windlassAuthority], dir: dir, ca: "ca", name: "tls",
			request: identity.Request{CommonName: name, URI: identity.ServiceURI(name), DNSNames: []string{name, "localhost"}, IPs: host, Server: true, Client: true},
		})
		if p.etcd {
			out = append(out, wanted{
				authority: as[etcdClientAuthority], dir: dir, ca: "etcd-ca", name: "etcd",
				request: identity.Request{CommonName: name, Client: true},
			})
		}
	}
	guardian := c.Service("etcd-guardian", "tls")
	// Members' own certificates are the guardian's to sign.
	out = append(out, wanted{
		authority: as[etcdClientAuthority], dir: guardian, ca: "etcd-ca", name: "etcd-root", request: identity.Request{CommonName: "root", Client: true},
	})
	for i := range out {
		out[i].request.Lifetime = c.lifetime()
	}
	return out
}

// ensure makes the certificate unless it is there; it returns how many files it made.
func (w wanted) ensure() (int, error) {
	crt, key := filepath.Join(w.dir, w.name+".crt"), filepath.Join(w.dir, w.name+".key")
	if _, err := os.Stat(crt); err == nil {
		return 0, nil
	}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return 0, err
	}
	certPEM, keyPEM, err := w.authority.Issue(w.request)
	if err != nil {
		return 0, err
	}
	for _, f := range []struct {
		path string
		data []byte
	}{{filepath.Join(w.dir, w.ca+".crt"), w.authority.PEM()}, {key, keyPEM}, {crt, certPEM}} { // the certificate last: it says that the others are there
		if err := renameio.WriteFile(f.path, f.data, 0o600); err != nil {
			return 0, err
		}
	}
	return 1, nil
}

// renewAt is the part of a certificate's life after which it is renewed: in the middle of what Kubernetes' agents choose.
const renewAt = 0.8

// renew signs every certificate below the cluster's directory anew that has come to renewAt of its life. The keys stay.
func (c *Cluster) renew(as map[string]*identity.Authority, now time.Time) (int, error) {
	renewed := 0
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a running program removed it meanwhile
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".crt") {
			return err
		}
		done, err := renewFile(path, as, now)
		if done {
			renewed++
		}
		return err
	})
	return renewed, err
}

func renewFile(path string, as map[string]*identity.Authority, now time.Time) (bool, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return false, ignoreMissing(err)
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return false, nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	if cert.IsCA || now.Before(cert.NotBefore.Add(time.Duration(renewAt*float64(life)))) {
		return false, nil
	}
	for _, a := range as {
		if !a.Issued(cert) {
			continue
		}
		next, err := a.Renew(cert)
		if err != nil {
			return false, err
		}
		return true, renameio.WriteFile(path, next, 0o600)
	}
	return false, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
