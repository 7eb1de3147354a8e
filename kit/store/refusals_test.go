package store_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

// TestAWatchThatEtcdRefusesIsCountedAndLoggedOnce takes the right to read away from a user whose watch is open, and
// gives it back.
func TestAWatchThatEtcdRefusesIsCountedAndLoggedOnce(t *testing.T) {
	const prefix = "/watched/"
	root, user := etcdtest.Users(t, etcdtest.StartMembers(t, 1), prefix)
	var out bytes.Buffer
	s := store.New(user, prefix, store.WithLog(slog.New(slog.NewTextHandler(&out, nil))))
	at := commit(t, s, store.Put("a", nil, 0))
	if _, err := root.RoleRevokePermission(t.Context(), "user", prefix, clientv3.GetPrefixRangeEnd(prefix)); err != nil {
		t.Fatal(err)
	}
	const tries = 5
	for range tries {
		w := s.Watch(t.Context(), "", at)
		for b := range w.Batches() {
			t.Errorf("a refused watch delivers %+v", b)
		}
		if err := w.Err(); err == nil || errors.Is(err, store.ErrCompacted) {
			t.Errorf("Err = %v", err)
		}
	}
	if n, lines := s.RefusedWatches(), strings.Count(out.String(), "\n"); n != tries || lines != 1 {
		t.Errorf("%d refusals are counted and %d logged, want %d and 1: %s", n, lines, tries, out.String())
	}
	if _, err := root.RoleGrantPermission(t.Context(), "user", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
		t.Fatal(err)
	}
	w := s.Watch(t.Context(), "", at)
	next := commit(t, s, store.Put("b", nil, 0))
	if b := nextChange(t, w); b.Revision != next {
		t.Errorf("batch %+v, want revision %d", b, next)
	}
	// A revision that is compacted is the reader's business: it lists again.
	if _, err := root.Compact(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	behind := s.Watch(t.Context(), "", at-1)
	for range behind.Batches() {
	}
	if n := s.RefusedWatches(); !errors.Is(behind.Err(), store.ErrCompacted) || n != tries {
		t.Errorf("after a compaction: %v, %d refusals", behind.Err(), n)
	}
}

func TestARefusalThatGoesOnIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var r store.Refusals
		for i := range 600 {
			r.Note(context.Background(), slog.New(slog.NewTextHandler(&out, nil)), "/a/", errors.New(strings.Repeat("x", i%7)))
			time.Sleep(time.Second)
		}
		if lines := strings.Count(out.String(), "\n"); lines != 10 || r.Count() != 600 {
			t.Errorf("%d lines of %d refusals in ten minutes", lines, r.Count())
		}
	})
}
