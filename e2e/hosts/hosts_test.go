package hosts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/topology"
)

// operator returns a condition of a ClusterOperator with its message, as the gateway of a host shows it.
func (h *host) operator(name, condition string) (is, message string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	o, err := updatev1.NewClusterOperatorServiceClient(conn).GetClusterOperator(ctx,
		&updatev1.GetClusterOperatorRequest{Name: name})
	for _, c := range o.GetStatus().GetConditions() {
		if c.GetType() == condition {
			is, message = c.GetStatus(), c.GetMessage()
		}
	}
	return is, message, err
}

// write starts a writer at the gateway of this host.
func (h *host) write(prefix string) *harness.MapWriter {
	h.t.Helper()
	return harness.WriteMaps(h.t, h.conn(), prefix)
}

// kept fails the test unless every gateway of hosts has all that was acknowledged.
func (f *fleet) kept(made []string, hosts ...*host) {
	f.t.Helper()
	for _, h := range hosts {
		harness.HasMaps(f.t, h.name, h.conn(), made)
	}
}

// workers is a set of one machine on a host of the inventory.
const workers = `apiVersion: machine.openshift.io/v1beta1
kind: MachineSet
metadata:
  name: workers
  namespace: openshift-machine-api
spec:
  replicas: 1
  selector:
    matchLabels:
      set: workers
  template:
    metadata:
      labels:
        set: workers
    spec:
      providerSpec:
        value:
          apiVersion: windlass.dev/v1
          kind: InventoryMachineProviderSpec
`

// operators returns "" if all ClusterOperators are Available at the gateway of a host.
func operators(at *host) string {
	for _, name := range topology.NamesOnHosts() {
		is, message, err := at.operator(topology.Operator(name), "Available")
		if err != nil || is != "True" {
			return fmt.Sprintf("%s at %s is Available=%s: %s %v", name, at.name, is, message, err)
		}
	}
	return ""
}

// The parts are of one cluster, each on what the one before leaves.
func TestThreeHosts(t *testing.T) {
	f := newFleet(t)
	for _, h := range f.hosts {
		f.await("all operators at "+h.name, func() string { return operators(h) })
	}
	testJoins(t, f)
	testPrograms(t, f)
	testAccess(t, f)
	testLosses(t, f)
	testMachines(t, f)
	testUpdate(t, f)
	testRotation(t, f)
	run(t, "stop ends all programs", func(t *testing.T) {
		h3 := f.hosts[2]
		out := h3.must("host", "stop", "--dir", h3.dir)
		if left := h3.pids(""); len(left) > 0 {
			t.Errorf("%s but %v run", out, left)
		}
		h3.run = nil
	})
}

