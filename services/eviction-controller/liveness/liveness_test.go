package liveness

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"pgregory.net/rapid"
)

const grace = 40 * time.Second

// run winds a clock for the rest of the test.
func run(t *testing.T) *Awake {
	a := NewAwake()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return a
}

func TestAwakeFollowsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := run(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := a.Now(); got != time.Hour {
			t.Errorf("after an hour it shows %v", got)
		}
	})
}

func TestAwakeDoesNotCountTimeInWhichTheProcessStoodStill(t *testing.T) {
	a := NewAwake()
	start := a.last
	a.wind(start.Add(beatOfAwake))
	a.wind(start.Add(beatOfAwake + time.Minute)) // nothing wound it for a minute: the process was stopped
	if got := a.total; got != 3*beatOfAwake {
		t.Errorf("it shows %v, want %v", got, 3*beatOfAwake)
	}
}

// TestAwakeNeverGoesBack holds for any pauses, and reading it in between changes nothing.
func TestAwakeNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAwake()
		now, before := a.last, time.Duration(0)
		for _, ms := range rapid.SliceOf(rapid.IntRange(0, 100_000)).Draw(t, "pauses in ms") {
			now = now.Add(time.Duration(ms) * time.Millisecond)
			a.wind(now)
			if a.total < before || a.total-before > 2*beatOfAwake {
				t.Fatalf("it went from %v to %v", before, a.total)
			}
			before = a.total
		}
	})
}

func beat(node string) *nodev1.HeartbeatRequest {
	return &nodev1.HeartbeatRequest{Name: node, BootId: "boot-1"}
}

func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		tr := New(run(t).Now, grace)
		if tr.Beat(beat("a")) {
			t.Error("a heartbeat was taken in before this process led")
		}
		end := tr.Lead(func(node string) { told = append(told, node) })
		time.Sleep(10 * time.Second)
		if got := tr.Agent("a"); got.Heard || got.Silence != 10*time.Second {
			t.Errorf("an agent that was never heard: %+v", got)
		}
		tr.Beat(beat("a"))
		time.Sleep(time.Second)
		tr.Beat(beat("a"))
		time.Sleep(2 * time.Second)
		if got := tr.Agent("a"); !got.Heard || got.Silence != 2*time.Second || got.BootID != "boot-1" {
			t.Errorf("an agent that was heard: %+v", got)
		}
		if len(told) != 1 {
			t.Errorf("told of %v, want the first heartbeat alone", told)
		}
		ill := beat("a")
		ill.NotReady = "disk is full"
		tr.Beat(ill)
		if len(told) != 2 {
			t.Errorf("told of %v, want also the one that says something new", told)
		}
		time.Sleep(grace)
		tr.Beat(ill)
		if len(told) != 3 {
			t.Errorf("told of %v, want also the one that ends a long silence", told)
		}
		end()
		if tr.Beat(ill) {
			t.Error("a heartbeat was taken in after this process led")
		}
	})
}

func TestGraceBeginsAnewWithEachLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(run(t).Now, grace)
		tr.Lead(func(string) {})()
		time.Sleep(time.Hour)
		defer tr.Lead(func(string) {})()
		if got := tr.Agent("a").Silence; got != 0 {
			t.Errorf("silent for %v at the beginning of a leadership", got)
		}
	})
}
