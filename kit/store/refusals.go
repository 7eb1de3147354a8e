package store

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logRefusal is how often a watch of the same keys that etcd goes on refusing is logged.
const logRefusal = time.Minute

// Refusals counts watches that etcd refused or ended with an error, and logs those of the same keys at most once a
// minute. The zero value is ready; its methods may be called concurrently.
type Refusals struct {
	mu     sync.Mutex
	count  int64
	logged map[string]time.Time // by prefix: few, one for each kind of record
}

// Note counts a refusal of a watch of the keys that begin with prefix.
func (r *Refusals) Note(ctx context.Context, log *slog.Logger, prefix string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if at, ok := r.logged[prefix]; ok && time.Since(at) < logRefusal {
		return
	}
	if r.logged == nil {
		r.logged = map[string]time.Time{}
	}
	r.logged[prefix] = time.Now()
	log.WarnContext(ctx, "watch of etcd failed", "prefix", prefix, "error", err)
}

// Count returns how many refusals there were.
func (r *Refusals) Count() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
