// Package liveness keeps, only in memory, when each agent sent its last heartbeat and what it reported. It measures
// silence by the time in which this process ran: while it was suspended it received no heartbeats, so that time is no
// silence of an agent.
package liveness

import (
	"context"
	"sync"
	"time"
)

// beatOfAwake is how often Awake is updated. In a busy process an update is late by less than this period; any longer
// delay is time in which the process did not run.
const beatOfAwake = 500 * time.Millisecond

// standstill is the shortest pause after which the process counts as suspended: longer than the delays of a busy host,
// shorter than the lease of a leader, and several heartbeats of an agent.
const standstill = 4 * time.Second

// Awake counts the time in which this process ran. Make one with NewAwake; it is safe for concurrent use.
type Awake struct {
	mu      sync.Mutex
	last    time.Time
	total   time.Duration
	resumed time.Duration // the value of total when the process last resumed after a standstill
}

// NewAwake returns a clock that shows 0.
func NewAwake() *Awake { return &Awake{last: time.Now()} }

// Run updates the clock until ctx ends.
func (a *Awake) Run(ctx context.Context) error {
	ticker := time.NewTicker(beatOfAwake)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.wind(time.Now())
		}
	}
}

func (a *Awake) wind(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.last) {
		return // a concurrent call updated it
	}
	a.total += ran(now.Sub(a.last))
	// The monotonic clock may not count the time in which the host slept; the wall clock does.
	if max(now.Sub(a.last), now.Round(0).Sub(a.last.Round(0))) >= standstill {
		a.resumed = a.total
	}
	a.last = now
}

// Now returns how long the process has run. It never goes back.
func (a *Awake) Now() time.Duration {
	now, _ := a.read()
	return now
}

// read returns how long the process has run, now and when it last resumed after a standstill.
func (a *Awake) read() (now, resumed time.Duration) {
	a.wind(time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total, a.resumed
}

// ran returns how much of the time since the last update counts as running.
func ran(d time.Duration) time.Duration { return min(d, 2*beatOfAwake) }
