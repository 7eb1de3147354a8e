package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func fill(t testing.TB, s *store.Store, n int) (last int64) {
	t.Helper()
	for i := 0; i < n; i += 100 {
		var ops []store.Op
		for j := i; j < min(n, i+100); j++ {
			ops = append(ops, store.Put(fmt.Sprintf("things/%05d", j), []byte("v"), 0))
		}
		last = commit(t, s, ops...)
	}
	return last
}

func TestPagesShowOneRevision(t *testing.T) {
	s := etcdtest.Store(t)
	commit(t, s, store.Put("other/x", nil, 0), store.Put("thingsandmore", nil, 0))
	fill(t, s, 250)
	var keys []string
	o := store.ListOptions{Limit: 100}
	for _, remaining := range []int64{150, 50, 0} {
		page, err := s.List(t.Context(), "things/", o)
		if err != nil {
			t.Fatal(err)
		}
		if page.Remaining != remaining || page.More != (remaining > 0) {
			t.Errorf("remaining = %d, more = %v, want %d", page.Remaining, page.More, remaining)
		}
		for _, r := range page.Records {
			keys = append(keys, r.Key)
		}
		o.After, o.Revision = keys[len(keys)-1], page.Revision
		// Neither is part of a list that began before.
		commit(t, s, store.Delete("things/00249", store.Whatever), store.Put(fmt.Sprintf("things/00%03dx", len(keys)), nil,
			0))
	}
	if len(keys) != 250 || keys[0] != "things/00000" || keys[249] != "things/00249" {
		t.Errorf("%d keys, from %s to %s", len(keys), keys[0], keys[len(keys)-1])
	}
}

func TestAListWithoutLimitIsWhole(t *testing.T) {
	s := etcdtest.Store(t)
	last := fill(t, s, 2345)
	page, err := s.List(t.Context(), "things/", store.ListOptions{})
	if err != nil || len(page.Records) != 2345 || page.More || page.Remaining != 0 || page.Revision < last {
		t.Errorf("List = %d records, more %v, remaining %d, revision %d, %v", len(page.Records), page.More, page.Remaining,
			page.Revision, err)
	}
}

func TestAnEmptyListHasARevision(t *testing.T) {
	s := etcdtest.Store(t)
	page, err := s.List(t.Context(), "nothing/", store.ListOptions{})
	if err != nil || len(page.Records) != 0 || page.Revision == 0 {
		t.Errorf("List = %+v, %v", page, err)
	}
}

func TestHistoryThatIsGoneIsCompacted(t *testing.T) {
	client := etcdtest.Client(t)
	s := store.New(client, etcdtest.Prefix(t))
	first := commit(t, s, store.Put("a", []byte("1"), 0))
	last := commit(t, s, store.Put("a", []byte("2"), first))
	if _, err := client.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), "", store.ListOptions{Revision: first}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("List = %v, want ErrCompacted", err)
	}
	w := s.Watch(t.Context(), "", first-1)
	for range w.Batches() {
		t.Error("a watch began although its first change is gone")
	}
	if !errors.Is(w.Err(), store.ErrCompacted) {
		t.Errorf("Err = %v, want ErrCompacted", w.Err())
	}
}

func TestBytesThatAreNoEnvelopeAreAnError(t *testing.T) {
	client := etcdtest.Client(t)
	s := store.New(client, etcdtest.Prefix(t))
	if _, err := client.Put(t.Context(), s.Prefix()+"alien", "alien"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "alien"); err == nil {
		t.Error("Get took foreign bytes for a record")
	}
}
