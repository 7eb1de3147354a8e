package controller

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// recorded keeps the reasons and messages of events.
type recorded struct {
	mu    sync.Mutex
	lines []string
}

func (h *recorded) Event(_ object.Object, _, reason, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, reason+": "+message)
}

func (h *recorded) count(reason string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, l := range h.lines {
		if strings.HasPrefix(l, reason+":") {
			n++
		}
	}
	return n
}

// leak adds an instance to the cloud that no machine needs.
func (w *world) leak(uid string) {
	w.cloud.set(func(c *cloud) {
		c.instances[uid] = &providerv1.Instance{
			ProviderId: "test://c/" + uid, MachineName: uid, MachineUid: uid, State: "Running",
		}
	})
}

// reaper starts controllers whose clock a test moves, and returns how to move it.
func (w *world) reaper(policy string) (*Controller, *recorded, func(time.Duration)) {
	var ahead atomic.Int64
	events := &recorded{}
	c := w.start(func(c *Config) {
		c.OrphanPolicy, c.OrphanGrace, c.Events = policy, time.Hour, events
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	return c, events, func(d time.Duration) {
		ahead.Add(int64(d))
		c.instances.Add("provider-test")
	}
}

// orphansAre waits for the condition of the ClusterOperator.
func (w *world) orphansAre(c *Controller, status, text string) {
	w.t.Helper()
	eventually(w.t, func() error {
		if got := c.OrphanCondition(); got.Status != status || !strings.Contains(got.Message, text) {
			return fmt.Errorf("condition %+v, want %s with %q", got, status, text)
		}
		return nil
	})
}

func TestAnOrphanIsReportedAndThenDeleted(t *testing.T) {
	w := newWorld(t)
	w.leak("leaked")
	c, events, pass := w.reaper(plan.DeleteOrphans)
	w.create(newMachine("lives"))
	w.phase("lives", plan.PhaseRunning)
	w.orphansAre(c, "False", "")
	pass(20 * time.Second)
	w.orphansAre(c, "True", "instance test://c/leaked has no machine")
	if n := events.count("OrphanedInstance"); n != 1 {
		t.Errorf("%d events, want 1: %v", n, events.lines)
	}
	if w.cloud.count() != 2 {
		t.Fatalf("%d instances before the grace is over, want 2", w.cloud.count())
	}
	pass(time.Hour)
	eventually(t, func() error {
		if n := w.cloud.count(); n != 1 {
			return fmt.Errorf("%d instances, want that of the machine only", n)
		}
		return nil
	})
	w.phase("lives", plan.PhaseRunning)
	c.instances.Add("provider-test")
	w.orphansAre(c, "False", "")
	if events.count("OrphanDeleted") == 0 {
		t.Errorf("the deletion has no event: %v", events.lines)
	}
}

func TestAnOrphanIsOnlyReported(t *testing.T) {
	w := newWorld(t)
	w.leak("leaked")
	c, events, pass := w.reaper(plan.ReportOrphans)
	w.orphansAre(c, "False", "")
	pass(20 * time.Second)
	w.orphansAre(c, "True", "test://c/leaked")
	for range 3 {
		pass(24 * time.Hour)
	}
	w.cloud.set(func(c *cloud) { c.away = status.Error(codes.Unavailable, "the cloud is away") })
	c.instances.Add("provider-test")
	eventually(t, func() error {
		c.orphans.mu.Lock()
		defer c.orphans.mu.Unlock()
		if c.orphans.unknown["provider-test"] != "the cloud is away" {
			return fmt.Errorf("unknown: %v", c.orphans.unknown)
		}
		return nil
	})
	w.orphansAre(c, "True", "test://c/leaked") // a provider that does not answer takes nothing back
	if w.cloud.count() != 1 || events.count("OrphanedInstance") != 1 {
		t.Errorf("%d instances, events %v", w.cloud.count(), events.lines)
	}
}

func TestInstancesOfAProviderThatIsAwayAreUnknown(t *testing.T) {
	w := newWorld(t)
	w.leak("leaked")
	w.cloud.set(func(c *cloud) { c.away = status.Error(codes.Unavailable, "the cloud is away") })
	c, _, pass := w.reaper(plan.DeleteOrphans)
	w.orphansAre(c, "Unknown", "provider-test: the cloud is away")
	pass(24 * time.Hour)
	w.cloud.set(func(c *cloud) { c.away = nil })
	c.instances.Add("provider-test")
	w.orphansAre(c, "False", "") // the time away does not count
	if w.cloud.count() != 1 {
		t.Error("the instance was deleted in the first look that found it")
	}
}

func TestACreationUnderWayIsNoOrphan(t *testing.T) {
	w := newWorld(t)
	c, _, pass := w.reaper(plan.DeleteOrphans)
	w.cloud.set(func(c *cloud) { c.silent = true })
	for i := range 20 {
		w.create(newMachine(fmt.Sprint("m", i)))
		pass(2 * time.Hour) // each look finds others that are new
	}
	eventually(t, func() error {
		if n := w.cloud.count(); n != 20 {
			return fmt.Errorf("%d instances, want 20", n)
		}
		return nil
	})
	pass(2 * time.Hour)
	w.orphansAre(c, "False", "")
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	if len(w.cloud.deletions) > 0 {
		t.Errorf("%d instances were deleted", len(w.cloud.deletions))
	}
}
