package fleet

import (
	"context"
	"slices"

	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
)

// Watch is one watch of all instances. It is used by one goroutine.
type Watch struct {
	fleet   *Fleet
	pending map[string]bool // provider ids of instances that changed; guarded by the fleet's lock
	wake    chan struct{}   // has room for one: something changed
	sent    map[string]*providerv1.Instance
}

// Watch returns a watch that begins with all instances. Close ends it.
func (f *Fleet) Watch() *Watch {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &Watch{
		fleet: f, pending: map[string]bool{}, wake: make(chan struct{}, 1), sent: map[string]*providerv1.Instance{},
	}
	for id := range f.instances {
		w.pending[id] = true
	}
	f.watches[w] = true
	return w
}

// Close ends the watch.
func (w *Watch) Close() {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	delete(w.fleet.watches, w)
}

// Next returns what changed since the last call, by provider id, without waiting: instances as they are, and those
// that are gone as they were.
func (w *Watch) Next() []*providerv1.WatchInstancesResponse {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	var out []*providerv1.WatchInstancesResponse
	for id := range w.pending {
		now, there := w.fleet.instances[id]
		before, known := w.sent[id]
		switch {
		case there && now != before:
			w.sent[id] = now
			out = append(out, &providerv1.WatchInstancesResponse{Instance: now})
		case !there && known:
			delete(w.sent, id)
			out = append(out, &providerv1.WatchInstancesResponse{Instance: before, Deleted: true})
		}
	}
	clear(w.pending)
	slices.SortFunc(out, func(a, b *providerv1.WatchInstancesResponse) int {
		return compareIDs(a.GetInstance(), b.GetInstance())
	})
	return out
}

// Wait waits until something changed; false if ctx ended before.
func (w *Watch) Wait(ctx context.Context) bool {
	select {
	case <-w.wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// changed notes for all watches that an instance changed; the lock is held.
func (f *Fleet) changed(id string) {
	for w := range f.watches {
		w.pending[id] = true
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
