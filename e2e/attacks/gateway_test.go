package attacks

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// gateway is a second gateway of a cluster, with settings of its own, for attacks that would take the cluster's away
// from other tests.
type gateway struct {
	address, metrics string
	pid              int
}

// secondGateway starts a gateway as the cluster's supervisor does, with flags added, which ends with the test.
func secondGateway(t *testing.T, c *harness.Cluster, flags ...string) *gateway {
	t.Helper()
	list, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, p := range list {
		if p.Name != "gateway" {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		args = strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	}
	if len(args) == 0 {
		t.Fatalf("the cluster has no gateway: %v", list)
	}
	g, dir := &gateway{address: free(t, c), metrics: free(t, c)}, t.TempDir()
	// The flags name the bootstrap member, which may be gone.
	endpoints, err := os.ReadFile(c.Dir("services", "gateway", "endpoints"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "endpoints"), endpoints, 0o600); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--listen", g.address, "--advertise", g.address, "--metrics-listen", g.metrics, "--dir", dir)
	var log bytes.Buffer
	cmd := exec.Command(args[0], append(args[1:], flags...)...) //nolint:gosec // the cluster's own command
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck
		cmd.Wait()         //nolint:errcheck
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", log.String())
		}
	})
	until(t, "the second gateway listens", func() bool {
		conn, err := net.Dial("tcp", g.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return g
}

// free returns an address of the cluster's own network, for which its gateway's certificate holds.
func free(t *testing.T, c *harness.Cluster) string {
	t.Helper()
	host, _, err := net.SplitHostPort(c.Gateway())
	if err != nil {
		t.Fatal(err)
	}
	return harness.FreeAddress(t, host)
}

// until waits for a condition that comes true by itself.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute) // a busy host takes its time
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
		<-tick.C
	}
}
