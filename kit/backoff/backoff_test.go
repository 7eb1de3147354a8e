package backoff_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
)

func TestEachPauseIsTwiceTheOneBeforeUntilTheLongest(t *testing.T) {
	b := backoff.New(50*time.Millisecond, 300*time.Millisecond)
	for range 2 {
		var got []time.Duration
		for range 5 {
			got = append(got, b.Next()/time.Millisecond)
		}
		if want := []time.Duration{50, 100, 200, 300, 300}; !slices.Equal(got, want) {
			t.Errorf("pauses of %d ms, want %d", got, want)
		}
		b.Reset()
	}
}

func TestPausesThatAreSpreadStayBetweenHalfAndOneAndAHalf(t *testing.T) {
	b := backoff.Spread(100*time.Millisecond, 200*time.Millisecond)
	for n, mean := range []time.Duration{100, 200, 200, 200, 200, 200} {
		mean *= time.Millisecond
		if got := b.Next(); got < mean/2 || got >= mean*3/2 {
			t.Errorf("pause %d is %v, with a mean of %v", n, got, mean)
		}
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !backoff.New(time.Second, time.Minute).Wait(t.Context()) || time.Since(start) != time.Second {
			t.Errorf("the first wait took %v", time.Since(start))
		}
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if backoff.New(time.Minute, time.Minute).Wait(ctx) || time.Since(start) != 2*time.Second {
			t.Errorf("the second wait ended after %v in all", time.Since(start))
		}
	})
}
