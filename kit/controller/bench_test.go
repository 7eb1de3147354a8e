package controller_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/controller"
)

// BenchmarkDeadlines has 100,000 keys of a loop wait for times of their own within ten seconds, and measures the memory
// of each and how late they are called.
func BenchmarkDeadlines(b *testing.B) {
	const keys, begin, within = 100_000, 3 * time.Second, 10 * time.Second
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("node-", i)
	}
	for b.Loop() {
		due := make(map[string]time.Time, keys)
		late := make([]time.Duration, 0, keys)
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		from := time.Now().Add(begin)
		for i, name := range names {
			due[name] = from.Add(within * time.Duration(i) / keys)
		}
		ctx, cancel := context.WithCancel(b.Context())
		var mu sync.Mutex
		var before, after uint64
		scheduled := 0
		l := controller.NewLoop("bench", 1, func(_ context.Context, key string) (time.Time, error) {
			mu.Lock()
			defer mu.Unlock()
			if at := due[key]; !at.IsZero() {
				due[key] = time.Time{}
				if scheduled++; scheduled == keys {
					after = heap()
				}
				return at, nil
			}
			var i int
			if _, err := fmt.Sscanf(key, "node-%d", &i); err != nil {
				b.Error(err)
			}
			if late = append(late, time.Since(from.Add(within*time.Duration(i)/keys))); len(late) == keys {
				cancel()
			}
			return time.Time{}, nil
		}, slog.New(slog.DiscardHandler))
		l.Begin(func() []string { return names })
		before = heap()
		if err := l.Run(ctx); err != nil {
			b.Fatal(err)
		}
		slices.Sort(late)
		b.ReportMetric(float64(int64(after)-int64(before))/keys, "B/deadline")
		b.ReportMetric(float64(late[keys/2].Microseconds())/1000, "p50-late-ms")
		b.ReportMetric(float64(late[keys*99/100].Microseconds())/1000, "p99-late-ms")
	}
}
