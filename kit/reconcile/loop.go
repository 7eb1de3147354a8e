// Package reconcile runs what controllers are made of: a loop that looks at one thing at a time, by name, again and
// again, and an election that lets one process of a service do so. What a look finds and does is left to others.
package reconcile

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
	soonest        = 10 * time.Millisecond // so that a wake time in the past, given each time, cannot take a whole core
)

// Func moves one thing closer to what it should be. It returns when to look again even if nothing changes; zero means
// never. After an error it is called again, later each time. It is never called twice at once with the same key.
type Func func(ctx context.Context, key string) (time.Time, error)

// Earliest returns the earlier one of two times at which to look again; zero stands for never.
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
	keys    func() []string
	f       Func
	log     *slog.Logger

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[string] // nil while Run does not run
	said  map[string]string                            // by key: the error that was logged last
}

// NewLoop returns a loop that looks at up to workers keys at a time. Run begins with a look at each of keys, which
// returns all keys that there are, in any order; nil means none.
func NewLoop(name string, workers int, keys func() []string, f Func, log *slog.Logger) *Loop {
	return &Loop{name: name, workers: workers, keys: keys, f: f, log: log.With("loop", name)}
}

// Add asks for a look at key soon. Many calls before the look count as one; a call during the look leads to another.
// While Run does not run, Add does nothing: a process that stands by for hours would collect the keys of all objects
// that come and go.
func (l *Loop) Add(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil {
		l.queue.Add(key)
	}
}

// Run looks at all keys that there are, and then at those that are added, until ctx ends. It waits for the looks under
// way. It may be called again afterwards, such as in the next term of a leader.
func (l *Loop) Run(ctx context.Context) error {
	queue, err := l.start()
	if err != nil {
		return err
	}
	defer l.stop()
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	if l.keys != nil {
		for _, key := range l.keys() { // the queue takes keys already, so no change between the two is missed
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
