package serve

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/discovery"
)

// hosts are the processes of scheduler on some hosts, and what is reported of them.
type hosts struct {
	t     *testing.T
	view  discovery.View
	state func(context.Context) clusteroperator.State
}

func newHosts(t *testing.T) *hosts {
	h := &hosts{t: t}
	h.state = Replicated(func() discovery.View {
		h.view.Confirmed = time.Now()
		return h.view
	}, "scheduler", func(context.Context) clusteroperator.State { return clusteroperator.State{Available: true} })
	return h
}

// run has the processes of hosts run, given as "a 1.1.0" each, and others be away.
func (h *hosts) run(live, away string) {
	list := func(text string) map[string][]discovery.Endpoint {
		out := map[string][]discovery.Endpoint{}
		for _, one := range strings.Split(text, ", ") {
			var host, version string
			if _, err := fmt.Sscanf(one, "%s %s", &host, &version); err == nil {
				out["scheduler"] = append(out["scheduler"], discovery.Endpoint{
					Service: "scheduler", Address: host + ":1", Host: host, Version: version, Ready: len(live) > 0 && text == live,
				})
			}
		}
		return out
	}
	h.view = discovery.View{Endpoints: list(live), Away: list(away)}
}

// expect looks every two seconds for a while, and then compares.
func (h *hosts) expect(after time.Duration, what, version, degraded string) {
	h.t.Helper()
	var s clusteroperator.State
	for range int(after/lookEvery) + 1 {
		s = h.state(h.t.Context())
		time.Sleep(lookEvery)
	}
	if s.ProgramVersion != version || s.Degraded != (degraded != "") || !strings.Contains(s.Message, degraded) ||
		!s.Available {
		h.t.Errorf("%s: %+v, want %s and degraded %q", what, s, version, degraded)
	}
}

// lookEvery is how often a state is read.
const lookEvery = 2 * time.Second

func TestAServiceIsDegradedWhileAHostLacksItForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		h.run("a 1.1.0, b 1.0.0", "")
		h.expect(0, "all run", "1.0.0", "")
		h.run("a 1.1.0", "b 1.0.0")
		h.expect(20*time.Second, "one is away, as during a restart", "1.0.0", "")
		h.run("a 1.1.0, b 1.0.0", "")
		h.expect(40*time.Second, "it is back", "1.0.0", "")
		h.run("a 1.1.0", "b 1.0.0")
		h.expect(20*time.Second, "it is away once more", "1.0.0", "")
		h.expect(20*time.Second, "it stays away", "1.0.0", "host b:")
		h.expect(24*time.Hour, "it was lost", "1.0.0", "host b:")
		h.run("a 1.1.0, b 1.1.0", "")
		h.expect(10*time.Second, "it is back", "1.1.0", "ready again, and must stay so")
		h.expect(30*time.Second, "it stays", "1.1.0", "")
	})
}

func TestAProcessThatCrashesAgainAndAgainIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		for range 10 {
			h.run("a 1.1.0", "b 1.1.0")
			for range 11 {
				if s := h.state(t.Context()); s.Degraded {
					return
				}
				time.Sleep(lookEvery)
			}
			h.run("a 1.1.0, b 1.1.0", "")
			h.state(t.Context())
			time.Sleep(lookEvery)
		}
		t.Error("a process that is ready for 2 of 26 seconds is never reported")
	})
}

// Hosts that restart one after the other are no fault of the service.
func TestARollingRestartIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		for i := range 20 {
			var live []string
			for j := range 20 {
				if j != i {
					live = append(live, fmt.Sprintf("h%d 1.1.0", j))
				}
			}
			h.run(strings.Join(live, ", "), fmt.Sprintf("h%d 1.1.0", i))
			h.expect(4*time.Second, "a rolling restart", "1.1.0", "")
		}
	})
}

func TestNothingIsSaidOfHostsThatAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v discovery.View
		state := Replicated(func() discovery.View { return v }, "scheduler",
			func(context.Context) clusteroperator.State { return clusteroperator.State{Available: true} })
		if s := state(t.Context()); !s.VersionUnknown {
			t.Errorf("nothing is known: %+v", s)
		}
		v.Endpoints = map[string][]discovery.Endpoint{"scheduler": {{Host: "a", Version: "1.1.0", Ready: true}}}
		if s := state(t.Context()); !s.VersionUnknown {
			t.Errorf("what was on the disk: %+v", s)
		}
		v.Confirmed = time.Now()
		if s := state(t.Context()); s.VersionUnknown || s.ProgramVersion != "1.1.0" {
			t.Errorf("it was confirmed: %+v", s)
		}
		time.Sleep(stale + time.Second)
		if s := state(t.Context()); !s.VersionUnknown {
			t.Errorf("it was confirmed long ago: %+v", s)
		}
	})
}
