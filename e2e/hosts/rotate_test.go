package hosts

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// testRotation renews the certificates of hosts and replaces authorities on all hosts, with a worker among them.
func testRotation(t *testing.T, f *fleet) {
	h1, h2, h3 := f.hosts[0], f.hosts[1], f.hosts[2]
	planes := append(slices.Clone(f.hosts), f.spare)
	w := f.worker("w2", 6)
	all := append(slices.Clone(planes), w)
	run(t, "certificates of hosts are renewed on request", func(t *testing.T) {
		out := h2.must("host", "certificates", "rotate", "--dir", h2.dir)
		if !strings.Contains(out, "services/gateway/tls/tls.crt") || !strings.Contains(out, "host h2: ") ||
			!strings.Contains(out, "certificates renewed, valid until") {
			t.Error(out)
		}
		before := map[string]string{}
		for _, h := range all {
			before[h.name] = h.file("host/tls.crt")
		}
		out = h2.must("host", "certificates", "rotate", "--all", "--dir", h2.dir)
		for _, h := range all {
			if now := h.file("host/tls.crt"); now == before[h.name] || !strings.Contains(out, "host "+h.name+" ") {
				t.Errorf("the certificate of %s is the former one: %s", h.name, out)
			}
		}
		if out, code := w.cli("host", "certificates", "rotate", "--dir", w.dir); code == 0 ||
			!strings.Contains(out, "run `windlass host certificates rotate w2` on a control-plane host") {
			t.Errorf("on a worker: exit code %d: %s", code, out)
		}
	})
	run(t, "a rotation waits for a host that is away, and names it", func(t *testing.T) {
		h1.halt()
		f.await("the loss of h1", func() string { return h1.missing("Lost", h2) })
		out, code := h2.here("auth", "rotate", "api", "--timeout", "10s")
		if code == 0 || !strings.Contains(out, "host h1 is away since") ||
			!strings.Contains(out, "start it, or remove it with `windlass host remove h1`") {
			t.Errorf("exit code %d: %s", code, out)
		}
		if out, code := h3.here("auth", "rotate", "etcd-client"); code == 0 ||
			!strings.Contains(out, "authority windlass is being rotated") {
			t.Errorf("a second rotation: exit code %d: %s", code, out)
		}
		h1.start()
	})
	run(t, "the authority of services is replaced while calls go on and programs are killed", func(t *testing.T) {
		former := h2.file("pki/windlass-ca.crt")
		writer := h2.write("rotate")
		writer.Progress()
		// The command is killed, and goes on from another host; the hosts do not wait for it.
		cmd := h2.begin("auth", "rotate", "api")
		f.await("all hosts in the second step", func() string {
			if p, err := h2.rotation(); p.GetRotation().GetStep() < hostv1.Rotation_STEP_ACTIVATE {
				return fmt.Sprint(p, err)
			}
			return ""
		})
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		h3.halt() // in the midst of the step
		h1.kill(topology.ProviderInventory)
		h3.start()
		out, code := h3.here("auth", "rotate", "api")
		if code != 0 || !strings.Contains(out, "every host uses certificates of the next authority") {
			t.Fatalf("exit code %d: %s", code, out)
		}
		if out, code = h3.here("auth", "rotate", "--status"); code != 0 || !strings.Contains(out, "rotate api --finish") {
			t.Errorf("status: exit code %d: %s", code, out)
		}
		made, failed := writer.End()
		if failed = slices.DeleteFunc(failed, ended); len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, planes...)
		// All connections of certificates of the former authority are closed now, also those between the programs: calls
		// may fail for some seconds, and nothing that was acknowledged is lost.
		writer = h2.write("finish")
		writer.Progress()
		out, code = h2.here("auth", "rotate", "api", "--finish")
		if code != 0 || !strings.Contains(out, "the former authority is rejected on every host") {
			t.Fatalf("exit code %d: %s", code, out)
		}
		writer.Progress()
		made, _ = writer.End()
		f.kept(made, planes...)
		f.rotated(topology.APIAuthority, former, planes...)
		if ca := w.file("node/pki/ca.crt"); ca != h2.file("pki/windlass-ca.crt") {
			t.Errorf("the worker's machine trusts %s", ca)
		}
		f.await("the worker's host to be in use", func() string { return w.missing("InUse", h2) })
	})
	run(t, "the authority of etcd's clients is replaced on all hosts", func(*testing.T) {
		former := h2.file("pki/etcd-client-ca.crt")
		f.await("three voters", func() string { return h2.voters(3) })
		writer := h3.write("rotate-etcd")
		writer.Progress()
		cmd := h2.begin("auth", "rotate", topology.EtcdClientAuthority)
		f.await("the second step", func() string {
			if p, err := h3.rotation(); p.GetRotation().GetStep() < hostv1.Rotation_STEP_ACTIVATE {
				return fmt.Sprint(p, err)
			}
			return ""
		})
		h2.halt()
		h2.start()
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		made, failed := writer.End()
		if failed = slices.DeleteFunc(failed, ended); len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, planes...)
		f.rotated(topology.EtcdClientAuthority, former, planes...)
		f.await("three voters", func() string { return h2.voters(3) })
	})
}