// testJoins is about what is there after the joins, and about tokens. The spare has joined then.
func testJoins(t *testing.T, f *fleet) {
	h1, h2, h3 := f.hosts[0], f.hosts[1], f.hosts[2]
	run(t, "each program runs on each host and finds the others", func(*testing.T) {
		for _, name := range append(topology.Names(), topology.ProviderInventory) {
			for _, h := range f.hosts {
				if n := len(h.pids(name)); (name == topology.ProviderLocal) != (n == 0) || n > 1 {
					t.Errorf("%d processes of %s on %s", n, name, h.name)
				}
			}
		}
	})
	run(t, "each host has a member of etcd, and the first one has left", func(t *testing.T) {
		f.await("three voters", func() string { return h2.voters(3) })
		for _, h := range f.hosts {
			pids := h.pids("etcd-member")
			if missing := h.missing("InUse", h); len(pids) != 1 || missing != "" {
				t.Errorf("processes of members on %s: %v; %s", h.name, pids, missing)
			}
		}
		if _, err := os.Stat(filepath.Join(h1.dir, "services", "etcd-guardian", "bootstrap", "data")); err == nil {
			t.Error("the data of the first member is there")
		}
	})
	run(t, "a token is good for one host", func(t *testing.T) {
		token, code := h1.stdout("host", "token", "--control-plane", "--dir", h1.dir)
		if code != 0 {
			t.Fatal(token)
		}
		other := &host{t: t, bin: h1.bin, dir: t.TempDir()}
		at := strings.TrimSuffix(h3.address, ".3") + ".4"
		for _, name := range []string{"h1", "h3"} {
			if out, code := other.cli("host", "join", token, "--address", at, "--hostname", name, "--dir",
				other.dir); code == 0 ||
				!strings.Contains(out, "already exists") {
				t.Errorf("joined as %s: exit code %d: %s", name, code, out)
			}
		}
		other.must("host", "join", token, "--address", at, "--hostname", "h4", "--dir", other.dir)
		late := &host{t: t, bin: h1.bin, dir: t.TempDir()}
		out, code := late.cli("host", "join", token, "--address", at, "--hostname", "h5", "--dir", late.dir)
		if code == 0 || !strings.Contains(out, "the token was used already, for host h4") {
			t.Errorf("a used token: exit code %d: %s", code, out)
		}
		if out, code := late.cli("host", "run", "--dir", late.dir); code == 0 {
			t.Errorf("a host that did not join runs: %s", out)
		}
		if entries, err := os.ReadDir(filepath.Join(late.dir, "pki")); err == nil {
			t.Errorf("a host that did not join has keys: %v", entries)
		}
	})
	run(t, "a host is removed, and its name is free", func(*testing.T) {
		h1.must("host", "remove", "h4", "--dir", h1.dir)
		f.spare.join(h2, "--control-plane")
	})
	run(t, "a host is not begun twice", func(t *testing.T) {
		out, code := h1.cli("host", "init", "--address", h1.address, "--dir", h1.dir)
		if code == 0 || !strings.Contains(out, "there is a cluster already") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
}

// testPrograms takes programs away. The first host leads everything until then.
func testPrograms(t *testing.T, f *fleet) {
	h1, h2 := f.hosts[0], f.hosts[1]
	run(t, "another host leads when the leader's program is gone", func(t *testing.T) {
		h1.halt()
		defer h1.start()
		h1.kill(topology.Scheduler)
		w := h1.write("led")
		w.Progress()
		made, _ := w.End()
		f.kept(made, f.hosts...)
		f.await("a leader of scheduler on another host", func() string {
			out, code := h1.ask("get", "pods", "-A")
			if code != 0 {
				return out
			}
			return ""
		})
	})
	run(t, "a host without a program is served by the others, and that is said", func(t *testing.T) {
		w := h2.write("missing")
		w.Progress()
		h2.halt() // nothing starts it again
		h2.kill(topology.HookBroker)
		h2.kill(topology.Scheduler)
		w.Progress()
		f.await("scheduler to be degraded", func() string {
			is, message, err := h2.operator(topology.Scheduler, "Degraded")
			if is == "True" && strings.Contains(message, "host h2: no process runs there") {
				return ""
			}
			return fmt.Sprintf("Degraded=%s %q %v", is, message, err)
		})
		if is, _, err := h2.operator(topology.Scheduler, "Available"); is != "True" {
			t.Errorf("scheduler is Available=%s %v while two hosts have it", is, err)
		}
		made, failed := w.End()
		failed = slices.DeleteFunc(failed, ended)
		if len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, f.hosts...)
		h2.start()
		f.await("scheduler to be well", func() string {
			if is, message, err := h2.operator(topology.Scheduler, "Degraded"); is != "False" {
				return fmt.Sprintf("Degraded=%s %q %v", is, message, err)
			}
			return ""
		})
	})
	run(t, "the audit logs of all hosts are shown at any of them, and what is missing is named", func(t *testing.T) {
		testAudit(t, f)
	})
	run(t, "programs run on when windlass host run ends, and are taken over", func(t *testing.T) {
		before := h2.pids("")
		h2.halt()
		h2.start()
		f.await("windlass host run", func() string {
			if _, code := h2.ask("get", "clusteroperators"); code != 0 {
				return "the gateway does not answer"
			}
			return ""
		})
		if after := h2.pids(""); !slices.Equal(before, after) {
			t.Errorf("processes %v became %v", before, after)
		}
	})
}

// testAudit reads the audit logs over all hosts, with the gateway of one of them away in between.
func testAudit(t *testing.T, f *fleet) {
	h1, h2, h3 := f.hosts[0], f.hosts[1], f.hosts[2]
	for _, at := range []*host{h1, h2} {
		out, code := at.ask("audit", "-o", "json")
		if code != 0 {
			t.Errorf("windlass audit at %s: exit code %d: %s", at.name, code, out[max(0, len(out)-1000):])
		}
		for _, h := range f.hosts {
			for _, want := range []string{
				fmt.Sprintf(`{"host":%q,"log":"machine-api/audit.log"`, h.name),
				fmt.Sprintf(`{"host":%q,"log":"scheduler/audit.log"`, h.name),
			} {
				if !strings.Contains(out, want) {
					t.Errorf("no record %s at %s", want, at.name)
				}
			}
		}
	}
	// The records of a log on another host are those that its disk has.
	raw, err := os.ReadFile(filepath.Join(h3.dir, "services", topology.Scheduler, "audit.log"))
	whole, code := h1.ask("audit", "--host", h3.name, "-o", "raw")
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	for line := range strings.Lines(string(raw)) {
		if !strings.Contains(whole, line) {
			t.Errorf("the record of %s is not shown as it was written: %s", h3.name, line)
			break
		}
	}
	h3.halt()
	h3.kill(topology.Gateway)
	out, code := h1.ask("audit", "--since", "1h")
	if code != 1 || !strings.Contains(out, "error: host h3: records are missing: it does not answer") {
		t.Errorf("with the gateway of h3 away: exit code %d: %s", code, out[max(0, len(out)-1000):])
	}
	h3.start()
	f.await("all records", func() string {
		if out, code := h1.ask("audit", "--since", "1m"); code != 0 {
			return out
		}
		return ""
	})
	if out, code := h1.here("auth", "issue", "--user", "vera", "--group", "windlass:viewers", "--out",
		filepath.Join(h1.dir, "..", "vera")); code != 0 {
		t.Fatal(out)
	}
	vera := filepath.Join(h1.dir, "..", "vera")
	if out, code := h1.cli("audit", "--server", h1.address+":6443", "--cacert", filepath.Join(vera, "ca.crt"), "--cert",
		filepath.Join(vera, "tls.crt"), "--key", filepath.Join(vera, "tls.key")); code == 0 ||
		!strings.Contains(out, "may not get auditlogs") || strings.Contains(out, "machine-api") {
		t.Errorf("a viewer: exit code %d: %s", code, out)
	}
}

// testLosses takes hosts away. The first host is the spare then.
func testLosses(t *testing.T, f *fleet) {
	h1, h2, h3, h4 := f.hosts[0], f.hosts[1], f.hosts[2], f.spare
	run(t, "a host that is lost stops no call at another gateway", func(t *testing.T) {
		w := h2.write("lost")
		w.Progress()
		h3.lose()
		w.Progress()
		made, failed := w.End()
		if len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, h1, h2)
	})
	run(t, "a lost host comes back with the same command", func(*testing.T) {
		h3.start()
		f.await("all operators at "+h3.name, func() string { return operators(h3) })
		f.await("three voters", func() string { return h2.voters(3) })
	})
	run(t, "the host that began the cluster is lost, and a spare takes its place", func(t *testing.T) {
		h4.start()
		f.await("a spare host", func() string { return h4.missing("Available", h2) })
		// It joined by a token from before the changes.
		f.await("the policy and the tokens of the spare", func() string { return inForce(h2, h1, h2, h3, h4) })
		if h4.file("policy.yaml") != h2.file("policy.yaml") {
			t.Error("the spare has another policy")
		}
		machine := h1.machine(h2)
		w := h2.write("first")
		w.Progress()
		h1.lose()
		w.Progress()
		h2.mustAsk("delete", "machine", machine, "--wait=false")
		f.await("a voter on h4", func() string {
			if missing := h4.missing("InUse", h2); missing != "" {
				return missing
			}
			return h2.voters(3)
		})
		w.Progress()
		made, failed := w.End()
		if failed = slices.DeleteFunc(failed, ended); len(failed) > 0 {
			t.Errorf("calls that failed: %q", failed)
		}
		f.kept(made, h2, h3, h4)
		// It was not confirmed that the host is off: its machine may still run.
		if out, code := h2.ask("get", "machine", machine); code != 0 || !strings.Contains(out, "Deleting") {
			t.Errorf("the machine of a silent host: %s", out)
		}
		f.await("the silence to be a loss", func() string {
			out, code := h2.cli("host", "fence", h1.name, "--reason", "killed by the test", "--dir", h2.dir)
			if code != 0 {
				return out
			}
			return ""
		})
		f.await("the end of its machine", func() string {
			if out, code := h2.ask("get", "machine", machine); code == 0 {
				return out
			}
			return ""
		})
	})
	run(t, "it comes back, is wiped, and a machine may claim it", func(t *testing.T) {
		h1.start()
		f.await("h1 to be available", func() string {
			if missing := h1.missing("Available", h1); missing != "" {
				return missing
			}
			return operators(h1)
		})
		if pids := append(h1.pids("etcd-member"), h1.pids("node-agent")...); len(pids) > 0 {
			t.Errorf("of its machine %v run", pids)
		}
		if left, err := os.ReadDir(filepath.Join(h1.dir, "node")); err == nil && len(left) > 0 {
			t.Errorf("of its machine there are %v", left)
		}
	})
	run(t, "without a majority the quorum says what it waits for, and comes back", func(t *testing.T) {
		if out, code := h2.here("get", "hosts"); code != 0 || !strings.Contains(out, "h3") {
			t.Errorf("get hosts on h2: exit code %d: %s", code, out)
		}
		h3.lose()
		h4.lose()
		f.await("the loss", func() string {
			if out, _ := h2.here("quorum"); !strings.Contains(out, "Waits for: a majority of the voters: 1 of 3 run") {
				return out
			}
			return ""
		})
		h3.start()
		h4.start()
		f.await("three voters", func() string { return h2.voters(3) })
	})
}

