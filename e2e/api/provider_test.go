package api

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
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
%s
`

// verified runs `windlass provider verify`, which has to find every rule kept. more are further lines of the provider
// spec.
func verified(t *testing.T, c *harness.Cluster, address, service, kind string, more ...string) {
	t.Helper()
	r, err := c.Admin().CLI(fmt.Sprintf(verifySpec, kind, strings.Join(more, "\n")), "provider", "verify", address,
		"--service", service, "--spec",
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
	p := provides(t, c, name, "--create-time", "10ms-50ms", "--delete-time", "20ms", "--call-time", "1ms-5ms")
	verified(t, c, p.address, name, "SimulatedMachineProviderSpec")
}

// plugin is a process of a provider.
type plugin struct {
	c       *harness.Cluster
	address string
	args    []string
	cmd     *exec.Cmd
	log     bytes.Buffer
}

// provides runs a provider with a certificate of the cluster until the test ends.
func provides(t *testing.T, c *harness.Cluster, name string, flags ...string) *plugin {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.MustCLI("auth", "issue", "--service", name, "--host", "127.0.0.1", "--out", filepath.Join(dir, "tls"))
	p := &plugin{c: c, address: free(t)}
	p.args = append([]string{
		binary, "serve", name, "--listen", p.address, "--dir", dir, "--tls-dir", filepath.Join(dir, "tls"),
	}, flags...)
	t.Cleanup(func() {
		p.end(syscall.SIGTERM)
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	p.start(t)
	return p
}

// start returns when the provider listens.
func (p *plugin) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.c.Wait(time.Minute, p.args[2]+" to listen", func(ctx context.Context) (bool, string, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address)
		if err != nil {
			return false, "", err
		}
		return true, "", conn.Close()
	})
}

// end sends the provider a signal and returns when it has ended; a provider that ended before is no error.
func (p *plugin) end(signal os.Signal) {
	if err := p.cmd.Process.Signal(signal); err == nil {
		_ = p.cmd.Wait() // that it ends is what counts
	}
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
