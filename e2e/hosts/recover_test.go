package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClusterIsRecovered loses a majority of the control-plane hosts, and then all of them.
func TestClusterIsRecovered(t *testing.T) {
	f := newFleet(t)
	f.await("three voters", func() string { return f.hosts[0].voters(3) })
	alone, key := f.hosts[2], filepath.Join(t.TempDir(), "recovery.key")
	alone.must("host", "recovery-key", "--output", key)
	backup := f.backUp(alone, key)
	alone.put("kept", "after the snapshot")

	t.Run("a survivor goes on after the loss of a majority", func(t *testing.T) {
		f.recoverFrom(t, alone)
	})
	t.Run("hosts that come back with the data of before join", func(t *testing.T) {
		for _, h := range f.hosts[:2] { // together they are a majority of the cluster of before
			h.start()
		}
		f.await("three voters", func() string { return alone.voters(3) })
		for _, h := range f.hosts[:2] {
			h.wasSetAside(t)
			if got := h.value("kept"); got != "after the snapshot" {
				t.Errorf("%s has %q", h.name, got)
			}
		}
	})
	t.Run("a fresh host goes on from a backup alone", func(t *testing.T) {
		for _, h := range f.hosts {
			h.lose()
		}
		f.restoreOn(t, f.spare, backup, key)
	})
	t.Run("a host that comes back after that joins", func(t *testing.T) {
		h := f.hosts[1]
		h.must("host", "set", "--gateway", f.spare.address+":6443", "--dir", h.dir)
		h.start()
		f.await("the data of "+h.name+" aside", func() string { return h.notAside(2) })
		f.await("its voter", func() string { return f.spare.lacksVoters(1) })
		if got := h.value("kept"); got != "before the snapshot" {
			t.Errorf("%s has %q: it was not restored", h.name, got)
		}
	})
}

// backUp takes a snapshot with the keys of the control plane, and returns its file, which is on no host any more.
func (f *fleet) backUp(h *host, key string) (file string) {
	f.t.Helper()
	h.put("kept", "before the snapshot")
	raw, err := os.ReadFile(key)
	if err != nil {
		f.t.Fatal(err)
	}
	_, recipient, _ := strings.Cut(string(raw), "public key: ")
	recipient, _, _ = strings.Cut(recipient, "\n")
	at := filepath.Join(f.t.TempDir(), "snapshot.yaml")
	text := "apiVersion: windlass.dev/v1\nkind: Snapshot\nmetadata: {name: all}\nspec: {keyRecipients: [" + recipient +
		"]}\n"
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	h.mustAsk("create", "-f", at)
	f.await("the snapshot", func() string {
		if out, _ := h.ask("get", "snapshot", "all", "-o", "jsonpath={.status.phase}"); out != "Completed" {
			return out
		}
		return ""
	})
	out, _ := h.ask("get", "snapshot", "all", "-o", "jsonpath={.status.location} {.status.keyRecipients[0]}")
	location, to, _ := strings.Cut(strings.TrimSpace(out), " ")
	if to != recipient {
		f.t.Errorf("the keys are encrypted to %q, want %q", to, recipient)
	}
	away := f.t.TempDir()
	for _, suffix := range []string{".db", ".keys.age"} {
		content, err := os.ReadFile(strings.TrimSuffix(location, ".db") + suffix)
		if err != nil {
			f.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(away, "all"+suffix), content, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	return filepath.Join(away, "all.db")
}

// recoverFrom kills the other hosts and recovers etcd from one.
func (f *fleet) recoverFrom(t *testing.T, h *host) {
	out, code := h.here("quorum", "recover", "--yes")
	if code == 0 || !strings.Contains(out, "nothing to recover") {
		t.Fatalf("recover of a cluster that works: exit code %d\n%s", code, out)
	}
	for _, o := range f.hosts {
		if o != h {
			o.lose()
		}
	}
	out = ""
	f.await("the refusal", func() string {
		out, code = h.here("quorum", "recover", "--yes")
		if code == 0 || !strings.Contains(out, "confirm it with --without ") {
			return out
		}
		return ""
	})
	_, others, _ := strings.Cut(strings.TrimSpace(out), "confirm it with --without ")
	if out, code := h.here("quorum", "recover", "--without", others); code == 0 ||
		!strings.Contains(out, "nothing was changed") {
		t.Fatalf("recover without --yes: exit code %d\n%s", code, out)
	}
	if out, code := h.here("quorum", "recover", "--yes", "--without", strings.Split(others, ",")[0]); code == 0 {
		t.Fatalf("one of two voters is confirmed to be off, and it goes on:\n%s", out)
	}
	began := time.Now()
	out, code = h.here("quorum", "recover", "--yes", "--without", others)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	t.Logf("%s", out)
	h.halt() // which the command has ended
	h.start()
	f.await("a voter on the host", func() string { return h.lacksVoters(1) })
	if got := h.value("kept"); got != "after the snapshot" {
		t.Errorf("%q", got)
	}
	h.put("kept", "after the snapshot")
	t.Logf("  recovered and written to after %.1f s", time.Since(began).Seconds())
}

// restoreOn begins the cluster again on a host that has nothing of it.
func (f *fleet) restoreOn(t *testing.T, h *host, backup, key string) {
	other := filepath.Join(t.TempDir(), "other.key")
	h.must("host", "recovery-key", "--output", other)
	args := []string{
		"host", "restore", backup, "--address", h.address, "--hostname", h.name, "--dir", h.dir, "--recovery-key",
	}
	if out, code := h.cli(append(args, other)...); code == 0 || !strings.Contains(out, "does not open these keys") {
		t.Fatalf("with another key: exit code %d\n%s", code, out)
	}
	began := time.Now()
	t.Log(h.must(append(args, key)...))
	h.start()
	f.await("the host in the inventory", func() string {
		out, code := h.ask("get", "hosts", h.name)
		if code != 0 || !strings.Contains(out, "Available") {
			return out
		}
		return ""
	})
	if got := h.value("kept"); got != "before the snapshot" {
		t.Errorf("%q", got)
	}
	t.Logf("  restored on a fresh host after %.1f s", time.Since(began).Seconds())
}

// wasSetAside fails unless the host moved the data of etcd aside once.
func (h *host) wasSetAside(t *testing.T) {
	t.Helper()
	if missing := h.notAside(1); missing != "" {
		t.Error(missing)
	}
}

// notAside says what there is instead of n directories with data of a member that was moved aside.
func (h *host) notAside(n int) string {
	found, err := filepath.Glob(filepath.Join(h.dir, "etcd-before-*", "*", "member", "wal"))
	if err != nil || len(found) != n {
		return strings.Join(found, ", ") + ": not the data of " + h.name
	}
	return ""
}

// lacksVoters returns "" if n voters are healthy besides the bootstrap member, and otherwise what there is.
func (h *host) lacksVoters(n int) string {
	q, healthy, err := h.quorum()
	if err != nil {
		return err.Error()
	}
	if healthy != n {
		return fmt.Sprint(q)
	}
	return ""
}

// put stores a value.
func (h *host) put(name, value string) {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "value.yaml")
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\ndata: {value: " + value +
		"}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.mustAsk("apply", "-f", file)
}

// value returns what put stored, or why it is not known.
func (h *host) value(name string) string {
	out, _ := h.ask("get", "configmap", name, "-n", "default", "-o", "jsonpath={.data.value}")
	return strings.TrimSpace(out)
}
