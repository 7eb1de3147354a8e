package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/services/etcd-guardian/members"
	"github.com/windlass-dev/windlass/services/etcd-guardian/store"
)

// TestAStepOfTheClockIsNoSilence has the host's clock jump while a member is silent for a moment: its silence is what
// the monotonic clock measured.
func TestAStepOfTheClockIsNoSilence(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		elapsed, clock := time.Minute, time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
		c := &Controller{Config: Config{Elapsed: func() time.Duration { return elapsed }, Now: func() time.Time {
			return clock
		}}}
		c.memory = newMemory(store.Note{})
		e := store.NoteMember{ID: 7, Name: "m0"}
		down := members.Answer{Err: errors.New("it cannot be reached")}
		c.memory.answers = map[uint64]members.Answer{7: down}
		c.memory.track(e, down, c.Elapsed(), c.Now())
		elapsed, clock = elapsed+200*time.Millisecond, clock.Add(step)
		c.memory.track(e, down, c.Elapsed(), c.Now())
		m := c.member(e, true, c.Elapsed())
		if m.Silent != 200*time.Millisecond || m.SilentSince != "2026-11-22T10:00:00Z" {
			t.Errorf("after a step of %s: silent for %s since %s, want 200ms since 2026-11-22T10:00:00Z", step, m.Silent,
				m.SilentSince)
		}
	}
}
