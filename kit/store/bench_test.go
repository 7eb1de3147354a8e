package store_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1, 16, 100} {
		b.Run(fmt.Sprintf("records=%d", size), func(b *testing.B) {
			s := etcdtest.Store(b)
			value := make([]byte, 1024)
			var revision int64
			for b.Loop() {
				ops := make([]store.Op, 0, size)
				for i := range size {
					ops = append(ops, store.Put(fmt.Sprint(i), value, revision))
				}
				revision = commit(b, s, ops...)
			}
		})
	}
}

// BenchmarkWatch measures from the call of Commit to the event at a watcher.
func BenchmarkWatch(b *testing.B) {
	s := etcdtest.Store(b)
	w := s.Watch(b.Context(), "", commit(b, s, store.Put("start", nil, 0)))
	value := make([]byte, 1024)
	for b.Loop() {
		commit(b, s, store.Put("a", value, store.Whatever))
		nextChange(b, w)
	}
}

// BenchmarkCreateConcurrently measures single creations of 64 callers at once: such as share transactions, and such as
// do not, since they also depend on another record.
func BenchmarkCreateConcurrently(b *testing.B) {
	for name, more := range map[string][]store.Op{"shared": nil, "alone": {store.Check("none", 0)}} {
		b.Run(name, func(b *testing.B) {
			s := etcdtest.Store(b)
			value := make([]byte, 1024)
			var n atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					ops := append([]store.Op{store.Put(fmt.Sprint(n.Add(1)), value, 0)}, more...)
					if _, err := s.Commit(b.Context(), ops...); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
