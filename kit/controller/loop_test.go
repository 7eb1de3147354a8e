package controller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
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

// run starts the loop inside a bubble, waits until it has nothing to do, and returns what stops it.
func run(t *testing.T, l *controller.Loop) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
}

// looks is a Func that notes when it was called.
type looks struct {
	mu    sync.Mutex
	start time.Time
	at    []time.Duration
}

func (l *looks) note() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Since(l.start))
	return len(l.at)
}

func TestAPacedKeyWhoseCallsTakeLongIsCalledRarely(t *testing.T) {
	for _, tt := range []struct {
		takes time.Duration
		most  int // calls in two seconds of changes
	}{{0, 2001}, {10 * time.Millisecond, 26}, {100 * time.Millisecond, 11}} {
		synctest.Test(t, func(t *testing.T) {
			seen := looks{start: time.Now()}
			l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
				seen.note()
				time.Sleep(tt.takes)
				return time.Time{}, nil
			}, slog.New(slog.DiscardHandler))
			l.Pace()
			stop := run(t, l)
			for range 2000 {
				l.Add("a")
				time.Sleep(time.Millisecond)
			}
			last := time.Since(seen.start)
			time.Sleep(time.Second)
			stop()
			if n := len(seen.at); n > tt.most || n < tt.most/2 {
				t.Errorf("%d calls of %v, want at most %d", n, tt.takes, tt.most)
			}
			if at := seen.at[len(seen.at)-1]; at < last-time.Millisecond {
				t.Errorf("the last call began after %v, before the last change after %v", at, last)
			}
		})
	}
}

func TestAFailedLookIsRepeatedLaterEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := looks{start: time.Now()}
		l := controller.NewLoop("test", 2, func(context.Context, string) (time.Time, error) {
			if seen.note() < 5 {
				return time.Time{}, errors.New("not yet")
			}
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(time.Hour)
		stop()
		want := []time.Duration{
			0, 50 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond,
			750 * time.Millisecond,
		}
		if diff := cmp.Diff(want, seen.at); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTheBackOffEndsAtThirtySecondsAndIsForgottenAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := looks{start: time.Now()}
		l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
			if n := seen.note(); n == 20 || n > 21 {
				return time.Time{}, nil
			}
			return time.Time{}, errors.New("not yet")
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(time.Hour)
		l.Add("a")
		time.Sleep(time.Hour)
		stop()
		if len(seen.at) != 22 {
			t.Fatalf("%d looks, want 22", len(seen.at))
		}
		if gap := seen.at[19] - seen.at[18]; gap != 30*time.Second {
			t.Errorf("last wait = %v, want 30s", gap)
		}
		if gap := seen.at[21] - seen.at[20]; gap != 50*time.Millisecond {
			t.Errorf("first wait after a success = %v, want 50ms", gap)
		}
	})
}

func TestALookHappensAgainWhenItAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := looks{start: time.Now()}
		l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
			if seen.note() == 1 {
				return time.Now().Add(10 * time.Minute), nil
			}
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(time.Hour)
		stop()
		if diff := cmp.Diff([]time.Duration{0, 10 * time.Minute}, seen.at); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAWakeTimeInThePastDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := looks{start: time.Now()}
		l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
			seen.note()
			return time.Unix(1, 0), nil
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(time.Second)
		stop()
		if len(seen.at) > 101 {
			t.Errorf("%d looks in a second", len(seen.at))
		}
	})
}

func TestAKeyIsNeverLookedAtTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, adds = 3, 100
		var mu sync.Mutex
		busy, most, total := map[string]int{}, 0, map[string]int{}
		l := controller.NewLoop("test", 8, func(_ context.Context, key string) (time.Time, error) {
			mu.Lock()
			busy[key]++
			most = max(most, busy[key])
			total[key]++
			mu.Unlock()
			time.Sleep(7 * time.Millisecond)
			mu.Lock()
			busy[key]--
			mu.Unlock()
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		for range adds {
			for k := range keys {
				l.Add(fmt.Sprint(k))
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		stop()
		if most != 1 || len(total) != keys {
			t.Errorf("%d concurrent calls for a key, %d keys", most, len(total))
		}
	})
}

func TestKeysAddedDuringALookAreLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := looks{start: time.Now()}
		l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
			seen.note()
			time.Sleep(time.Second)
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(500 * time.Millisecond)
		l.Add("a")
		time.Sleep(time.Hour)
		stop()
		if diff := cmp.Diff([]time.Duration{0, time.Second}, seen.at); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEachTermBeginsWithAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		got := map[string]int{}
		keys := []string{"failed", "later", "settled"}
		l := controller.NewLoop("test", 1, func(_ context.Context, key string) (time.Time, error) {
			mu.Lock()
			defer mu.Unlock()
			got[key]++
			switch key {
			case "failed":
				return time.Time{}, errors.New("not yet")
			case "later":
				return time.Now().Add(time.Hour), nil
			default:
				return time.Time{}, nil
			}
		}, slog.New(slog.DiscardHandler))
		l.Begin(func() []string { return keys })
		for range 2 {
			clear(got)
			stop := run(t, l)
			stop()
			if diff := cmp.Diff(map[string]int{"failed": 1, "later": 1, "settled": 1}, got); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// TestAStandbyLoopDoesNotGrow has 100,000 objects come and go while the loop does not run, and then has it lead, while
// objects still change.
func TestAStandbyLoopDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects, living = 100_000, 1000
		cache := resource.NewCache[*nodev1.Node]()
		revision := int64(0)
		step := func(name string, deleted bool) {
			revision++
			o := &nodev1.Node{Metadata: &metav1.ObjectMeta{
				Name: name, Namespace: "default",
				ResourceVersion: resource.FormatRevision(revision),
			}}
			cache.Step(revision, []resource.Change[*nodev1.Node]{{Key: object.KeyOf(o), Object: o, Deleted: deleted}})
		}
		for i := range living {
			step(fmt.Sprintf("living-%d", i), false)
		}
		listed := sync.OnceFunc(func() { // the latest moment at which a change can be missed
			step("living-1", false)
			step("living-2", true)
			step("new", false)
		})
		var mu sync.Mutex
		looks, seen := map[string]int{}, map[string]string{}
		l := controller.NewLoop("test", 4, func(_ context.Context, key string) (time.Time, error) {
			k := object.ParseKey(key)
			o, _ := cache.Lookup(k.Namespace, k.Name)
			mu.Lock()
			defer mu.Unlock()
			looks[k.Name]++
			seen[k.Name] = o.GetMetadata().GetResourceVersion()
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		controller.For(l, lateNodes{cache, listed})

		come := func(n int) {
			for i := range n {
				name := fmt.Sprintf("short-lived-with-a-name-of-some-length-%d", i)
				step(name, false)
				step(name, true)
			}
		}
		come(10_000) // fills the cache's ring of recent changes
		before := heap()
		come(objects)
		if grown := heap() - before; grown > objects*20 {
			t.Errorf("%d objects that came and went left %d bytes behind", objects, grown)
		}

		stop := run(t, l)
		stop()
		for name, n := range looks {
			o, ok := cache.Lookup("default", name)
			if n != 1 || seen[name] != o.GetMetadata().GetResourceVersion() {
				t.Errorf("%s: %d looks, the last at revision %q of %q (%t)", name, n, seen[name],
					o.GetMetadata().GetResourceVersion(), ok)
			}
		}
		if len(looks) != living+1 {
			t.Errorf("%d keys were reconciled, want %d", len(looks), living+1)
		}
	})
}

// lateNodes calls after once its objects are listed.
type lateNodes struct {
	*resource.Cache[*nodev1.Node]
	after func()
}

func (n lateNodes) Objects() iter.Seq[*nodev1.Node] {
	listed := slices.Collect(n.Cache.Objects())
	n.after()
	return slices.Values(listed)
}

// heap returns how many bytes are in use once garbage is collected.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAnErrorIsLoggedOncePerText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		n := 0
		l := controller.NewLoop("test", 1, func(context.Context, string) (time.Time, error) {
			n++
			return time.Time{}, fmt.Errorf("reason %d", n/10)
		}, slog.New(slog.NewTextHandler(&out, nil)))
		stop := run(t, l)
		l.Add("a")
		time.Sleep(5 * time.Minute)
		stop()
		if lines, want := strings.Count(out.String(), "\n"), n/10+1; n < 15 || lines != want {
			t.Errorf("%d lines for %d errors, want %d", lines, n, want)
		}
	})
}
