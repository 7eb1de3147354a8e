// Package backoff spaces out retries: each pause is twice as long as the one before. The sequence is that of
// k8s.io/apimachinery/pkg/util/wait; this package adds the wait and the reset.
package backoff

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff is a sequence of pauses. It is not safe for concurrent use.
type Backoff struct{ start, now wait.Backoff }

// New returns a Backoff with pauses from first to most.
func New(first, most time.Duration) *Backoff { return jittered(first, most, 0) }

// Spread is New with each pause multiplied by a random factor from 0.5 to 1.5, so that many clients do not retry at the
// same time.
func Spread(first, most time.Duration) *Backoff { return jittered(first/2, most/2, 2) }

func jittered(first, most time.Duration, jitter float64) *Backoff {
	b := wait.Backoff{Duration: first, Factor: 2, Cap: most, Steps: math.MaxInt32, Jitter: jitter}
	return &Backoff{start: b, now: b}
}

// Next returns the next pause, for callers that wait for other events, too.
func (b *Backoff) Next() time.Duration { return b.now.Step() }

// Wait waits for the next pause. It returns false as soon as ctx ends.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Reset returns to the first pause, after a success.
func (b *Backoff) Reset() { b.now = b.start }

// Sleep waits for d. It returns false as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
