// Package liveness knows, in memory alone, which agents were heard of, when, and what they said last. It measures silence in
// time that this process itself ran: while it was stopped nobody listened, so nobody was silent.
package liveness

import (
	"context"
	"sync"
	"time"
)

// beatOfAwake is how often the clock of waking time is wound. A process that is merely busy comes to it late, by less than it again;
// whatever is beyond that is time in which it did not run.
const beatOfAwake = 500 * time.Millisecond

// Awake counts the time in which this process ran. Make one with NewAwake; it is safe for concurrent use.
type Awake struct {
	mu    sync.Mutex
	last  time.Time
	total time.Duration
}

// NewAwake returns a clock that stands at 0.
func NewAwake() *Awake { return &Awake{last: time.Now()} }

// Run winds the clock until ctx ends.
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
	a.total += ran(now.Sub(a.last))
	a.last = now
}

// Now returns how long the process has run. It never goes back.
func (a *Awake) Now() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total + ran(time.Since(a.last))
}

// ran is what of the time since the clock was wound counts as running.
func ran(d time.Duration) time.Duration { return min(d, 2*beatOfAwake) }
