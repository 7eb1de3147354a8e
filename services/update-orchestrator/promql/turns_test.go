package promql

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// begun notes when queries begin.
type begun struct {
	mu sync.Mutex
	at map[time.Time]int
}

func (b *begun) Evaluate(context.Context, string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at[time.Now()]++
	return true, nil
}

func TestQueriesOfSeveralEvaluatorsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, turns := time.Now(), NewTurns(time.Second)
		b := &begun{at: map[time.Time]int{}}
		var all sync.WaitGroup
		for _, e := range []Evaluator{turns.Of(b), turns.Of(b)} {
			for range 2 {
				all.Go(func() {
					if applies, err := e.Evaluate(t.Context(), "q"); !applies || err != nil {
						t.Errorf("applies = %t, error = %v", applies, err)
					}
				})
			}
		}
		all.Wait()
		want := map[time.Time]int{}
		for n := range 4 {
			want[start.Add(time.Duration(n)*time.Second)] = 1
		}
		if diff := cmp.Diff(want, b.at); diff != "" {
			t.Errorf("queries begin (-want +got):\n%s", diff)
		}
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
			if _, err := turns.Of(b).Evaluate(ctx, "q"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a query that ends before its turn: %v", err)
			}
			cancel()
		}
		begin := time.Now()
		if _, err := turns.Of(b).Evaluate(t.Context(), "q"); err != nil || time.Since(begin) > time.Second {
			t.Errorf("a query waited %s for those that gave up: %v", time.Since(begin), err)
		}
	})
}
