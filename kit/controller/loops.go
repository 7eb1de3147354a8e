package controller

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// Loops are the loops of one controller, which run together while this process leads. Make them with New, and add all
// loops and what they watch before Lead.
type Loops struct {
	log   *slog.Logger
	loops []*Loop
}

// New returns Loops without any loop.
func New(log *slog.Logger) *Loops { return &Loops{log: log} }

// Loop adds a loop that reconciles up to workers keys concurrently. For and Watches declare its sources.
func (g *Loops) Loop(name string, workers int, f Func) *Loop {
	l := NewLoop(name, workers, f, g.log)
	g.loops = append(g.loops, l)
	return l
}

// Lead runs the loops until ctx ends. Each begins as soon as its sources are synced: a service that is unavailable
// delays only the loops that need its objects. Tables first catch up with etcd, and informers with their service, so
// that a decision of the previous leader is not made again from an older state. The functions beside run concurrently
// with the loops; the first error ends all.
func (g *Loops) Lead(ctx context.Context, beside ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range g.loops {
		group.Go(func() error {
			if l.caughtUp(ctx) != nil {
				return nil // ctx ended
			}
			return l.Run(ctx)
		})
	}
	for _, f := range beside {
		group.Go(func() error { return f(ctx) })
	}
	return group.Wait()
}

// Source is a copy of the objects of a kind: a table of the service, or an informer for a kind of another service.
type Source[T object.Object] interface {
	Synced
	Objects() iter.Seq[T]
	Subscribe(f func(resource.Change[T]))
}

// For has a loop reconcile the objects of a kind: all of them when it begins, and then each that changes. Its keys have
// the format of object.Key.String.
func For[T object.Object](l *Loop, s Source[T]) {
	Watches(l, s, func(ch resource.Change[T]) []string { return []string{ch.Key.String()} })
}

// Watches has a loop reconcile the keys that concerned returns for each change of an object, and when the loop begins
// those of every object, as if it had just been created. concerned must return immediately; it may be called
// concurrently.
func Watches[T object.Object](l *Loop, s Source[T], concerned func(resource.Change[T]) []string) {
	s.Subscribe(func(ch resource.Change[T]) {
		if l.runs() {
			l.Add(concerned(ch)...)
		}
	})
	l.keys = append(l.keys, func() []string {
		var out []string
		for o := range s.Objects() {
			out = append(out, concerned(resource.Change[T]{Key: object.KeyOf(o), Object: o})...)
		}
		return out
	})
	l.Needs(s)
}

// Synced is a copy of the objects of a kind that is filled after its start.
type Synced interface {
	WaitSynced(ctx context.Context) error
}

// Needs makes the loop wait for copies that it reads before it begins.
func (l *Loop) Needs(copies ...Synced) { l.needs = append(l.needs, copies...) }

// reportWait is how often the log names what a loop waits for.
const reportWait = time.Minute

// caughtUp waits until all that the loop needs is known, as it was at the time of the call or later, or ctx ends.
func (l *Loop) caughtUp(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range l.needs {
		group.Go(func() error {
			if err := l.await(ctx, c.WaitSynced); err != nil {
				return err
			}
			if c, ok := c.(interface {
				CatchUp(ctx context.Context) error
			}); ok {
				return l.await(ctx, c.CatchUp)
			}
			return nil
		})
	}
	return group.Wait()
}

// await calls wait until it succeeds or ctx ends.
func (l *Loop) await(ctx context.Context, wait func(context.Context) error) error {
	for again := backoff.New(firstBackOff, longestCatchUp); ; {
		err := within(ctx, reportWait, wait)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.log.WarnContext(ctx, "sources not synced yet", "error", err)
		if !again.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f(ctx)
}