// rotated fails the test unless hosts have the same new authority, with its key, and etcd has that key nowhere in the
// clear.
func (f *fleet) rotated(name, former string, hosts ...*host) {
	f.t.Helper()
	cert, key := hosts[0].file("pki/"+name+"-ca.crt"), hosts[0].file("pki/"+name+"-ca.key")
	// As it is, in a line of its PEM, and with the PEM in JSON.
	block, _ := pem.Decode([]byte(key))
	needles := [][]byte{
		block.Bytes, []byte(strings.Split(key, "\n")[1]), []byte(base64.StdEncoding.EncodeToString([]byte(key))),
	}
	for _, h := range hosts {
		if h.file("pki/"+name+"-ca.crt") != cert || h.file("pki/"+name+"-ca.key") != key || cert == former {
			f.t.Errorf("host %s has another authority %s, or the former one", h.name, name)
		}
		f.await("the end of the rotation on "+h.name, func() string {
			for _, left := range []string{"-old-ca.crt", "-next-ca.crt", "-next-ca.key", "-retired", "-activating"} {
				if _, err := os.Stat(filepath.Join(h.dir, "pki", name+left)); err == nil {
					return name + left
				}
			}
			return ""
		})
		read := 0
		if err := filepath.WalkDir(filepath.Join(h.dir, "node", "etcd"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a member that runs removed it
			}
			read++
			for _, needle := range needles {
				if bytes.Contains(raw, needle) {
					f.t.Errorf("the key of authority %s is in %s", name, path)
				}
			}
			return err
		}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.t.Error(err)
		}
		if read == 0 && len(h.pids("etcd-member")) > 0 {
			f.t.Errorf("no file of the member on %s was searched", h.name)
		}
	}
}

// worker joins a worker, with the last number of its address, and gives it a machine.
func (f *fleet) worker(name string, number int) *host {
	f.t.Helper()
	h2 := f.hosts[1]
	w := &host{
		t: f.t, bin: h2.bin, name: name, address: fmt.Sprintf("%s.%d", strings.TrimSuffix(h2.address, ".2"), number),
		dir: filepath.Join(f.t.TempDir(), "windlass"),
	}
	f.t.Cleanup(w.stop)
	w.join(h2)
	w.start()
	f.await("the worker to be available", func() string { return w.missing("Available", h2) })
	set := filepath.Join(w.dir, "workers.yaml")
	if err := os.WriteFile(set, []byte(workers), 0o600); err != nil {
		f.t.Fatal(err)
	}
	h2.mustAsk("apply", "-f", set)
	f.await("the worker to be in use", func() string { return w.missing("InUse", h2) })
	node := w.machine(h2)
	f.await("its node", func() string {
		if out, code := h2.ask("wait", "node/"+node, "--for=condition=Ready", "--timeout=1s"); code != 0 {
			return out
		}
		return ""
	})
	return w
}

// file returns the content of a file of this host.
func (h *host) file(name string) string {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.dir, filepath.FromSlash(name)))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(raw)
}

// begin starts a command on this host, as here runs one.
func (h *host) begin(args ...string) *exec.Cmd {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.bin, args...)
	cmd.Env = append(os.Environ(), "WINDLASS_HOST_DIR="+h.dir, "WINDLASS_HOME="+h.t.TempDir())
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return cmd
}

// rotation returns the rotation that is under way.
func (h *host) rotation() (*hostv1.PlanRotationResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	return hostv1.NewHostServiceClient(conn).PlanRotation(ctx, &hostv1.PlanRotationRequest{})
}
