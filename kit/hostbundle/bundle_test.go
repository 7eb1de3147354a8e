package hostbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/topology"
)

// needed returns the files that a host cannot make itself.
func needed() map[string]string {
	files := map[string]string{Settings: "{}", "policy.yaml": "x"}
	for _, name := range topology.Authorities() {
		files["pki/"+name+"-ca.crt"], files["pki/"+name+"-ca.key"] = "x", "x"
	}
	for _, s := range topology.AllServices() {
		if s.Seals {
			files["services/"+s.Name+"/tls/"+serve.RecordKeysFile] = "x"
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
	files := needed()
	files["services/gateway/tokens"], files["release/index.json"], files["release/blobs/sha256/a"] = "t", "r", "b"
	of := maps.Clone(files)
	for _, name := range []string{
		"pki/lock", "services/gateway/tls/tls.key", "services/gateway/audit.log", "node/etcd/data/x.key", "admin/tls.key",
		"services/etcd-guardian/bootstrap/data/x", "host/tls.key",
	} {
		of[name] = "this host's alone"
	}
	bundle, err := Pack(host(t, of))
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
	for name := range needed() {
		files := needed()
		delete(files, name)
		bundle, err := Pack(host(t, files))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(bundle); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
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
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	files := tar.NewWriter(compressed)
	if err := files.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(files.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
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
	if err := CheckRecipient(key); err == nil || strings.Contains(err.Error(), key) {
		t.Errorf("a private key: %v", err)
	}
	if _, err := Seal(nil, nil); err == nil {
		t.Error("sealed to no recipient")
	}
}
