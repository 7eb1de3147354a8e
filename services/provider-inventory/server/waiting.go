package server

import (
	"maps"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

// waiting are the machines that found no host lately. The zero value is ready for use.
type waiting struct {
	mu    sync.Mutex
	until map[string]time.Time // by request token: when the machine counts as no longer waiting
}

// add notes that a machine found no host, and returns after which time it asks again.
func (w *waiting) add(token string, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.until, func(_ string, until time.Time) bool { return now.After(until) })
	if w.until == nil {
		w.until = map[string]time.Time{}
	}
	w.until[token] = now
	again := plan.AskAgain(len(w.until))
	w.until[token] = now.Add(2 * again) // it may be late
	return again
}

// remove notes that a machine waits no longer.
func (w *waiting) remove(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.until, token)
}
