package faults

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/topology"
)

// envBefore names an executable of an earlier version.
const envBefore = "WINDLASS_BEFORE"

// TestSkewWithAnEarlierVersion updates a cluster of an earlier version to this one and back. On the way, with the
// programs of both versions side by side, machines, configurations and pods are changed, and both versions' commands
// read and change them.
func TestSkewWithAnEarlierVersion(t *testing.T) {
	before := os.Getenv(envBefore)
	if before == "" {
		t.Skipf("$%s names no executable of an earlier version: make test-skew FROM=COMMIT builds one", envBefore)
	}
	after, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("WINDLASS_BIN", before)
	c := harness.Second(t)
	initial := versionOf(t, c).GetStatus().GetDesired().GetImage()
	change(t, c, after, "at the version before")

	upgrade(c, releaseOf(t, c, "1.1.0", "1.0.0", after))
	stopBetween(t, c, after, len(topology.Names())/2)
	change(t, c, after, "halfway to this version")
	c.Up()
	completed(c, "1.1.0")
	change(t, c, after, "at this version")

	c.MustCLI("adm", "upgrade", "--to-image", initial, "--allow-explicit-upgrade", "--waive",
		"ClusterVersionRollback=the test goes back")
	stopBetween(t, c, before, len(topology.Names())/2)
	change(t, c, after, "halfway back")
	c.Up()
	completed(c, "1.0.0")
	change(t, c, after, "at the version before again")
}

// stopBetween kills the supervisor when some programs run from another executable than the rest, which they then go on
// doing.
func stopBetween(t *testing.T, c *harness.Cluster, executable string, programs int) {
	t.Helper()
	want, err := os.Stat(executable)
	if err != nil {
		t.Fatal(err)
	}
	c.Wait(patience, fmt.Sprintf("%d programs of %s", programs, executable), func(context.Context) (bool, string, error) {
		list, err := c.Processes()
		n, supervisor := 0, 0
		for _, p := range list {
			if p.Name == harness.Supervisor {
				supervisor = p.PID
			}
			// Its copy, which a release brings, has its size.
			is, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.PID))
			if _, service := topology.Find(p.Name); service && err == nil && is.Size() == want.Size() {
				n++
			}
		}
		if n >= programs && supervisor != 0 {
			err = unix.Kill(supervisor, unix.SIGKILL)
		}
		return n >= programs, fmt.Sprint(n), err
	})
}

// change changes a bit of everything, and has the commands of both versions read it.
func change(t *testing.T, c *harness.Cluster, after, when string) {
	t.Helper()
	c.MustCLI("scale", "machineset", "workers", "-n", "openshift-machine-api", "--replicas=3")
	apply(t, c, `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 60-skew
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - path: /etc/skew
        contents: {source: "data:;base64,`+base64.StdEncoding.EncodeToString([]byte(when))+`"}
`)
	c.MustCLI("rollout", "restart", "deployment/hello")
	c.Settle(patience)
	c.Wait(patience, "the file of "+when, func(ctx context.Context) (bool, string, error) {
		pool, err := c.Pool(ctx, "worker")
		is, text := harness.Condition(pool.GetStatus().GetConditions(), "Updated")
		machines := c.MustMachines("worker")
		for _, m := range machines {
			path := c.Dir("services", "provider-local", "machines", m.GetMetadata().GetName(), "root", "etc", "skew")
			if has, err := os.ReadFile(path); err != nil || string(has) != when {
				return false, fmt.Sprintf("%s: %q, %v", path, has, err), nil
			}
		}
		return err == nil && is == "True" && len(machines) == 3, text, err
	})
	c.MustCLI("rollout", "status", "deployment/hello", "--timeout=2m")
	c.MustCLI("delete", "machine", "-n", "openshift-machine-api", c.MustMachines("worker")[0].GetMetadata().GetName())
	c.MustCLI("scale", "machineset", "workers", "-n", "openshift-machine-api", "--replicas=2")
	c.Settle(patience)
	for _, args := range [][]string{
		{"quorum"},
		{"get", "nodes,machines,pods,machineconfigpools,clusteroperators", "-A"},
		{"adm", "upgrade"},
		{"describe", "clusterversion", "version"},
		{"plan", "machineconfigpool", "worker"},
	} {
		c.MustCLI(args...)
		cmd := exec.Command(after, args...)
		cmd.Env = append(os.Environ(), "WINDLASS_HOME="+filepath.Dir(filepath.Dir(c.Dir())), "WINDLASS_CLUSTER="+c.Name())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: this version's %v: %v\n%s", when, args, err, out)
		}
	}
}
