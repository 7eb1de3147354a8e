package cluster

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// begin makes the files of the first host of a cluster.
func beginHost(t *testing.T, address string) *Cluster {
	t.Helper()
	m, err := NewMember("a", address, "rack-1")
	if err != nil {
		t.Fatal(err)
	}
	m.First = m.Address
	c, err := CreateHost(filepath.Join(t.TempDir(), "windlass"), Settings{Name: "main", Member: &m})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestMembersAreChecked(t *testing.T) {
	for _, c := range []struct{ name, address, want string }{
		{"a", "192.0.2.1", "192.0.2.1"},
		{"a", "::ffff:192.0.2.1", "192.0.2.1"},
		{"a", "FD00:0::1", "fd00::1"},
		{"A", "192.0.2.1", ""},
		{"a", "host", ""},
		{"a", "0.0.0.0", ""},
		{"a", "fe80::1%eth0", ""},
		{"a", "224.0.0.1", ""},
	} {
		m, err := NewMember(c.name, c.address, "")
		if (err != nil) != (c.want == "") || m.Address != c.want {
			t.Errorf("%s %s: %+v, %v; want %q", c.name, c.address, m, err, c.want)
		}
	}
}

func TestAHostMayHaveAnIPv6Address(t *testing.T) {
	c := beginHost(t, "fd00::1")
	client, peer := c.BootstrapURLs()
	for _, at := range []string{
		c.Gateway(), c.listen("scheduler", 0), strings.TrimPrefix(client, "https://"), strings.TrimPrefix(peer, "https://"),
	} {
		if host, _, err := net.SplitHostPort(at); err != nil || host != "fd00::1" {
			t.Errorf("%s: %q, %v", at, host, err)
		}
	}
}

// Authorities are made by the first call for a new cluster alone: others would not be trusted by anyone, and an empty
// etcd would have nothing of what there was.
func TestLostKeysOfAHostAreNotMadeAgain(t *testing.T) {
	c := beginHost(t, "127.0.0.1")
	for _, dir := range []string{"pki", "services", "admin"} {
		if err := os.RemoveAll(c.Dir(dir)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := OpenHost(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := again.EnsureCertificates(time.Now()); err == nil || !strings.Contains(err.Error(), "is lost") {
		t.Errorf("%d certificates of new authorities: %v", n, err)
	}
	if there, err := exists(again.Service("etcd-guardian", "bootstrap", "allowed")); there || err != nil {
		t.Errorf("an empty etcd is allowed: %t, %v", there, err)
	}
	if _, err := CreateHost(c.Dir(), c.Settings); err == nil {
		t.Error("the cluster is begun a second time")
	}
}

func TestABeginningThatWasCutOffIsRepeated(t *testing.T) {
	m, err := NewMember("a", "127.0.0.1", "")
	if err != nil {
		t.Fatal(err)
	}
	m.First = m.Address
	dir := t.TempDir()
	for range 2 {
		if _, err := CreateHost(dir, Settings{Name: "main", Member: &m}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherHostGetsWhatIsSharedAndNothingElse(t *testing.T) {
	first := beginHost(t, "127.0.0.1")
	for name, content := range map[string]string{
		"release/initial": "x", "services/gateway/tokens": "t", "services/machine-api/endpoints": "https://127.0.0.1:2389",
		"services/machine-api/audit.log": "secret", "pki/audit.log": "secret", "services/scheduler/data": "secret",
	} {
		if err := os.MkdirAll(filepath.Dir(first.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(first.Dir(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bundle, err := first.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMember("b", "127.0.0.2", "rack-2")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(first.Dir("pki", "windlass-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	joined := Joined{Bundle: bundle, Authority: authority, Endpoints: []string{"https://127.0.0.1:2389"}}
	c, err := JoinHost(filepath.Join(t.TempDir(), "windlass"), m, joined)
	if err != nil {
		t.Fatal(err)
	}
	if c.Member.Name != "b" || c.Member.First != "127.0.0.1" || c.Host() != "127.0.0.2" || !c.Member.Begun {
		t.Errorf("settings %+v", c.Member)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"release/initial": true, "services/gateway/tokens": true, "services/scheduler/endpoints": true,
		"services/machine-api/tls/record-keys.json": true, "policy.yaml": true,
		"services/machine-api/audit.log": false, "pki/audit.log": false, "services/scheduler/data": false,
		"services/etcd-guardian/bootstrap/allowed": false,
	} {
		if there, err := exists(c.Dir(name)); err != nil || there != want {
			t.Errorf("%s: %t, %v; want %t", name, there, err, want)
		}
	}
	for _, name := range []string{"windlass", "etcd-client", "etcd-peer"} {
		a, errA := os.ReadFile(first.Dir("pki", name+"-ca.crt"))
		b, errB := os.ReadFile(c.Dir("pki", name+"-ca.crt"))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("authority %s differs: %v %v", name, errA, errB)
		}
	}
	if _, err := JoinHost(c.Dir(), m, joined); err == nil {
		t.Error("a host joins twice")
	}
	refused := func(what, dir string, m Member, j Joined) {
		t.Helper()
		if _, err := JoinHost(dir, m, j); err == nil {
			t.Errorf("%s: is taken", what)
		}
		if there, err := exists(filepath.Join(dir, hostFile)); err != nil || there {
			t.Errorf("%s: the host has settings: %v", what, err)
		}
	}
	other := joined
	other.Authority = []byte("another")
	refused("authorities of after a rotation", t.TempDir(), m, other)
	// A member that shows a certificate of an authority that the bundle does not have.
	pair, err := tls.LoadX509KeyPair(first.Dir("services/machine-api/tls/tls.crt"),
		first.Dir("services/machine-api/tls/tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	other = joined
	other.Endpoints = []string{"https://" + listener.Addr().String()}
	refused("authorities of etcd of after a rotation", t.TempDir(), m, other)
	other = joined
	other.Endpoints = nil
	refused("no etcd", t.TempDir(), m, other)
	other.Bundle, other.Endpoints = joined.Bundle[:len(joined.Bundle)/2], joined.Endpoints
	refused("a bundle that was cut off", t.TempDir(), m, other)
	used := t.TempDir()
	if err := os.MkdirAll(filepath.Join(used, "services"), 0o700); err != nil {
		t.Fatal(err)
	}
	refused("a directory with files of another cluster", used, m, joined)
	again := t.TempDir()
	if err := os.WriteFile(filepath.Join(again, "joining"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(again, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := JoinHost(again, m, joined); err != nil {
		t.Errorf("a join that was cut off is not repeated: %v", err)
	}
	m.Address = "127.0.0.1"
	refused("the address of the first host", t.TempDir(), m, joined)
}

func TestARestoreThatWasCutOffIsRepeated(t *testing.T) {
	first := beginHost(t, "127.0.0.1")
	first.Member.Recovered = time.Unix(1_900_000_000, 0).UTC()
	if err := first.Save(); err != nil {
		t.Fatal(err)
	}
	bundle, err := first.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMember("fresh", "127.0.0.9", "rack-9")
	if err != nil {
		t.Fatal(err)
	}
	dir, cut := filepath.Join(t.TempDir(), "windlass"), errors.New("cut off")
	if _, err := RestoreHost(dir, m, bundle, func(*Cluster) error { return cut }); !errors.Is(err, cut) {
		t.Fatalf("%v, want %v", err, cut)
	}
	if _, err := OpenHost(dir); !errors.Is(err, ErrNone) {
		t.Fatalf("a restore that was cut off makes a host: %v", err)
	}
	c, err := RestoreHost(dir, m, bundle, (*Cluster).Save)
	if err != nil {
		t.Fatal(err)
	}
	is := *c.Member
	want := Member{
		Name: "fresh", Address: "127.0.0.9", Zone: "rack-9", First: "127.0.0.9", Begun: true,
		Recovered: first.Member.Recovered,
	}
	if is != want {
		t.Errorf("%+v, want %+v", is, want)
	}
	if _, err := c.EnsureCertificates(time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := RestoreHost(dir, m, bundle, (*Cluster).Save); err == nil {
		t.Error("a host that is in a cluster is restored over")
	}
}
