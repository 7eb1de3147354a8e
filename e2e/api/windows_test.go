package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// TestAWindowAPauseAndWavesHoldNodesBack has node-configurator follow a window of update-orchestrator through the real
// policy and the real processes. The file needs neither a drain nor a reboot.
func TestAWindowAPauseAndWavesHoldNodesBack(t *testing.T) {
	const patience = 30 * time.Second
	c := shared.Cluster(t)
	documents := fmt.Sprintf(`
apiVersion: windlass.dev/v1
kind: MaintenanceWindow
metadata: {name: e2e}
spec:
  schedule: "0 %d * * *"
  duration: 2h
  appliesTo: [Pools]
  poolSelector: {matchLabels: {kubernetes.io/metadata.name: worker}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 60-window, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.2.0}
    storage: {files: [{path: /etc/nmstate/openshift/e2e, contents: {source: "data:,e2e"}}]}
`, time.Now().UTC().Add(12*time.Hour).Hour())
	if r, err := c.Admin().CLI(documents, "apply", "-f", "-"); err != nil || r.Code != 0 {
		t.Fatal(r.Stderr, err)
	}
	t.Cleanup(func() {
		c.CLI("patch", "mcp", "worker", "--type=merge", "-p", `{"spec":{"waves":null,"windowWaiver":null,"pause":null}}`)
		c.CLI("delete", "machineconfig", "60-window")
		c.CLI("delete", "maintenancewindow", "e2e")
		c.SettleAll(patience)
	})
	says := func(condition, want string) {
		t.Helper()
		c.Wait(patience, "the pool to say "+want, func(ctx context.Context) (bool, string, error) {
			p, err := c.Pool(ctx, "worker")
			status, text := harness.Condition(p.GetStatus().GetConditions(), condition)
			return strings.Contains(status+" "+text, want), status + " " + text, err
		})
	}
	says("Updating", "False Pool waits for maintenance window e2e, which opens at ")
	if out := c.MustCLI("plan", "mcp", "worker"); !strings.Contains(out,
		"waits for maintenance window e2e, which opens at ") ||
		!strings.Contains(out, "Evaluated again in ") {
		t.Errorf("the plan is\n%s", out)
	}
	if out := c.MustCLI("get", "maintenancewindows", "e2e"); !strings.Contains(out, "opens at ") {
		t.Errorf("the window is\n%s", out)
	}
	c.MustCLI("rollout", "pause", "mcp/worker", "--reason", "trade fair", "--for", "1h")
	says("Paused", "trade fair; 2 of 2 nodes wait for rendered-worker-")
	c.MustCLI("patch", "mcp", "worker", "--type=merge", "-p",
		`{"spec":{"waves":[{"name":"canary","nodes":1,"soak":"1s"}]}}`)
	c.MustCLI("rollout", "resume", "mcp/worker", "--now", "--reason", "CVE-2026-1")
	says("Updated", "True ")
	p, err := c.Pool(t.Context(), "worker")
	if err != nil {
		t.Fatal(err)
	}
	var waves []string
	for _, w := range p.GetStatus().GetWaves() {
		waves = append(waves, fmt.Sprint(w.GetName(), w.GetState(), w.GetUpdatedMachineCount()))
	}
	if got := strings.Join(waves, " "); got != "canaryDone1 Done1" {
		t.Errorf("the waves are %s: %v", got, p.GetStatus())
	}
	if w := p.GetSpec().GetWindowWaiver(); w.GetBy() == "" || w.GetReason() != "CVE-2026-1" {
		t.Errorf("the waiver is %v", w)
	}
}
