package hostbundle

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// needed returns the files that a host cannot make itself.
func needed(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{Settings: "{}", "policy.yaml": "x"}
	for _, name := range topology.Authorities() {
		a, err := identity.NewAuthority(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		key, err := a.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		files["pki/"+name+"-ca.crt"], files["pki/"+name+"-ca.key"] = string(a.PEM()), string(key)
	}
	for _, s := range topology.AllServices() {
		if s.Seals {
			files["services/"+s.Name+"/tls/"+serve.RecordKeysFile] = "{}"
		}
	}
	return files
}

// host writes files below a directory.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestABundleHasWhatAllHostsShare(t *testing.T) {
	files := needed(t)
	files["services/gateway/tokens"], files["release/index.json"], files["release/blobs/sha256/a"] = "t", "r", "b"
	of := maps.Clone(files)
	for _, name := range []string{
		"pki/lock", "services/gateway/tls/tls.key", "services/gateway/audit.log", "node/etcd/data/x.key", "admin/tls.key",
		"services/etcd-guardian/bootstrap/data/x", "host/tls.key",
	} {
		of[name] = "this host's alone"
	}
	bundle, err := Pack(host(t, of), ForJoin)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Unpack(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(files) {
		t.Errorf("it has %d files, want %d", len(got), len(files))
	}
	for name, content := range files {
		if string(got[name]) != content {
			t.Errorf("%s = %q, want %q", name, got[name], content)
		}
	}
}

func TestABundleThatLacksKeysIsRefused(t *testing.T) {
	whole := needed(t)
	for name := range whole {
		files := maps.Clone(whole)
		delete(files, name)
		if _, err := Pack(host(t, files), ForJoin); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Pack without %s: %v", name, err)
		}
		if _, err := Unpack(bundleOf(t, files)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Unpack without %s: %v", name, err)
		}
	}
	other := needed(t)
	for _, name := range topology.Authorities() {
		files := maps.Clone(whole)
		files["pki/"+name+"-ca.key"] = other["pki/"+name+"-ca.key"]
		if _, err := Pack(host(t, files), ForJoin); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("with another key of %s: %v", name, err)
		}
	}
	if _, err := Pack(host(t, whole), 100); err == nil {
		t.Error("a bundle that is too large is made")
	}
}

func TestABundleWithOtherFilesIsRefused(t *testing.T) {
	for _, name := range []string{
		"../x", "/etc/passwd", "pki/../policy.yaml", "services/scheduler/run/x", "pki/lock", "release", "",
		"services/scheduler/tls/tls.key",
	} {
		if _, err := Unpack(packed(t, name)); err == nil || !strings.Contains(err.Error(), "is no file of a host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func packed(t *testing.T, name string) []byte {
	t.Helper()
	return bundleOf(t, map[string]string{name: "x"})
}

// bundleOf packs files, whatever they are.
func bundleOf(t *testing.T, content map[string]string) []byte {
	t.Helper()
	files := map[string][]byte{}
	for name, text := range content {
		files[name] = []byte(text)
	}
	out, err := pack(files)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOnlyAKeyOfARecipientOpens(t *testing.T) {
	var keys, recipients []string
	for range 3 {
		key, recipient, err := NewRecoveryKey()
		if err != nil {
			t.Fatal(err)
		}
		keys, recipients = append(keys, key), append(recipients, recipient)
	}
	sealed, err := Seal([]byte("secret"), recipients[:2])
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("secret")) {
		t.Error("it is not encrypted")
	}
	for i, key := range keys {
		got, err := Open(sealed, "# made by age-keygen\n"+key+"\n")
		if i < 2 && (err != nil || string(got) != "secret") {
			t.Errorf("key %d: %q, %v", i, got, err)
		}
		if i == 2 && err == nil {
			t.Error("another key opens it")
		}
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := Open(sealed, keys[0]); err == nil {
		t.Error("one that was changed is opened")
	}
	if _, err := Open(sealed, "x"); err == nil {
		t.Error("no key opens it")
	}
}

func TestRecipients(t *testing.T) {
	key, recipient, err := NewRecoveryKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckRecipient(recipient); err != nil {
		t.Error(err)
	}
	for _, text := range []string{
		"", "age1", recipient + "\n" + recipient, recipient + " x", "#x", strings.ToUpper(recipient) + "1",
		"ssh-ed25519 AAAA",
	} {
		if CheckRecipient(text) == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for _, text := range []string{key, " " + key, "# created: 2026\n# public key: " + recipient + "\n" + key} {
		if err := CheckRecipient(text); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("a private key: %v", err)
		}
	}
	if _, err := Seal(nil, nil); err == nil {
		t.Error("sealed to no recipient")
	}
}
