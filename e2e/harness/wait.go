package harness

import (
	"context"
	"time"
)

const (
	// lookEvery is short beside everything that is waited for.
	lookEvery = 20 * time.Millisecond
	// lookPatience is for one look, which may ask a program that is paused, or one that waits for a processor.
	lookPatience = 15 * time.Second
	// leastPatience is the least that Wait and Settle wait. It costs time only in a test that fails, and a busy host takes
	// many times as long as a quiet one: how soon something happens is measured elsewhere.
	leastPatience = 5 * time.Minute
)

// Wait looks until look says that it is done, for patience or leastPatience, whichever is longer. What it saw last is
// reported when the time is over. An error of look is what it saw: a cluster under faults does not always answer.
func (c *Cluster) Wait(patience time.Duration, what string, look func(context.Context) (done bool, saw string,
	err error),
) {
	c.t.Helper()
	patience = max(patience, leastPatience)
	if saw, ok := await(context.Background(), patience, look); !ok {
		c.t.Fatalf("after %s still waiting for %s: %s", patience, what, saw)
	}
}

func await(ctx context.Context, patience time.Duration, look func(context.Context) (bool, string, error)) (string,
	bool,
) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	saw := "nothing yet"
	for {
		limited, end := context.WithTimeout(ctx, lookPatience)
		done, now, err := look(limited)
		end()
		switch {
		case done:
			return now, true
		case err != nil && ctx.Err() == nil:
			saw = now + " " + err.Error()
		case err == nil:
			saw = now
		}
		select {
		case <-ctx.Done():
			return saw, false
		case <-tick.C:
		}
	}
}

// Hold looks again and again for a while and fails the test as soon as look says that something is wrong. An error of
// look is no fault: a cluster under faults does not always answer.
func (c *Cluster) Hold(while time.Duration, what string, look func(context.Context) (wrong string, err error)) {
	c.t.Helper()
	saw, ok := await(context.Background(), while, func(ctx context.Context) (bool, string, error) {
		wrong, err := look(ctx)
		return wrong != "", wrong, err
	})
	if ok {
		c.t.Fatalf("%s does not hold: %s", what, saw)
	}
}
