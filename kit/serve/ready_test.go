package serve_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/windlass-dev/windlass/kit/serve"
)

func TestAProcessStaysReadyThroughAnElectionAndNoLonger(t *testing.T) {
	errAway := errors.New("away")
	for name, c := range map[string]struct {
		silence time.Duration // how long no check succeeds, from 10 s on
		hangs   bool          // checks do not return by themselves
		lost    time.Duration // when the process is reported as not ready; 0: never
	}{
		"an election":                     {2500 * time.Millisecond, false, 0},
		"an election whose checks hang":   {2500 * time.Millisecond, true, 0},
		"a loss":                          {10 * time.Second, false, 13 * time.Second},
		"a loss in which the checks hang": {10 * time.Second, true, 13 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				from, to := 10*time.Second+time.Millisecond, 10*time.Second+c.silence
				check := func(ctx context.Context) error {
					since := time.Since(start)
					if since < from || since >= to {
						return nil
					}
					if c.hangs {
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-time.After(to - since):
							return nil
						}
					}
					return errAway
				}
				var said []time.Duration
				serve.WatchReady(ctx, check, func(err error) {
					if (err == nil) != (len(said)%2 == 0) {
						t.Errorf("%v after %v", err, time.Since(start))
					}
					said = append(said, time.Since(start).Round(100*time.Millisecond))
				})
				if c.lost == 0 && len(said) != 1 || c.lost != 0 && (len(said) != 3 || said[1] != c.lost) {
					t.Errorf("said at %v, want the loss at %v", said, c.lost)
				}
			})
		})
	}
}
