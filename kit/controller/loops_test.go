package controller_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// reconciled notes the keys of a loop, in order.
type reconciled struct {
	mu   sync.Mutex
	keys []string
}

func (r *reconciled) reconcile(_ context.Context, key string) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = append(r.keys, key)
	return time.Time{}, nil
}

// want compares the keys reconciled so far, each once, and forgets them.
func (r *reconciled) want(t *testing.T, when string, keys ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.keys)
	if diff := cmp.Diff(keys, slices.Compact(r.keys)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
	r.keys = nil
}

func node(name string) *nodev1.Node { return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}} }

func drainOf(node string) *nodev1.Drain {
	return &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "of-" + node}, Spec: &nodev1.DrainSpec{NodeName: node}}
}

func nodeOfDrain(ch resource.Change[*nodev1.Drain]) []string {
	return []string{ch.Object.GetSpec().GetNodeName()}
}

// TestALoopBeginsOnceAllThatItFollowsIsKnown has one loop follow two kinds, of which one is not known yet, and another
// loop only the one that is.
func TestALoopBeginsOnceAllThatItFollowsIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, drains := resource.NewCache[*nodev1.Node](), resource.NewCache[*nodev1.Drain]()
		nodes.Replace([]*nodev1.Node{node("a"), node("b")}, 1)
		var both, one reconciled
		loops := controller.New(slog.New(slog.DiscardHandler))
		l := loops.Loop("both", 1, both.reconcile)
		controller.For(l, nodes)
		controller.Watches(l, drains, nodeOfDrain)
		controller.For(loops.Loop("one", 1, one.reconcile), nodes)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- loops.Lead(ctx) }()

		one.want(t, "the nodes are known", "a", "b")
		both.want(t, "the drains are not")
		drains.Replace([]*nodev1.Drain{drainOf("gone")}, 2)
		both.want(t, "all is known", "a", "b", "gone")

		drains.Step(3, []resource.Change[*nodev1.Drain]{{Key: object.Key{Name: "of-b"}, Object: drainOf("b")}})
		both.want(t, "a drain of b", "b")
		one.want(t, "it does not follow drains")

		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Lead returned %v after its end", err)
		}
		nodes.Step(4, []resource.Change[*nodev1.Node]{{Key: object.Key{Name: "c"}, Object: node("c")}})
		one.want(t, "it does not lead")
	})
}

// behind is a table that cannot say at first what was written before.
type behind struct {
	*resource.Cache[*nodev1.Node]
	asked, fails int
}

func (b *behind) CatchUp(context.Context) error {
	if b.asked++; b.asked <= b.fails {
		return errors.New("etcd does not answer")
	}
	return nil
}

func TestALoopWaitsForWhatTheFormerLeaderWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := &behind{Cache: resource.NewCache[*nodev1.Node](), fails: 5}
		nodes.Replace([]*nodev1.Node{node("a")}, 1)
		var seen reconciled
		loops := controller.New(slog.New(slog.DiscardHandler))
		controller.For(loops.Loop("test", 1, seen.reconcile), nodes)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- loops.Lead(ctx) }()
		seen.want(t, "etcd does not answer")
		time.Sleep(time.Minute)
		seen.want(t, "etcd answers", "a")
		if nodes.asked != 6 {
			t.Errorf("asked %d times, want until it answered: 6", nodes.asked)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Lead returned %v after its end", err)
		}
	})
}

// A leader that waits for a service must say so: it does nothing until then.
func TestALoopSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		loops := controller.New(slog.New(slog.NewTextHandler(&out, nil)))
		var seen reconciled
		controller.For(loops.Loop("test", 1, seen.reconcile), resource.NewCache[*nodev1.Node]())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- loops.Lead(ctx) }()
		time.Sleep(5*time.Minute + 30*time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Lead returned %v after its end", err)
		}
		if n := strings.Count(out.String(), "loop=test error=\"nodes are not read yet"); n != 5 {
			t.Errorf("said %d times in more than five minutes:\n%s", n, out.String())
		}
	})
}

// TestLoopsEndWithWhatFailsBesideThem proves that a leader does not go on with a part of itself.
func TestLoopsEndWithWhatFailsBesideThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen reconciled
		loops := controller.New(slog.New(slog.DiscardHandler))
		loops.Loop("test", 1, seen.reconcile)
		failed := errors.New("failed")
		if err := loops.Lead(t.Context(), func(context.Context) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("Lead returned %v, want what failed", err)
		}
	})
}
