package host

import (
	"testing"

	"github.com/windlass-dev/windlass/services/windlass/cluster"
)

func TestWhatRunsOnIsSaidWithHowToEndIt(t *testing.T) {
	c, err := cluster.CreateHost(t.TempDir(), cluster.Settings{
		Name: "main", Member: &cluster.Member{Name: "h1", Address: "192.0.2.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const services = "etcd-guardian, machine-api, eviction-controller, gateway, hook-broker, scheduler, " +
		"node-configurator, update-orchestrator, provider-inventory"
	want := "host h1: its machine and its programs (" + services + ") run on. `windlass host run --dir /d` takes them " +
		"over, `windlass host stop --dir /d` ends them."
	if got := runsOn(c, " --dir /d"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.Member.Worker = true
	want = "host h1: its machine runs on. `windlass host run` takes it over, `windlass host stop` ends it."
	if got := runsOn(c, ""); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
