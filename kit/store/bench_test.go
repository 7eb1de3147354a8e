package store_test

import (
	"fmt"
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
