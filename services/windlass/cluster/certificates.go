package cluster

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/hostbundle"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

// authorityLifetime is ten years: authorities are not renewed, they are rotated.
const authorityLifetime = 10 * 365 * 24 * time.Hour

func (c *Cluster) lifetime() time.Duration { return time.Duration(c.Lifetime) }

// AdminFiles are the certificate, key and authority with which the user of this machine calls the cluster.
func (c *Cluster) AdminFiles() identity.Files {
	return identity.Files{Cert: c.Dir("admin", "tls.crt"), Key: c.Dir("admin", "tls.key"), CA: c.Dir("admin", "ca.crt")}
}

// SupervisorFiles are those with which the supervisor calls update-orchestrator.
func (c *Cluster) SupervisorFiles() identity.Files {
	return identity.Files{
		Cert: c.Dir("supervisor", "tls.crt"), Key: c.Dir("supervisor", "tls.key"), CA: c.Dir("supervisor", "ca.crt"),
	}
}

// EnsureCertificates makes the authorities and certificates that are missing, and renews those on disk (of services, of
// the user, of machines and members) that have come to 70 to 90 % of their life, have expired or are not valid yet. It
// returns how many it made or renewed.
func (c *Cluster) EnsureCertificates(now time.Time) (int, error) {
	unlock, err := c.lockPKI()
	if err != nil {
		return 0, err
	}
	defer unlock()
	return c.ensureCertificates(now)
}

// lockPKI keeps the supervisor and the command line from each other's steps.
func (c *Cluster) lockPKI() (unlock func(), err error) { return hostbundle.Lock(c.dir) }