// testMachines is about hosts that join and leave while the cluster has three voters.
func testMachines(t *testing.T, f *fleet) {
	h1, h2, h3 := f.hosts[0], f.hosts[1], f.hosts[2]
	run(t, "a worker joins, gets a machine and its node, and leaves", func(t *testing.T) {
		w := &host{
			t: t, bin: h1.bin, name: "w1", address: strings.TrimSuffix(h3.address, ".3") + ".5",
			dir: filepath.Join(t.TempDir(), "windlass"),
		}
		t.Cleanup(w.stop)
		w.join(h3)
		for _, keys := range []string{"pki", "services", "admin"} {
			if _, err := os.Stat(filepath.Join(w.dir, keys)); err == nil {
				t.Errorf("a worker has %s", keys)
			}
		}
		if out, code := w.cli("host", "token", "--dir", w.dir); code == 0 || !strings.Contains(out, "w1 is a worker") {
			t.Errorf("a token of a worker: exit code %d: %s", code, out)
		}
		w.start()
		f.await("the worker to be available", func() string { return w.missing("Available", h2) })
		set := filepath.Join(w.dir, "workers.yaml")
		if err := os.WriteFile(set, []byte(workers), 0o600); err != nil {
			t.Fatal(err)
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
		if out, code := h2.cli("host", "leave", "w1", "--dir", h2.dir); code != 0 ||
			!strings.Contains(out, "machine.machine.openshift.io/"+node+" deleted") ||
			!strings.Contains(out, "host.windlass.dev/w1 removed") {
			t.Errorf("leave: exit code %d: %s", code, out)
		}
		if pids := w.pids(""); len(pids) > 0 {
			t.Errorf("on a host that left %v run", pids)
		}
		if out, code := h2.cli("host", "ls", "--dir", h2.dir); code != 0 || strings.Contains(out, "w1") ||
			!strings.Contains(out, "h2") {
			t.Errorf("ls: exit code %d: %s", code, out)
		}
		h2.mustAsk("delete", "machineset", "workers", "--wait=false")
	})
	run(t, "a control-plane host does not leave without another one in its place", func(t *testing.T) {
		h2.must("host", "cordon", "h1", "--reason", "test", "--dir", h2.dir) // the spare
		out, code := h2.cli("host", "leave", "h3", "--dir", h2.dir)
		if code == 0 || !strings.Contains(out, "no other host can take the place of machine") ||
			!strings.Contains(out, "1 unschedulable") {
			t.Errorf("exit code %d: %s", code, out)
		}
		if missing := h3.missing("InUse", h2); missing != "" {
			t.Error(missing)
		}
		h2.must("host", "uncordon", "h1", "--dir", h2.dir)
		h2.must("host", "uncordon", "h3", "--dir", h2.dir)
	})
}

// ended reports whether a call failed in the moment in which the process that it had reached was killed: what it did is
// not known, and it is not repeated.
func ended(failure string) bool { return strings.Contains(failure, "what the call did is not known") }

// run runs a part of a test, which ends when it fails: the next parts need what it leaves.
func run(t *testing.T, name string, part func(t *testing.T)) {
	t.Helper()
	t.Log(name)
	if part(t); t.Failed() {
		t.FailNow()
	}
}

func TestSettingsOfAHostAreChecked(t *testing.T) {
	bin, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, bin: bin, dir: t.TempDir()}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no address", nil, "--address is required"},
		{"an address of another host", []string{"--address", "192.0.2.1"}, "192.0.2.1 is not one of this host"},
		{"every address", []string{"--address", "0.0.0.0"}, "must be an address of one host"},
		{"a name", []string{"--address", "localhost"}, "must be an IP address"},
		{"a bad host name", []string{"--address", "127.0.0.1", "--hostname", "A_B"}, `host name "A_B"`},
		{"a short life", []string{"--address", "127.0.0.1", "--certificate-lifetime", "1s"}, "must be a minute or more"},
	} {
		out, code := h.cli(append([]string{"host", "init", "--dir", h.dir}, c.args...)...)
		if code == 0 || !strings.Contains(out, c.says) {
			t.Errorf("%s: exit code %d, %q; want %q", c.name, code, out, c.says)
		}
	}
	if out, code := h.cli("host", "run", "--dir", h.dir); code == 0 ||
		!strings.Contains(out, "this host is in no cluster") {
		t.Errorf("run without a cluster: exit code %d, %q", code, out)
	}
	if out, code := h.cli("host", "check", "--address", "192.0.2.1", "--dir", h.dir); code != 1 ||
		!strings.Contains(out, "address   FAIL") || !strings.Contains(out, "cannot carry a control plane") {
		t.Errorf("check of a foreign address: exit code %d, %q", code, out)
	}
}
