package api

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// TestTheSettingsThatEnvPrintsWork has a shell use them as docs/api.md does, with nothing of the build on its path.
func TestTheSettingsThatEnvPrintsWork(t *testing.T) {
	c := shared.Cluster(t)
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := harness.Tool("grpcurl"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-ec", `eval "$("$0" env)"
$GRPCURL "$WINDLASS_SERVER" list
$CURL "$WINDLASS_URL/v1/nodes"`, binary)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "WINDLASS_HOME=" + c.Dir("..", ".."), "WINDLASS_CLUSTER=" + c.Name()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"windlass.machine.v1.MachineService", `"kind":"NodeList"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
