package harness

import (
	"context"
	"time"
)

// lookEvery is short beside everything that is waited for.
const lookEvery = 20 * time.Millisecond

// Wait looks until look says that it is done. What it saw last is reported when the time is over. An error of look is
// what it saw: a cluster under faults does not always answer.
func (c *Cluster) Wait(patience time.Duration, what string, look func(context.Context) (done bool, saw string,
	err error),
) {
	c.t.Helper()
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
		limited, end := context.WithTimeout(ctx, 5*time.Second)
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
