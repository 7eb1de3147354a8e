package promql

import (
	"context"
	"sync"
	"time"
)

// Evaluator evaluates queries: an Engine or a Server.
type Evaluator interface {
	Evaluate(ctx context.Context, text string) (bool, error)
}

// Turns has the queries of several evaluators begin a time apart. It is safe for concurrent use.
type Turns struct {
	apart time.Duration

	mu   sync.Mutex
	next time.Time // the first turn that is not taken
}

// NewTurns returns turns that are a time apart; the first one is at once.
func NewTurns(apart time.Duration) *Turns { return &Turns{apart: apart} }

// Of returns an evaluator whose queries wait for their turns, in the order in which they come.
func (t *Turns) Of(e Evaluator) Evaluator { return &waiting{e, t} }

type waiting struct {
	evaluator Evaluator
	turns     *Turns
}

// Evaluate is that of the evaluator. If ctx ends before it is the query's turn, the error is that of ctx.
func (w *waiting) Evaluate(ctx context.Context, text string) (bool, error) {
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(w.turns.take()):
		return w.evaluator.Evaluate(ctx, text)
	}
}

// take takes a turn, and returns how long it is until then.
func (t *Turns) take() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	at := now
	if t.next.After(now) {
		at = t.next
	}
	t.next = at.Add(t.apart)
	return at.Sub(now)
}