func (c *Cluster) ensureCertificates(now time.Time) (int, error) {
	as, err := c.authorities()
	if err != nil {
		return 0, err
	}
	if err := c.entrust(as); err != nil {
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
	if err := c.trust(as); err != nil {
		return made, err
	}
	renewed, err := c.renew(as, func(a identity.Trust, cert *x509.Certificate) bool {
		// One that is not valid yet was made while the host's clock was ahead.
		return !a.Issued(cert) || now.Before(cert.NotBefore) || !now.Before(renewAt(cert))
	})
	return made + len(renewed), errors.Join(err, c.makeLaterRecordKeys(), c.checkRecordKeys())
}

// RenewCertificates renews all certificates on this disk now, whatever their age, and returns them by path.
func (c *Cluster) RenewCertificates() ([]Certificate, error) {
	unlock, err := c.lockPKI()
	if err != nil {
		return nil, err
	}
	defer unlock()
	as, err := c.authorities()
	if err != nil {
		return nil, err
	}
	renewed, err := c.renew(as, func(identity.Trust, *x509.Certificate) bool { return true })
	slices.SortFunc(renewed, func(a, b Certificate) int { return cmp.Compare(a.Path, b.Path) })
	return renewed, err
}

// sealing returns the names of the services that seal records of theirs.
func (c *Cluster) sealing() (names []string) {
	for _, s := range c.services() {
		if s.Seals {
			names = append(names, s.Name)
		}
	}
	return names
}

// recordKeys is the key ring of a service that seals records.
func (c *Cluster) recordKeys(service string) string {
	return c.Service(service, "tls", serve.RecordKeysFile)
}

// makeRecordKeys makes the key rings that do not exist, in a cluster whose rings were not all made yet.
func (c *Cluster) makeRecordKeys() error {
	for _, service := range c.sealing() {
		path := c.recordKeys(service)
		if there, err := exists(path); err != nil {
			return err
		} else if there {
			continue // an earlier start was cut off
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if _, err := store.AddKey(path, time.Now()); err != nil {
			return err
		}
	}
	return durable.WriteFile(c.laterRecordKeys(), nil, 0o600)
}

// laterRecordKeys is a file that is there once the key rings of the services were made that seal records only since a
// later version than machine-api. From then on a ring that is missing is lost.
func (c *Cluster) laterRecordKeys() string { return c.Dir("pki", "record-keys-made") }

// makeLaterRecordKeys makes the key rings of these services in a cluster that an older version made. The ring of
// machine-api is checked first: it is never made again.
func (c *Cluster) makeLaterRecordKeys() error {
	if made, err := exists(c.laterRecordKeys()); made || err != nil {
		return err
	}
	if there, err := exists(c.recordKeys(topology.MachineAPI)); !there || err != nil {
		return err // checkRecordKeys reports it
	}
	return c.makeRecordKeys()
}

// checkRecordKeys returns an error if a key ring is lost: another one could not open what is sealed in etcd.
func (c *Cluster) checkRecordKeys() error {
	for _, service := range c.sealing() {
		_, err := os.Stat(c.recordKeys(service))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf(
				"the keys that seal the records of %s in etcd are lost: %w; restore the file from a backup: it is made only with a new cluster, and other keys would not open the records", service, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// RotateRecordKeys puts a new key at the head of every key ring and returns the services' new key ids. The services
// write their sealed records again by it within seconds; the older keys stay in the ring.
func (c *Cluster) RotateRecordKeys(now time.Time) (map[string]uint64, error) {
	out := map[string]uint64{}
	if err := c.checkRecordKeys(); err != nil {
		return out, err
	}
	for _, service := range c.sealing() {
		id, err := store.AddKey(c.recordKeys(service), now)
		if err != nil {
			return out, err
		}
		out[service] = id
	}
	return out, nil
}

// makePolicy writes the default policy of a new cluster where the user can change it. A policy that is missing later is
// not made again: the default may give more than the one that was lost. Only root can run pods under users of their
// own; without root, creating pods and running commands in them are administrators' rights.
func (c *Cluster) makePolicy() error {
	if _, err := os.Stat(c.Dir("policy.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	policy := identity.DefaultPolicy()
	if c.PodsIsolated() {
		policy = identity.IsolatedPolicy()
	}
	return durable.WriteFile(c.Dir("policy.yaml"), policy, 0o600)
}

func (c *Cluster) authorities() (map[string]identity.Trust, error) {
	dir := c.Dir("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	first, err := c.begin()
	if err != nil {
		return nil, err
	}
	out := map[string]identity.Trust{}
	for _, name := range topology.Authorities() {
		if err := identity.CompleteActivation(dir, name); err != nil {
			return nil, fmt.Errorf("authority %q: %w", name, err)
		}
		a, err := identity.LoadTrust(dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && first:
			if a.Authority, err = identity.NewAuthority(name, authorityLifetime); err == nil {
				err = a.Save(dir)
			}
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf(
				"authority %q is lost: %w; restore the file: authorities are made only with a new cluster, and this one would not trust another", name, err)
		}
		if err != nil {
			return nil, err
		}
		out[name] = a
	}
	if !first {
		return out, nil
	}
	if err := errors.Join(c.makePolicy(), c.makeRecordKeys()); err != nil {
		return nil, err
	}
	return out, c.begun()
}

// entrust gives each service that signs a copy of the authorities that it signs with, and of those that are trusted
// beside them. No other service has a key.
func (c *Cluster) entrust(as map[string]identity.Trust) error {
	for _, s := range c.services() {
		for _, name := range s.Signs {
			dir := c.Service(s.Name, "pki")
			if have, err := identity.LoadTrust(dir, name); err == nil && bytes.Equal(have.Bundle(), as[name].Bundle()) {
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
	authority     identity.Trust
	dir, ca, name string // files: <dir>/<ca>.crt, <dir>/<name>.crt, <dir>/<name>.key
	request       identity.Request
}

func (c *Cluster) wanted(as map[string]identity.Trust) []wanted {
	host := []net.IP{net.ParseIP(c.Host())}
	if c.Containers {
		host = []net.IP{net.IPv4(127, 0, 0, 1)} // others come by name
	}
	out := []wanted{{
		authority: as[topology.APIAuthority], dir: c.Dir("admin"), ca: "ca", name: "tls",
		request: identity.Request{
			CommonName: "admin", Organizations: []string{"system:masters"},
			URI: identity.UserURI("admin"), Client: true,
		},
	}, {
		// For Prometheus; the policy lets the group read metrics and nothing else.
		authority: as[topology.APIAuthority], dir: c.Dir("prometheus"), ca: "ca", name: "tls",
		request: identity.Request{
			CommonName: "prometheus", Organizations: []string{"windlass:metrics-readers"},
			URI: identity.UserURI("prometheus"), Client: true,
		},
	}}
	if !c.Containers { // there people restart programs
		// The supervisor reports which executables the programs run from.
		out = append(out, wanted{
			authority: as[topology.APIAuthority], dir: c.Dir("supervisor"), ca: "ca", name: "tls",
			request: identity.Request{
				CommonName: "supervisor", Organizations: []string{"system:masters"},
				URI: identity.UserURI("supervisor"), Client: true,
			},
		})
	}
	for _, s := range c.services() {
		name, dir := s.Name, c.Service(s.Name, "tls")
		out = append(out, wanted{
			authority: as[topology.APIAuthority], dir: dir, ca: "ca", name: "tls",
			request: identity.Request{
				CommonName: name, URI: identity.ServiceURI(name), DNSNames: []string{name, "localhost"},
				IPs: host, Server: true, Client: true,
			},
		})
		if s.Etcd != topology.NoEtcd {
			out = append(out, wanted{
				authority: as[topology.EtcdClientAuthority], dir: dir, ca: "etcd-ca", name: "etcd",
				request: identity.Request{CommonName: name, Client: true},
			})
		}
	}
	guardian := c.Service(topology.EtcdGuardian, "tls")
	// Members' own certificates are the guardian's to sign.
	out = append(out, wanted{
		authority: as[topology.EtcdClientAuthority], dir: guardian, ca: "etcd-ca", name: "etcd-root",
		request: identity.Request{
			CommonName: "root", Client: true,
		},
	})
	for i := range out {
		out[i].request.Lifetime = c.lifetime()
	}
	out[0].request.Lifetime = min(adminLifetime, adminLifetime/DefaultLifetime*c.lifetime())
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
		// the certificate last: it says that the others are there
	}{{filepath.Join(w.dir, w.ca+".crt"), w.authority.Bundle()}, {key, keyPEM}, {crt, certPEM}} {
		if err := renameio.WriteFile(f.path, f.data, 0o600); err != nil {
			return 0, err
		}
	}
	return 1, nil
}

// renewAt returns when a certificate is renewed: between 70 and 90 % of its life, at a point that its serial number
// picks, so that not all are renewed at once.
func renewAt(cert *x509.Certificate) time.Time {
	issued := identity.IssuedAt(cert)
	chance := float64(cert.SerialNumber.Bit(0)+2*cert.SerialNumber.Bit(1)+4*cert.SerialNumber.Bit(2)+
		8*cert.SerialNumber.Bit(3)) / 16
	return issued.Add(time.Duration((0.7 + 0.2*chance) * float64(cert.NotAfter.Sub(issued))))
}

// The certificates of a cluster, and beside them the authorities that their holders trust: nothing else below the
// directory is touched, since a pod may write files too.
var leafPatterns = []string{
	"admin/*.crt", "supervisor/*.crt", "prometheus/*.crt", "services/*/tls/*.crt",
	"services/etcd-guardian/bootstrap/tls/*.crt",
	"services/provider-local/machines/*/pki/*.crt", "services/provider-local/machines/*/etcd/tls/*.crt",
	"host/*.crt", "node/pki/*.crt", "node/etcd/tls/*.crt",
}

// bundleFiles are the names of the files that hold authorities.
var bundleFiles = map[string]string{
	"ca.crt": topology.APIAuthority, "etcd-ca.crt": topology.EtcdClientAuthority,
	"peer-ca.crt": topology.EtcdPeerAuthority,
}

// files calls f with the path of every certificate file of the cluster. A file for which f fails does not keep the
// others.
func (c *Cluster) files(f func(path string) error) error {
	var errs []error
	for _, pattern := range leafPatterns {
		found, err := filepath.Glob(c.Dir(pattern))
		errs = append(errs, err)
		for _, path := range found {
			errs = append(errs, f(path))
		}
	}
	return errors.Join(errs...)
}

// leaves calls f with every certificate of the cluster that is no authority's.
func (c *Cluster) leaves(f func(path string, cert *x509.Certificate) error) error {
	return c.files(func(path string) error {
		cert, err := readLeaf(path)
		if err != nil || cert == nil {
			return err
		}
		return f(path, cert)
	})
}

// trust writes the authorities that are trusted to every file that holds some other ones.
func (c *Cluster) trust(as map[string]identity.Trust) error {
	return c.files(func(path string) error {
		name, ok := bundleFiles[filepath.Base(path)]
		if !ok {
			return nil
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return ignoreMissing(err)
		}
		if want := as[name].Bundle(); !bytes.Equal(have, want) {
			return renameio.WriteFile(path, want, 0o600)
		}
		return nil
	})
}

// renew signs every certificate of the cluster again that is due, given the authority that knows it, and returns the
// new ones. The keys stay.
func (c *Cluster) renew(as map[string]identity.Trust, due func(identity.Trust, *x509.Certificate) bool) ([]Certificate,
	error,
) {
	var renewed []Certificate
	err := c.leaves(func(path string, cert *x509.Certificate) error {
		for _, a := range as {
			if !a.Knows(cert) {
				continue
			}
			if !due(a, cert) {
				return nil
			}
			next, err := a.Renew(cert)
			if err != nil {
				return err
			}
			if err := renameio.WriteFile(path, next, 0o600); err != nil {
				return err
			}
			now, err := readLeaf(path)
			if err == nil && now != nil {
				renewed = append(renewed, Certificate{Path: c.below(path), NotAfter: now.NotAfter})
			}
			return err
		}
		return nil
	})
	return renewed, err
}

// below returns a path below the cluster's directory.
func (c *Cluster) below(path string) string {
	if rel, err := filepath.Rel(c.dir, path); err == nil {
		return rel
	}
	return path
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Certificate is a certificate of the cluster.
type Certificate struct {
	Path     string // below the cluster's directory
	NotAfter time.Time
}

// Expiring returns the certificates of services, machines and the administrator that have less than 5 % of their life
// left or have expired. They are renewed at 90 % at the latest, so there are some only if nothing renews them: the
// supervisor of `windlass up` is not running.
func (c *Cluster) Expiring(now time.Time) ([]Certificate, error) {
	var out []Certificate
	err := c.leaves(func(path string, cert *x509.Certificate) error {
		life := cert.NotAfter.Sub(identity.IssuedAt(cert))
		if now.After(cert.NotAfter.Add(-life / 20)) {
			out = append(out, Certificate{Path: c.below(path), NotAfter: cert.NotAfter})
		}
		return nil
	})
	return out, err
}

// readLeaf returns the certificate in a file; nil if it is gone, holds none, or holds an authority's.
func readLeaf(path string) (*x509.Certificate, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if cert.IsCA {
		return nil, nil
	}
	return cert, nil
}
