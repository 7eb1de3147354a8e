package hosts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
)

// access returns what the inventory says of the policy and the tokens of the control-plane hosts.
func (h *host) access() (map[string]*hostv1.ClusterAccessHost, int32, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn := h.conn()
	defer conn.Close()
	p, err := hostv1.NewHostServiceClient(conn).PlanClusterAccess(ctx, &hostv1.PlanClusterAccessRequest{})
	out := map[string]*hostv1.ClusterAccessHost{}
	for _, is := range p.GetHosts() {
		out[is.GetName()] = is
	}
	return out, p.GetAccess().GetGeneration(), err
}

// inForce returns "" if hosts have in force what the inventory has recorded, as asked at the gateway of at.
func inForce(at *host, hosts ...*host) string {
	states, _, err := at.access()
	if err != nil {
		return err.Error()
	}
	for _, h := range hosts {
		if is := states[h.name]; is.GetState() != "InForce" {
			return fmt.Sprintf("%s is %s: %s", h.name, is.GetState(), is.GetMessage())
		}
	}
	return ""
}

// known returns whether the gateway of a host accepts a bearer token, and what it says.
func (h *host) known(token string) (bool, string) {
	h.t.Helper()
	out, code := h.cli("auth", "whoami", "--server", h.address+":6443", "--cacert",
		filepath.Join(h.dir, "admin", "ca.crt"),
		"--token", token)
	return code == 0, out
}

// testAccess is about the policy and the bearer tokens. The spare has joined, and was never started.
func testAccess(t *testing.T, f *fleet) {
	h1, h2, h3 := f.hosts[0], f.hosts[1], f.hosts[2]
	f.await("the policy and the tokens of all hosts", func() string { return inForce(h2, f.hosts...) })
	var token string
	run(t, "a bearer token is accepted by all gateways", func(t *testing.T) {
		began := time.Now()
		out, code := h2.here("auth", "issue", "--user", "ann", "--group", "windlass:viewers", "--token")
		if code != 1 ||
			!strings.Contains(out, "not known to be in force on 1 of 4 control-plane hosts: host h4: it is away") {
			t.Errorf("with a host that was never started: exit code %d: %s", code, out)
		}
		for _, word := range strings.Fields(out) {
			if strings.HasPrefix(word, "windlass_") {
				token = word
			}
		}
		for _, h := range f.hosts {
			if ok, said := h.known(token); !ok {
				t.Errorf("the gateway of %s: %s", h.name, said)
			}
		}
		t.Logf("issued and in force after %s:\n%s", time.Since(began).Round(100*time.Millisecond),
			strings.ReplaceAll(out, token, "TOKEN"))
	})
	run(t, "one that is deleted on one host is refused by all", func(t *testing.T) {
		list, code := h3.ask("auth", "token", "list")
		lines := strings.Split(strings.TrimSpace(list), "\n")
		if code != 0 || len(lines) != 2 || !strings.Contains(lines[1], "ann") {
			t.Fatalf("tokens: exit code %d: %s", code, list)
		}
		out, code := h3.ask("auth", "token", "delete", strings.Fields(lines[1])[0])
		if code != 1 || !strings.Contains(out, "1 of 4 control-plane hosts: host h4: it is away") {
			t.Errorf("exit code %d: %s", code, out)
		}
		for _, h := range f.hosts {
			if ok, said := h.known(token); ok || !strings.Contains(said, "the bearer token is not known") {
				t.Errorf("the gateway of %s: accepted: %v: %s", h.name, ok, said)
			}
		}
		t.Logf("\n%s%s", list, out)
	})
	file := filepath.Join(t.TempDir(), "policy.yaml")
	run(t, "a policy is changed on all hosts with one command", func(t *testing.T) {
		text, code := h1.here("auth", "policy", "show")
		if code != 0 || !strings.HasPrefix(text, "# windlass.dev/generation: 3\n") {
			t.Fatalf("exit code %d: %s", code, text[:min(len(text), 500)])
		}
		apply := func(at *host, text string, flags ...string) (string, int) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return at.here(append([]string{"auth", "policy", "apply", "-f", file}, flags...)...)
		}
		out, code := apply(h1, text[:len(text)-40])
		if code != 1 || !strings.Contains(out, "policy: document") {
			t.Errorf("a policy that was cut off: exit code %d: %s", code, out)
		}
		next := text + "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: eve}\n" +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n" +
			"subjects:\n- {apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}\n"
		h3.halt() // its programs run on, and nothing replaces its file
		out, code = apply(h1, next, "--timeout", "8s")
		if code != 1 || !strings.Contains(out, "policy recorded: generation 4") ||
			!strings.Contains(out, "host h3: policy.yaml not replaced yet") || !strings.Contains(out, "host h4: it is away") {
			t.Errorf("with a host whose `windlass host run` has ended: exit code %d: %s", code, out)
		}
		t.Logf("\n%s", out)
		h3.start()
		f.await("the policy on h3", func() string { return inForce(h2, f.hosts...) })
		_, present, _ := strings.Cut(next, "\n")
		for _, h := range f.hosts {
			if h.file("policy.yaml") != present {
				t.Errorf("policy.yaml of %s is not the new one", h.name)
			}
		}
		if out, code := apply(h2, text); code != 1 || !strings.Contains(out, "the policy changed in generation 4") {
			t.Errorf("a change of the policy before: exit code %d: %s", code, out)
		}
	})
	run(t, "a file that is changed on a host is reported, and put back", func(t *testing.T) {
		policy := h2.file("policy.yaml")
		if err := os.WriteFile(filepath.Join(h2.dir, "policy.yaml"), []byte(policy+"# mine\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		f.await("the policy of h2", func() string {
			if h2.file("policy.yaml") != policy {
				return "it is the changed one"
			}
			return inForce(h1, f.hosts...)
		})
		took := time.Since(began)
		if kept := h2.file("policy.yaml.replaced"); kept != policy+"# mine\n" {
			t.Error("what was replaced is not kept")
		}
		f.await("the event", func() string {
			if out, _ := h1.ask("get", "events", "-A"); !strings.Contains(out, "AccessFilesChanged") {
				return "no event AccessFilesChanged"
			}
			return ""
		})
		out, code := h1.here("auth", "policy", "status")
		if code != 0 || strings.Count(out, "InForce") != 3 || strings.Count(out, "Away") != 1 {
			t.Errorf("status: exit code %d: %s", code, out)
		}
		t.Logf("put back after %s; then\n%s", took.Round(100*time.Millisecond), out)
		if is, message, err := h1.operator("provider-inventory", "Degraded"); is != "False" {
			t.Errorf("provider-inventory is Degraded=%s: %s %v", is, message, err)
		}
		if out, code := h1.ask("audit", "--since", "10m"); code != 0 ||
			strings.Count(out, "update hosts/access.windlass.dev OK") != 3 {
			t.Errorf("records of changes: exit code %d: %s", code, out[max(0, len(out)-3000):])
		}
	})
}
