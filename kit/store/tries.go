package store

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstTry     = 300 * time.Millisecond // one lost answer costs no more than this; a lost leader is found after 1.2 s
	firstListTry = 2 * time.Second        // a long page may take a while, and asking again makes it longer
	shortTries   = 6                      // together as long as an election takes; then etcd is slow rather than gone
	longestTry   = 5 * time.Second

	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// tries paces the attempts of one call: short ones at first, so that another member is soon asked, then longer ones, so
// that a slow disk delays a call but cannot starve it.
type tries struct {
	limit time.Duration
	pause time.Duration
	count int
}

func newTries(first time.Duration) *tries { return &tries{limit: first} }

// next waits before another attempt, and reports whether there is one.
func (t *tries) next(ctx context.Context) bool {
	t.count++
	if t.count == 1 {
		return ctx.Err() == nil
	}
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
