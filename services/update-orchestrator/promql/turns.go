package promql

import (
	"context"
	"time"
)

// Evaluator evaluates queries: an Engine or a Server.
type Evaluator interface {
	Evaluate(ctx context.Context, text string) (bool, error)
}

// Turns has the queries of several evaluators begin a time apart. It is safe for concurrent use.
type Turns struct {
	apart time.Duration
	queue chan struct{} // holds one: the query whose turn is next
	next  time.Time     // of that query alone: when it may begin
}

// NewTurns returns turns that are a time apart; the first one is at once.
func NewTurns(apart time.Duration) *Turns { return &Turns{apart: apart, queue: make(chan struct{}, 1)} }

// Of returns an evaluator whose queries wait for their turns.
func (t *Turns) Of(e Evaluator) Evaluator { return &waiting{e, t} }

type waiting struct {
	evaluator Evaluator
	turns     *Turns
}

// Evaluate is that of the evaluator. If ctx ends before it is the query's turn, the error is that of ctx.
func (w *waiting) Evaluate(ctx context.Context, text string) (bool, error) {
	if err := w.turns.await(ctx); err != nil {
		return false, err
	}
	return w.evaluator.Evaluate(ctx, text)
}

// await waits for a turn. A query that gives up takes none.
func (t *Turns) await(ctx context.Context) error {
	select {
	case t.queue <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.queue }()
	timer := time.NewTimer(time.Until(t.next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.next = time.Now().Add(t.apart)
	return nil
}
