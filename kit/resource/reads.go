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
	// overdueAfter is many times what a member needs to bring a change.
	overdueAfter = 400 * time.Millisecond
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
	// Without changes the watch reports its progress only every other second unless it is asked.
	if w := t.watcher.Load(); w != nil && t.Revision() < mine.revision {
		w.AskProgress()
	}
	return t.reach(ctx, mine.revision)
}

// reach waits until the cache has all changes up to a revision at which etcd is, or ctx ends. A watch that does not
// bring them is asked, and then has to use another member: the one behind it may be cut off.
func (t *Table[T]) reach(ctx context.Context, revision int64) error {
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for began := time.Now(); ; {
		reached, moved := t.reached(revision)
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-again.C:
			w := t.watcher.Load()
			if w == nil {
				continue
			}
			w.AskProgress()
			if time.Since(began) >= overdueAfter {
				w.Overdue(revision)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
