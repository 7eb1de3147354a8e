package serve

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/discovery"
)

// A process that restarts does not make its service degraded; one that stays away does.
func TestAServiceIsDegradedWhileAProcessIsMissingForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(service, host, version string) discovery.Endpoint {
			return discovery.Endpoint{Service: service, Address: host + ":1", Host: host, Version: version, Ready: true}
		}
		both := discovery.View{Endpoints: map[string][]discovery.Endpoint{
			"scheduler": {at("scheduler", "a", "1.1.0"), at("scheduler", "b", "1.0.0")},
		}}
		one := discovery.View{Endpoints: map[string][]discovery.Endpoint{
			"scheduler": {at("scheduler", "a", "1.1.0")}, "gateway": {at("gateway", "b", "1.1.0")},
		}}
		now := both
		state := Replicated(func() discovery.View { return now }, "scheduler", func(context.Context) clusteroperator.State {
			return clusteroperator.State{Available: true}
		})
		expect := func(what string, v discovery.View, degraded bool, version string) {
			t.Helper()
			now = v
			if s := state(t.Context()); s.Degraded != degraded || s.ProgramVersion != version || !s.Available {
				t.Errorf("%s: %+v, want degraded %t at %s", what, s, degraded, version)
			}
		}
		expect("all run", both, false, "1.0.0")
		expect("one has just gone", one, false, "1.1.0")
		time.Sleep(patience - time.Second)
		expect("it is still away", one, false, "1.1.0")
		expect("it is back", both, false, "1.0.0")
		time.Sleep(patience)
		expect("it has gone once more", one, false, "1.1.0")
		time.Sleep(patience)
		expect("it is away for long", one, true, "1.1.0")
	})
}
