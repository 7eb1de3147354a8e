package cluster

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
)

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	t.Setenv("WINDLASS_HOME", t.TempDir())
	c, err := Create(t.Context(), Settings{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return c
}

// certificates returns the cluster's leaf certificates by their path.
func certificates(t *testing.T, c *Cluster) map[string]*x509.Certificate {
	t.Helper()
	out := map[string]*x509.Certificate{}
	if err := c.leaves(func(path string, cert *x509.Certificate) error { out[path] = cert; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// machine puts the files of a machine where the local provider has them.
func machine(t *testing.T, c *Cluster, name string) {
	t.Helper()
	as, err := c.authorities()
	if err != nil {
		t.Fatal(err)
	}
	dir := c.Service("provider-local", "machines", name)
	for _, w := range []wanted{
		{
			as[topology.APIAuthority], filepath.Join(dir, "pki"), "ca", "agent",
			identity.Request{CommonName: name, URI: identity.NodeURI(name, "u-1"), Client: true},
		},
		{
			as[topology.EtcdClientAuthority], filepath.Join(dir, "etcd", "tls"), "etcd-ca", "etcd-server",
			identity.Request{CommonName: name, Server: true},
		},
		{
			as[topology.EtcdPeerAuthority], filepath.Join(dir, "etcd", "tls"), "peer-ca", "peer",
			identity.Request{CommonName: name, Server: true, Client: true},
		},
	} {
		if _, err := w.ensure(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLifetimesAndTheTimeOfRenewal(t *testing.T) {
	c := newCluster(t)
	machine(t, c, "m")
	all := certificates(t, c)
	if len(all) < 20 {
		t.Fatalf("%d certificates", len(all))
	}
	times := map[time.Duration]bool{}
	for path, cert := range all {
		issued := identity.IssuedAt(cert)
		want := 24 * time.Hour
		if strings.HasPrefix(path, c.Dir("admin")) {
			want = 30 * 24 * time.Hour
		}
		life := cert.NotAfter.Sub(issued)
		if d := life - want; d < -2*time.Second || d > 2*time.Second {
			t.Errorf("%s lives for %v, want %v", path, life, want)
		}
		if back := time.Since(cert.NotBefore); back < 4*time.Minute {
			t.Errorf("%s is dated back %v only: a clock that is set back would refuse it", path, back)
		}
		part := renewAt(cert).Sub(issued)
		if f := float64(part) / float64(life); f < 0.69 || f > 0.91 {
			t.Errorf("%s is renewed at %.2f of its life", path, f)
		}
		times[part.Round(time.Minute)] = true
	}
	if len(times) < 4 {
		t.Errorf("%d certificates are renewed at %d moments", len(all), len(times))
	}
	if list, err := c.Expiring(time.Now()); err != nil || len(list) != 0 {
		t.Errorf("Expiring = %v, %v", list, err)
	}
	// all but the administrator's
	if list, err := c.Expiring(time.Now().Add(23 * time.Hour)); err != nil || len(list) != len(all)-1 {
		t.Errorf("an hour before the end %d of %d are named, %v", len(list), len(all), err)
	}
}

func TestAClusterThatWasOffForThreeDaysGetsItsCertificatesBack(t *testing.T) {
	c := newCluster(t)
	machine(t, c, "m")
	as, err := c.authorities()
	if err != nil {
		t.Fatal(err)
	}
	before := certificates(t, c)
	for path, cert := range before { // the same again, expired three days ago
		for _, a := range as {
			if a.Issued(cert) {
				old := *cert
				old.NotBefore, old.NotAfter = time.Now().Add(-96*time.Hour), time.Now().Add(-72*time.Hour)
				backdate(t, a, path, &old)
			}
		}
	}
	if list, err := c.Expiring(time.Now()); err != nil || len(list) != len(before) {
		t.Fatalf("%d of %d have expired, %v", len(list), len(before), err)
	}
	n, err := c.EnsureCertificates(time.Now())
	if err != nil || n != len(before) {
		t.Fatalf("EnsureCertificates = %d, %v, want %d", n, err, len(before))
	}
	for path, cert := range certificates(t, c) {
		was := before[path]
		if time.Until(cert.NotAfter) < 23*time.Hour || cert.Subject.String() != was.Subject.String() ||
			len(cert.URIs) != len(was.URIs) {
			t.Errorf("%s: %s until %v", path, cert.Subject, cert.NotAfter)
		}
	}
}

// backdate writes a certificate with the names of old and its validity, for a new key.
func backdate(t *testing.T, a identity.Trust, path string, old *x509.Certificate) {
	t.Helper()
	r := identity.Request{
		CommonName: old.Subject.CommonName, Organizations: old.Subject.Organization, DNSNames: old.DNSNames,
		IPs:       old.IPAddresses,
		NotBefore: old.NotBefore, Lifetime: old.NotAfter.Sub(old.NotBefore),
	}
	for _, u := range old.URIs {
		r.URI = u.String()
	}
	for _, u := range old.ExtKeyUsage {
		r.Server, r.Client = r.Server || u == x509.ExtKeyUsageServerAuth, r.Client || u == x509.ExtKeyUsageClientAuth
	}
	cert, key, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	for p, data := range map[string][]byte{path: cert, strings.TrimSuffix(path, ".crt") + ".key": key} {
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPrivateKeysAreTheirOwnersAlone(t *testing.T) {
	c := newCluster(t)
	if err := c.PrepareRotation(topology.APIAuthority); err != nil {
		t.Fatal(err)
	}
	keys := 0
	err := filepath.WalkDir(c.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() && info.Mode().Perm() != 0o700 {
			t.Errorf("directory %s has mode %v", path, info.Mode())
		}
		if strings.HasSuffix(path, ".key") {
			keys++
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
		}
		return nil
	})
	if err != nil || keys < 24 {
		t.Errorf("%d keys, %v", keys, err)
	}
}

func TestOnlyTheClustersOwnFilesAreRenewed(t *testing.T) {
	c := newCluster(t)
	as, err := c.authorities()
	if err != nil {
		t.Fatal(err)
	}
	// A pod of the local provider writes an expired certificate that it found, and a file that is none.
	pod := c.Service("provider-local", "machines", "m", "pods", "p")
	if err := os.MkdirAll(pod, 0o700); err != nil {
		t.Fatal(err)
	}
	found := filepath.Join(pod, "found.crt")
	stolen, err := identity.ReadCertificate(c.Service("machine-api", "tls", "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	old := *stolen
	old.NotBefore, old.NotAfter = time.Now().Add(-96*time.Hour), time.Now().Add(-72*time.Hour)
	backdate(t, as[topology.APIAuthority], found, &old)
	before, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	// And something spoilt one file of a service: the others are renewed all the same.
	spoilt := c.Service("scheduler", "tls", "tls.crt")
	if err := os.WriteFile(spoilt, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	n, err := c.EnsureCertificates(time.Now().Add(23 * time.Hour))
	if err == nil || !strings.Contains(err.Error(), spoilt) || n < 15 {
		t.Errorf("EnsureCertificates = %d, %v", n, err)
	}
	after, err := os.ReadFile(found)
	if err != nil || string(after) != string(before) {
		t.Errorf("the pod's certificate was renewed: %v", err)
	}
}

func TestMissingKeysAreAnError(t *testing.T) {
	c := newCluster(t)
	if err := os.RemoveAll(c.Dir("pki")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err == nil || !strings.Contains(err.Error(), "restore") {
		t.Errorf("EnsureCertificates = %v", err)
	}
	if _, err := os.Stat(c.Dir("pki", "windlass-ca.key")); err == nil {
		t.Error("another authority was made")
	}
}

func TestAPolicyThatWasLostIsNotReplacedByTheDefault(t *testing.T) {
	c := newCluster(t)
	policy := c.Dir("policy.yaml")
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the default policy took its place: %v", err)
	}
}

func TestCertificatesThatAreNotValidYetAreRenewed(t *testing.T) {
	c := newCluster(t)
	machine(t, c, "m")
	all := len(certificates(t, c))
	renewed, err := c.EnsureCertificates(time.Now().Add(-time.Hour)) // the clock was an hour ahead
	if err != nil || renewed != all {
		t.Errorf("%d of %d were renewed, %v", renewed, all, err)
	}
}

// snapshot returns the files of an authority.
func snapshot(t *testing.T, c *Cluster, authority string) map[string][]byte {
	t.Helper()
	found, err := filepath.Glob(c.Dir("pki", authority+"*"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, path := range found {
		if out[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestARotationIsCompletedAfterADeathAtAnyStep(t *testing.T) {
	of := func(c *Cluster, name string) string { return c.Service("provider-local", "machines", "m", name) }
	authorities := []struct {
		name   string
		leaves []string // names of the files that it signs
		trust  func(c *Cluster) []string
	}{
		{topology.APIAuthority, []string{"tls.crt", "agent.crt"}, func(c *Cluster) []string {
			return []string{c.Dir("admin", "ca.crt"), c.Service("scheduler", "tls", "ca.crt"), of(c, "pki/ca.crt")}
		}},
		{topology.EtcdClientAuthority, []string{"etcd.crt", "etcd-root.crt", "etcd-server.crt"}, func(c *Cluster) []string {
			return []string{
				c.Service("gateway", "tls", "etcd-ca.crt"), c.Service("scheduler", "tls", "etcd-ca.crt"),
				of(c, "etcd/tls/etcd-ca.crt"),
			}
		}},
		{topology.EtcdPeerAuthority, []string{"peer.crt"}, func(c *Cluster) []string {
			return []string{of(c, "etcd/tls/peer-ca.crt")}
		}},
	}
	steps := []string{
		"nothing", "begun", "former kept", "key replaced", "certificate replaced",
		"next certificate removed", "next key removed",
	}
	for _, a := range authorities {
		for i, died := range steps {
			t.Run(a.name+" "+died, func(t *testing.T) {
				c := newCluster(t)
				machine(t, c, "m")
				before := memberTrust(t, c)
				if err := c.PrepareRotation(a.name); err != nil {
					t.Fatal(err)
				}
				prepared := memberTrust(t, c)
				if a.name != topology.APIAuthority && prepared == before {
					t.Error("members need not trust the next authority")
				}
				old := snapshot(t, c, a.name)
				pki := func(name string) string { return c.Dir("pki", a.name+name) }
				die(t, i, pki, old)
				// The supervisor comes first, then the command again.
				if _, err := c.EnsureCertificates(time.Now()); err != nil {
					t.Fatalf("the supervisor: %v", err)
				}
				if err := c.ActivateRotation(a.name); err != nil {
					t.Fatal(err)
				}
				if got := memberTrust(t, c); got != prepared {
					t.Error("members need to trust something else, only since another authority signs")
				}
				now := snapshot(t, c, a.name)
				for name, want := range map[string]string{
					"-ca.crt": "-next-ca.crt", "-ca.key": "-next-ca.key",
					"-old-ca.crt": "-ca.crt",
				} {
					if string(now[pki(name)]) != string(old[pki(want)]) {
						t.Errorf("%s%s is not what %s%s was", a.name, name, a.name, want)
					}
				}
				if len(now) != 3 {
					t.Errorf("%d files are left, want 3", len(now))
				}
				if step, err := c.Rotation(a.name); err != nil || step != identity.Activated {
					t.Errorf("step %s, %v", step, err)
				}
				as, err := c.authorities()
				if err != nil {
					t.Fatal(err)
				}
				signed := 0
				for path, cert := range certificates(t, c) {
					if !slices.Contains(a.leaves, filepath.Base(path)) {
						continue
					}
					signed++
					if !as[a.name].Issued(cert) {
						t.Errorf("%s is not signed by the next authority", path)
					}
				}
				if signed == 0 {
					t.Error("nothing is signed by the authority")
				}
				if err := c.RetireFormer(a.name); err != nil {
					t.Fatal(err)
				}
				for _, path := range a.trust(c) {
					if got, err := os.ReadFile(path); err != nil || string(got) != string(old[pki("-next-ca.crt")]) {
						t.Errorf("%s trusts something else than the next authority: %v", path, err)
					}
				}
				// The rotation ends only when every program is known to have renewed, and no other begins before.
				if err := c.PrepareRotation(a.name); err != nil {
					t.Fatal(err)
				}
				if step, err := c.Rotation(a.name); err != nil || step != identity.Retired {
					t.Errorf("step %s, %v", step, err)
				}
				if err := c.EndRotation(a.name); err != nil {
					t.Fatal(err)
				}
				if step, err := c.Rotation(a.name); err != nil || step != identity.Steady {
					t.Errorf("step %s, %v", step, err)
				}
			})
		}
	}
}

// memberTrust returns what members of etcd have to trust, which the guardian must read from its copy, too.
func memberTrust(t *testing.T, c *Cluster) string {
	t.Helper()
	want, err := c.MemberTrust()
	if err != nil {
		t.Fatal(err)
	}
	var bundles [][]byte
	for _, name := range []string{topology.EtcdClientAuthority, topology.EtcdPeerAuthority} {
		trust, err := identity.LoadTrust(c.Service("etcd-guardian", "pki"), name)
		if err != nil {
			t.Fatal(err)
		}
		bundles = append(bundles, trust.Bundle())
	}
	if got, err := identity.TrustHash(bundles...); err != nil || got != want {
		t.Errorf("the guardian has members trust %s, %v, want %s", got, err, want)
	}
	return want
}

// die does what an activation does up to a step, and no more.
func die(t *testing.T, step int, pki func(string) string, old map[string][]byte) {
	t.Helper()
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for n, do := range []func(){
		func() {},
		func() { write(pki("-activating"), nil) },
		func() { write(pki("-old-ca.crt"), old[pki("-ca.crt")]) },
		func() { write(pki("-ca.key"), old[pki("-next-ca.key")]) },
		func() { write(pki("-ca.crt"), old[pki("-next-ca.crt")]) },
		func() { os.Remove(pki("-next-ca.crt")) },
		func() { os.Remove(pki("-next-ca.key")) },
	} {
		if n <= step {
			do()
		}
	}
}
