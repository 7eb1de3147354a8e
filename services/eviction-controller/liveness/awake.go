// Package liveness knows, in memory alone, which agents were heard of, when, and what they said last. It measures
// silence in time that this process itself ran: while it was stopped nobody listened, so nobody was silent.
package liveness

import (
	"context"
	"sync"
	"time"
)

// beatOfAwake is how often the clock of waking time is wound. A process that is merely busy comes to it late, by less
// than it again; whatever is beyond that is time in which it did not run.
const beatOfAwake = 500 * time.Millisecond

// standstill is how long a process has to stand still for others to count it as away: longer than any hiccup of a busy
// host, shorter than the lease of a leader, and some heartbeats of an agent.
const standstill = 4 * time.Second

// Awake counts the time in which this process ran. Make one with NewAwake; it is safe for concurrent use.
type Awake struct {
	mu      sync.Mutex
	last    time.Time
	total   time.Duration
	resumed time.Duration // what total was when the process last went on after a standstill
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
	if now.Before(a.last) {
		return // another wound it meanwhile
	}
	a.total += ran(now.Sub(a.last))
	// A host that slept shows in the time of day alone.
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

// read returns how long the process has run, and how long it had when it last went on after a standstill.
func (a *Awake) read() (now, resumed time.Duration) {
	a.wind(time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total, a.resumed
}

// ran is what of the time since the clock was wound counts as running.
func ran(d time.Duration) time.Duration { return min(d, 2*beatOfAwake) }
