package reach

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// calls is how many calls the gates of tests let pass at the same time.
const calls = 32

func TestAGateTriesOneCallAfterThePauseAndOpensWithItsSuccess(t *testing.T) {
	g := NewGate(calls)
	now := time.Unix(0, 0)
	down := errors.New("down")
	call := func(result error) error {
		leave, err := g.Enter(t.Context(), now)
		if err != nil {
			return err
		}
		leave(true, result, now)
		return result
	}
	for range FailuresInRow {
		_ = call(down)
	}
	if err := call(nil); !errors.Is(err, down) {
		t.Fatalf("at once: %v, want it refused because of the last failure", err)
	}
	now = now.Add(Pause)
	leave, err := g.Enter(t.Context(), now)
	if err != nil {
		t.Fatalf("after the pause: %v", err)
	}
	if err := call(nil); !errors.Is(err, down) {
		t.Errorf("while one call tries: %v", err)
	}
	leave(true, down, now)
	if err := call(nil); !errors.Is(err, down) {
		t.Errorf("after the try failed: %v", err)
	}
	now = now.Add(Pause)
	for range 2 * FailuresInRow {
		if err := call(nil); err != nil {
			t.Errorf("after it answers: %v", err)
		}
	}
}

func TestNoMoreThanSoManyCallsOfAServerAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(calls)
		var last func(bool, error, time.Time) bool
		for range calls {
			leave, err := g.Enter(t.Context(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			last = leave
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := g.Enter(ctx, start); err == nil || time.Since(start) != 10*time.Second {
			t.Errorf("one more: %v after %v, want it refused after its time", err, time.Since(start))
		}
		last(true, nil, time.Now())
		if _, err := g.Enter(t.Context(), time.Now()); err != nil {
			t.Errorf("after one has left: %v", err)
		}
	})
}
