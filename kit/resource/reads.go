package resource

import (
	"context"
	"sync"
	"time"
)

// reads are reads of etcd's current revision. One runs at a time: callers that arrive while it runs share the next one,
// since the result of the running one may be older than a write that they know of.
type reads struct {
	mu      sync.Mutex
	running bool
	next    *read
}

type read struct {
	done     chan struct{}
	revision int64
	err      error
}

// join returns the read that begins after the call, and whether the caller has to run it.
func (r *reads) join() (*read, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &read{done: make(chan struct{})}
	}
	first := !r.running
	r.running = true
	return r.next, first
}

// run reads once for each group of callers, until there is none.
func (r *reads) run(ask func() (int64, error)) {
	for {
		r.mu.Lock()
		now := r.next
		r.next = nil
		r.running = now != nil
		r.mu.Unlock()
		if now == nil {
			return
		}
		now.revision, now.err = ask()
		close(now.done)
	}
}

const (
	readTimeout = 10 * time.Second       // timeout of a read, which callers share; their own contexts may end earlier
	askEvery    = 100 * time.Millisecond // a member that lags behind does not report its progress unasked
)

// CatchUp waits until the cache has everything that was in etcd at the time of the call, or ctx ends. It fails if etcd
// does not answer.
func (t *Table[T]) CatchUp(ctx context.Context) error {
	mine, first := t.reads.join()
	if first {
		go t.reads.run(func() (int64, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
			defer cancel()
			return t.st.Revision(ctx)
		})
	}
	select {
	case <-mine.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if mine.err != nil {
		return mine.err
	}
	if t.Revision() >= mine.revision {
		return nil
	}
	// Without changes the watch reports its progress only every other second unless it is asked.
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		if w := t.watcher.Load(); w != nil {
			w.AskProgress()
		}
		reached, moved := t.reached(mine.revision)
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
