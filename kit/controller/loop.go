// Package controller is what controllers consist of: loops that reconcile one key at a time, what they follow, and the
// election that lets one process of a service run them. What is decided and done for a key is left to the services.
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
	longestCatchUp = time.Second           // between two tries to learn what was written before
	soonest        = 10 * time.Millisecond // so that a wake time in the past, given each time, cannot take a whole core
)

// Func reconciles one key. It returns when to do so again even if nothing changes; zero means never. After an error it
// is called again, after a pause that doubles. It is never called twice at once with the same key.
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
	keys    []func() []string             // all keys that there are
	waits   []func(context.Context) error // for what must be known before a run; see Needs
	gather  time.Duration                 // see Gather
	f       Func
	log     *slog.Logger

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[string] // nil while Run does not run
	said  map[string]string                            // by key: the error that was logged last
}

// NewLoop returns a loop that reconciles up to workers keys at a time, for a process without an election. Loops.Loop
// makes those of a leader.
func NewLoop(name string, workers int, f Func, log *slog.Logger) *Loop {
	return &Loop{name: name, workers: workers, f: f, log: log.With("loop", name)}
}

// Begin has each run begin with the keys that f returns then, in any order, a key more than once if need be. It must
// not be called while Run runs.
func (l *Loop) Begin(f func() []string) { l.keys = append(l.keys, f) }

// Add has keys reconciled soon. Many calls before that count as one; a call while a key is reconciled leads to another
// time. While Run does not run, Add does nothing: a standby process would collect the keys of all objects that come
// and go.
func (l *Loop) Add(keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return
	}
	for _, key := range keys {
		l.queue.AddAfter(key, l.gather)
	}
}

// Gather has keys wait for d after they were added, so that several changes that come together lead to one call. It
// must not be called while Run runs.
func (l *Loop) Gather(d time.Duration) { l.gather = d }

// runs reports whether Add has an effect.
func (l *Loop) runs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue != nil
}

// Run reconciles all keys that there are, and then those that are added, until ctx ends. It waits for the calls under
// way. It may be called again afterwards, such as when this process leads again.
func (l *Loop) Run(ctx context.Context) error {
	queue, err := l.start()
	if err != nil {
		return err
	}
	defer l.stop()
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for _, keys := range l.keys { // the queue takes keys already, so no change between the two is missed
		for _, key := range keys() {
			queue.Add(key)
		}
	}
	var group sync.WaitGroup
	for range l.workers {
		group.Go(func() {
			for key, end := queue.Get(); !end; key, end = queue.Get() {
				l.look(ctx, queue, key)
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
	l.said = map[string]string{}
	return l.queue, nil
}

func (l *Loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue, l.said = nil, nil
}

// look calls the Func once and arranges for the next time.
func (l *Loop) look(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], key string) {
	defer queue.Done(key)
	if ctx.Err() != nil {
		return
	}
	wake, err := l.f(ctx, key)
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

// report logs an error, unless it is the one that was logged last for the key.
func (l *Loop) report(ctx context.Context, key string, err error) {
	if ctx.Err() != nil {
		return // the end of the term, not of the thing
	}
	if errors.Is(err, store.ErrConflict) {
		l.log.DebugContext(ctx, "changed meanwhile", "key", key, "error", err)
		return
	}
	l.mu.Lock()
	known := l.said[key] == err.Error()
	l.said[key] = err.Error()
	l.mu.Unlock()
	if !known {
		l.log.WarnContext(ctx, "reconcile", "key", key, "error", err)
	}
}

func (l *Loop) settled(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.said, key)
}
