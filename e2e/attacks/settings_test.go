package attacks

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
)

// TestSettingsOfARunningClusterAreAppliedOrRefused gives a running cluster a setting, and then one that its program
// does not know.
func TestSettingsOfARunningClusterAreAppliedOrRefused(t *testing.T) {
	c := shared.Cluster(t)
	before := pids(t, c)
	changed := func(now map[string]int) (out []string) {
		for name, pid := range now {
			if before[name] != pid && name != "supervisor" {
				out = append(out, name)
			}
		}
		return out
	}
	out := c.MustCLI("up", "--name", c.Name(), "--set", "node-configurator.log-level=debug")
	if !strings.Contains(out, "node-configurator restarted") {
		t.Errorf("up said:\n%s", out)
	}
	if got := changed(pids(t, c)); len(got) != 1 || got[0] != "node-configurator" {
		t.Errorf("started again: %q, want only node-configurator", got)
	}
	before = pids(t, c)
	if out := c.MustCLI("up", "--name", c.Name(), "--set", "node-configurator.log-level=debug"); !strings.Contains(out,
		"unchanged") || len(changed(pids(t, c))) > 0 {
		t.Errorf("the same setting again: %q started again\n%s", changed(pids(t, c)), out)
	}
	r := c.CLI("up", "--name", c.Name(), "--set", "node-configurator.nonsense=1")
	if r.Code == 0 || !strings.Contains(r.Stderr, "settings rejected") || !strings.Contains(r.Stderr, "nonsense") {
		t.Errorf("a flag that is not known: exit code %d\n%s\n%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := changed(pids(t, c)); len(got) != 1 || got[0] != "node-configurator" {
		t.Errorf("started again: %q, want only node-configurator", got)
	}
	if out := c.MustCLI("clusters"); !strings.Contains(out, c.Name()+"   Running   https://"+c.Gateway()) {
		t.Errorf("clusters said:\n%s", out)
	}
	before = pids(t, c)
	if out := c.MustCLI("up", "--name", c.Name(), "--unset", "node-configurator.log-level"); !strings.Contains(out,
		"node-configurator restarted") {
		t.Errorf("up said:\n%s", out)
	}
	if got := changed(pids(t, c)); len(got) != 1 || got[0] != "node-configurator" {
		t.Errorf("started again: %q, want only node-configurator", got)
	}
	if r := c.CLI("up", "--name", c.Name(), "--unset", "node-configurator.log-level=debug"); r.Code == 0 {
		t.Errorf("--unset of a value is accepted:\n%s", r.Stdout)
	}
}

// TestTheQuotaOfMembersIsSet gives a running cluster another quota: its members take it one at a time.
func TestTheQuotaOfMembersIsSet(t *testing.T) {
	c := shared.Cluster(t)
	prober := c.Probe()
	const quota = 3 << 30
	c.MustCLI("up", "--name", c.Name(), "--set", fmt.Sprintf("etcd-guardian.quota-backend-bytes=%d", quota))
	c.Wait(2*time.Minute, "the quota of all members", func(ctx context.Context) (bool, string, error) {
		q, err := etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{})
		for _, m := range q.GetMembers() {
			if !m.GetHealthy() || m.GetDbQuotaBytes() != quota {
				return false, fmt.Sprintf("%s: %d; %s", m.GetName(), m.GetDbQuotaBytes(), q.GetWaitsFor()), err
			}
		}
		return q.GetHealthyVoters() == 3 && q.GetPermit() == nil, q.GetWaitsFor(), err
	})
	if out := c.MustCLI("quorum"); !strings.Contains(out, "3.2 GB") {
		t.Errorf("windlass quorum shows no quota of 3.2 GB:\n%s", out)
	}
	c.Wait(time.Minute, "a status that is ready", func(context.Context) (bool, string, error) {
		r := c.CLI("status")
		return r.Code == 0, r.Stdout, nil
	})
	prober.Check()
}

// pids returns the processes of the cluster by name.
func pids(t *testing.T, c *harness.Cluster) map[string]int {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, p := range list {
		out[p.Name] = p.PID
	}
	return out
}
