package reach

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// FailuresInRow is after how many failed calls a server is called less often.
	FailuresInRow = 3
	// Pause is how long a server that fails is not called. After it, one call tries.
	Pause = time.Second
)

// Gate bounds the calls of one server. While it fails, calls are refused at once, so that nothing waits for a server
// that is gone. It is safe for concurrent use.
type Gate struct {
	slots chan struct{}

	mu      sync.Mutex
	failed  int       // calls in a row
	last    error     // of the last of them
	resumes time.Time // when the next call may try
	trying  bool      // a call tries
}

// NewGate returns a gate that a number of calls, 1 or more, may pass at the same time; others wait for one of them to
// end.
func NewGate(calls int) *Gate { return &Gate{slots: make(chan struct{}, calls)} }

// Enter waits for its turn. leave must be called after the call, with its result, and whether that says something about
// the server; it reports whether the server has just begun to be called less often.
func (g *Gate) Enter(ctx context.Context, now time.Time) (leave func(counts bool, err error, now time.Time) bool,
	err error,
) {
	probe, err := g.admit(now)
	if err != nil {
		return nil, err
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		g.settle(probe, false, nil, now)
		return nil, fmt.Errorf("not called: %d calls of it are under way", cap(g.slots))
	}
	return func(counts bool, err error, now time.Time) bool {
		<-g.slots
		return g.settle(probe, counts, err, now)
	}, nil
}

// admit refuses a call of a server that fails, unless it is the one that tries.
func (g *Gate) admit(now time.Time) (probe bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed < FailuresInRow {
		return false, nil
	}
	if g.trying || now.Before(g.resumes) {
		// Without their number, so that the text is the same for all calls that are refused for one cause.
		return false, fmt.Errorf("not called, since the last calls failed; it is tried again every %s: %w", Pause, g.last)
	}
	g.trying = true
	return true, nil
}

// settle notes the result of a call, if it counts.
func (g *Gate) settle(probe, counts bool, err error, now time.Time) (stops bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if probe {
		g.trying = false
	}
	switch {
	case !counts:
	case err == nil:
		g.failed, g.last = 0, nil
	default:
		g.failed++
		g.last, g.resumes = err, now.Add(Pause)
		return g.failed == FailuresInRow
	}
	return false
}
