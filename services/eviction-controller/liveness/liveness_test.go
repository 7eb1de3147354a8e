package liveness

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"pgregory.net/rapid"
)

const grace = 40 * time.Second

// run updates a clock for the rest of the test.
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

func TestAwakeDoesNotCountTimeInWhichTheProcessWasSuspended(t *testing.T) {
	a := NewAwake()
	start := a.last
	a.wind(start.Add(beatOfAwake))
	a.wind(start.Add(beatOfAwake + time.Minute)) // no update for a minute: the process was suspended
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
		var notified []string
		tr := New(run(t), grace)
		if tr.Beat(beat("a")) {
			t.Error("a heartbeat was accepted before this process led")
		}
		end := tr.Lead(func(node string) { notified = append(notified, node) })
		time.Sleep(10 * time.Second)
		if got := tr.Agent("a"); got.Reported || got.Silence != 10*time.Second {
			t.Errorf("an agent without a heartbeat: %+v", got)
		}
		tr.Beat(beat("a"))
		time.Sleep(time.Second)
		tr.Beat(beat("a"))
		time.Sleep(2 * time.Second)
		if got := tr.Agent("a"); !got.Reported || got.Silence != 2*time.Second || got.BootID != "boot-1" {
			t.Errorf("an agent with a heartbeat: %+v", got)
		}
		if len(notified) != 1 {
			t.Errorf("notified of %v, want only the first heartbeat", notified)
		}
		notReady := beat("a")
		notReady.NotReady = "disk is full"
		tr.Beat(notReady)
		if len(notified) != 2 {
			t.Errorf("notified of %v, want also the one that reports a change", notified)
		}
		time.Sleep(grace)
		tr.Beat(notReady)
		if len(notified) != 3 {
			t.Errorf("notified of %v, want also the one that ends a long silence", notified)
		}
		end()
		if tr.Beat(notReady) {
			t.Error("a heartbeat was accepted after this process led")
		}
	})
}

func TestGraceRestartsWithEachLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(run(t), grace)
		tr.Lead(func(string) {})()
		time.Sleep(time.Hour)
		defer tr.Lead(func(string) {})()
		if got := tr.Agent("a").Silence; got != 0 {
			t.Errorf("silent for %v at the beginning of a leadership", got)
		}
	})
}

// TestNoAgentIsLostWhileThisProcessWasSuspended covers agents that sent heartbeats until then and agents that were
// already silent: all get a new grace period.
func TestNoAgentIsLostWhileThisProcessWasSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAwake()
		tr := New(a, grace)
		news := 0
		defer tr.Lead(func(string) { news++ })()
		pass := func(d time.Duration) { // as Run does it
			for ; d > 0; d -= beatOfAwake {
				time.Sleep(beatOfAwake)
				a.Now()
			}
		}
		tr.Beat(beat("quiet"))
		pass(grace - time.Second)
		tr.Beat(beat("well"))
		if tr.Settling() != 0 {
			t.Error("it settles without a standstill")
		}
		time.Sleep(time.Minute) // no update of the clock: the process is suspended
		for _, node := range []string{"quiet", "well", "unknown"} {
			got := tr.Agent(node)
			if got.Reported || got.Settled(grace) || got.Silence > time.Second {
				t.Errorf("%s after the standstill: %+v", node, got)
			}
		}
		if got := tr.Settling(); got != settling {
			t.Errorf("it settles for %v", got)
		}
		before := news
		tr.Beat(beat("well"))
		if news != before+1 {
			t.Error("the first heartbeat after the standstill is no news")
		}
		pass(grace - time.Second)
		if got := tr.Agent("quiet"); got.Settled(grace) {
			t.Errorf("quiet within the grace: %+v", got)
		}
		pass(2 * time.Second)
		if got := tr.Agent("quiet"); !got.Settled(grace) {
			t.Errorf("quiet after the grace: %+v", got)
		}
		if tr.Settling() != 0 {
			t.Error("it settles still")
		}
	})
}

func TestRenewRestartsTheGraceAndKeepsTheWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(run(t), grace)
		defer tr.Lead(func(string) {})()
		time.Sleep(2 * grace)
		tr.Beat(beat("a"))
		time.Sleep(time.Second)
		tr.Renew()
		if got := tr.Agent("b"); got.Settled(grace) || got.Silence != 0 {
			t.Errorf("b: %+v", got)
		}
		nodes := []*nodev1.Node{{Metadata: &metav1.ObjectMeta{Name: "a"}}, {Metadata: &metav1.ObjectMeta{Name: "b"}}}
		w := tr.Witnesses(nodes)
		if !w[0].Agent.Reported || w[0].Agent.Silence != time.Second || w[1].Agent.Reported {
			t.Errorf("witnesses: %+v", w)
		}
	})
}

// TestANodeThatIsCreatedLaterGetsItsGrace creates nodes without an agent after the leadership began, and one of the
// same name again.
func TestANodeThatIsCreatedLaterGetsItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := New(run(t), grace)
		defer tracker.Lead(func(string) {})()
		time.Sleep(time.Hour)
		node := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a", Uid: "1"}}
		silence := func() time.Duration { return tracker.Agent("a").Silence }
		witness := func() time.Duration { return tracker.Witnesses([]*nodev1.Node{node})[0].Agent.Silence }
		if got := witness(); got != 0 {
			t.Errorf("before it is met its silence is %v", got)
		}
		for _, uid := range []string{"1", "2"} {
			node.Metadata.Uid = uid
			tracker.Meet(node)
			time.Sleep(grace - time.Second)
			tracker.Meet(node)
			if a, w := silence(), witness(); a != grace-time.Second || w != a {
				t.Errorf("uid %s: its silence is %v, as a witness %v, want %v", uid, a, w, grace-time.Second)
			}
			time.Sleep(time.Hour)
		}
		if !tracker.Beat(&nodev1.HeartbeatRequest{Name: "a"}) || silence() != 0 || !tracker.Agent("a").Reported {
			t.Errorf("after a heartbeat: %v", tracker.Agent("a"))
		}
		tracker.Forget("a")
		tracker.Meet(node)
		if a := tracker.Agent("a"); a.Reported || a.Silence != 0 {
			t.Errorf("after it was forgotten: %v", a)
		}
	})
}
