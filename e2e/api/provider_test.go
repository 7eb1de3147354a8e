package api

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
	"github.com/windlass-dev/windlass/kit/topology"
)

const verifySpec = `apiVersion: windlass.dev/v1
kind: %s
zone: rack-a
`

// verified runs `windlass provider verify`, which has to find every rule kept.
func verified(t *testing.T, c *harness.Cluster, address, service, kind string) {
	t.Helper()
	r, err := c.Admin().CLI(fmt.Sprintf(verifySpec, kind), "provider", "verify", address, "--service", service, "--spec",
		"-", "--timeout", "60s")
	if err != nil {
		t.Fatal(err)
	}
	if r.Code != 0 || !strings.Contains(r.Stdout, " 0 broken, 0 not checked") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

func TestTheLocalProviderKeepsTheRules(t *testing.T) {
	c := shared.Cluster(t)
	verified(t, c, c.Address(topology.Port(topology.ProviderLocal)), topology.ProviderLocal, "LocalMachineProviderSpec")
}

// TestTheSimulatedProviderKeepsTheRules runs it as docs/provider.md says.
func TestTheSimulatedProviderKeepsTheRules(t *testing.T) {
	c := shared.Cluster(t)
	const name = "provider-simulated"
	address := provides(t, c, name, "--create-time", "10ms-50ms", "--delete-time", "20ms", "--call-time", "1ms-5ms")
	verified(t, c, address, name, "SimulatedMachineProviderSpec")
}

// provides runs a provider with a certificate of the cluster until the test ends, and returns its address when it
// listens.
func provides(t *testing.T, c *harness.Cluster, name string, flags ...string) string {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.MustCLI("auth", "issue", "--service", name, "--host", "127.0.0.1", "--out", filepath.Join(dir, "tls"))
	address := free(t)
	var log bytes.Buffer
	cmd := exec.Command(binary, append([]string{
		"serve", name, "--listen", address, "--dir", dir, "--tls-dir", filepath.Join(dir, "tls"),
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err == nil {
			_ = cmd.Wait() // that it ends is what counts
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	c.Wait(time.Minute, name+" to listen", func(ctx context.Context) (bool, string, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, "", err
		}
		return true, "", conn.Close()
	})
	return address
}

// free returns an address of the loopback network that nothing listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
