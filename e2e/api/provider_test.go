package api

import (
	"fmt"
	"strings"
	"testing"

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
	p := c.Provide(name, "--create-time", "10ms-50ms", "--delete-time", "20ms", "--call-time", "1ms-5ms")
	verified(t, c, p.Address(), name, "SimulatedMachineProviderSpec")
}
