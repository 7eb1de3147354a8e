package store

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	shortTries = 6 // together as long as an election takes; then etcd is slow rather than gone
	longestTry = 5 * time.Second

	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// pace says how long the first attempts of a call may take: the very first one, and those after it.
type pace struct{ quick, first time.Duration }

var (
	// A change of leader loses what was proposed in that moment, and nobody ever answers; asking again costs little. So the very first
	// attempt is given up after many times what a read or write takes. A lost leader is found after 1.2 s.
	shortPace = pace{quick: 75 * time.Millisecond, first: 300 * time.Millisecond}
	// A long page may take a while, and asking again makes it longer.
	listPace = pace{quick: 2 * time.Second, first: 2 * time.Second}
)

// tries paces the attempts of one call: short ones at first, so that another member is soon asked, then longer ones, so
// that a slow disk delays a call but cannot starve it.
type tries struct {
	limit time.Duration // of this attempt
	first time.Duration // of the attempts after the quick one
	pause time.Duration
	count int
}

func newTries(p pace) *tries { return &tries{limit: p.quick, first: p.first} }

// next waits before another attempt, and reports whether there is one.
func (t *tries) next(ctx context.Context) bool {
	t.count++
	if t.count == 1 {
		return ctx.Err() == nil
	}
	t.limit = max(t.limit, t.first)
	if t.count > shortTries {
		t.limit = min(2*t.limit, longestTry)
	}
	t.pause = min(max(2*t.pause, firstPause), longestPause)
	return sleep(ctx, t.pause/2+rand.N(t.pause))
}

// context returns the context of one attempt.
func (t *tries) context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.limit)
}

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
