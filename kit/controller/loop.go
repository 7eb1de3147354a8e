// Package controller contains the parts of controllers: loops that reconcile one key at a time, the sources that they
// follow, and the election that selects one process of a service to run them. What is decided and done for a key is
// left to the services.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/windlass-dev/windlass/kit/store"
)

const (
	firstBackOff   = 50 * time.Millisecond
	longestBackOff = 30 * time.Second
	longestCatchUp = time.Second           // the longest pause between two tries to catch up with etcd
	soonest        = 10 * time.Millisecond // so that a wake time that is always in the past cannot use a full core

	// a paced key waits for so many times as long as its last call took, at most longestPace
	paceFactor  = 9
	longestPace = 250 * time.Millisecond
)

// Func reconciles one key. It returns when to reconcile it again even if nothing changes; zero means never. After an
// error it is called again, with exponential back-off from 50 ms to 30 s. It is never called concurrently with the same
// key.
type Func func(ctx context.Context, key string) (time.Time, error)

// Earliest returns the earlier one of two times at which to reconcile again; zero means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Loop calls a Func for every key that was added. Make one with NewLoop; it is safe for concurrent use.
type Loop struct {
	name    string
	workers int
	keys    []func() []string // the keys to begin with
	needs   []Synced          // what must be known before a run; see Needs
	gather  time.Duration     // see Gather
	paced   bool              // see Pace
	f       Func
	log     *slog.Logger

	mu     sync.Mutex
	queue  workqueue.TypedRateLimitingInterface[string] // nil while Run does not run
	logged map[string]string                            // by key: the error that was last logged
	took   map[string]time.Duration                     // by key, of a paced loop: the last call, if it was long
}

// NewLoop returns a loop that reconciles up to workers keys concurrently, for a process without an election. Use
// Loops.Loop for the loops of a leader.
func NewLoop(name string, workers int, f Func, log *slog.Logger) *Loop {
	return &Loop{name: name, workers: workers, f: f, log: log.With("loop", name)}
}

// Begin adds the keys that f returns at the beginning of each run, in any order; a key may occur more than once. It
// must not be called while Run runs.
func (l *Loop) Begin(f func() []string) { l.keys = append(l.keys, f) }

// Add enqueues keys. Repeated calls before a key is reconciled have no further effect; a call while it is reconciled
// enqueues it again. While Run does not run, Add does nothing: a standby process would otherwise collect the keys of
// all objects that are created and deleted.
func (l *Loop) Add(keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return
	}
	for _, key := range keys {
		l.queue.AddAfter(key, max(l.gather, min(paceFactor*l.took[key], longestPace)))
	}
}

// Gather delays keys by d after they were added, so that several changes in that time lead to one call. It must not be
// called while Run runs.
func (l *Loop) Gather(d time.Duration) { l.gather = d }

// Pace has keys whose calls take long wait in proportion after they were added, up to 250 ms, so that many changes of
// what such a key reads lead to few calls. It must not be called while Run runs.
func (l *Loop) Pace() { l.paced = true }

// runs reports whether Add has an effect.
func (l *Loop) runs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue != nil
}

// Run reconciles the keys of all sources, and then those that are added, until ctx ends. It then waits for the running
// calls. It may be called again after it returned, for example when this process leads again.
func (l *Loop) Run(ctx context.Context) error {
	queue, err := l.start()
	if err != nil {
		return err
	}
	defer l.stop()
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for _, keys := range l.keys { // Add works from before this point, so no change is missed
		for _, key := range keys() {
			queue.Add(key)
		}
	}
	var group sync.WaitGroup
	for range l.workers {
		group.Go(func() {
			for key, end := queue.Get(); !end; key, end = queue.Get() {
				l.reconcile(ctx, queue, key)
			}
		})
	}
	group.Wait()
	return nil
}

func (l *Loop) start() (workqueue.TypedRateLimitingInterface[string], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil {
		return nil, fmt.Errorf("loop %q runs already", l.name)
	}
	l.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstBackOff, longestBackOff))
	l.logged, l.took = map[string]string{}, map[string]time.Duration{}
	return l.queue, nil
}

func (l *Loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue, l.logged, l.took = nil, nil, nil
}

// reconcile calls the Func once and schedules the next call.
func (l *Loop) reconcile(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], key string) {
	defer queue.Done(key)
	if ctx.Err() != nil {
		return
	}
	began := time.Now()
	wake, err := l.f(ctx, key)
	l.note(key, time.Since(began))
	switch {
	case err != nil:
		l.report(ctx, key, err)
		queue.AddRateLimited(key)
	case !wake.IsZero():
		l.settled(key)
		queue.Forget(key)
		queue.AddAfter(key, max(time.Until(wake), soonest))
	default:
		l.settled(key)
		queue.Forget(key)
	}
}

// note keeps how long a call of a paced key took, if that matters.
func (l *Loop) note(key string, took time.Duration) {
	if !l.paced {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if took >= time.Millisecond && l.took != nil {
		l.took[key] = took
	} else {
		delete(l.took, key)
	}
}

// report logs an error, unless it is the last error that was logged for the key.
func (l *Loop) report(ctx context.Context, key string, err error) {
	if ctx.Err() != nil {
		return // the leadership or the process ended
	}
	if errors.Is(err, store.ErrConflict) {
		l.log.DebugContext(ctx, "changed since it was read", "key", key, "error", err)
		return
	}
	l.mu.Lock()
	known := l.logged[key] == err.Error()
	l.logged[key] = err.Error()
	l.mu.Unlock()
	if !known {
		l.log.WarnContext(ctx, "reconcile", "key", key, "error", err)
	}
}

func (l *Loop) settled(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.logged, key)
}
