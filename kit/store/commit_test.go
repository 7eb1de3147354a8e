package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func commit(t testing.TB, s *store.Store, ops ...store.Op) int64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func get(t testing.TB, s *store.Store, key string) store.Record {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRecordsOfABatchShareTheRevision(t *testing.T) {
	s := etcdtest.Store(t)
	before := commit(t, s, store.Put("old", []byte("1"), 0))
	revision := commit(t, s, store.Put("a", []byte("A"), 0), store.Put("b", []byte("B"), 0),
		store.Put("old", []byte("2"), before))
	want := []store.Record{
		{Key: "a", Value: []byte("A"), Revision: revision, CreateRevision: revision},
		{Key: "b", Value: []byte("B"), Revision: revision, CreateRevision: revision},
		{Key: "old", Value: []byte("2"), Revision: revision, CreateRevision: before},
	}
	page, err := s.List(t.Context(), "", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, page.Records); diff != "" {
		t.Error(diff)
	}
}

func TestCommitRefusesWhatDoesNotHoldAndChangesNothing(t *testing.T) {
	s := etcdtest.Store(t)
	at := commit(t, s, store.Put("there", []byte("v"), 0))
	cases := map[string]struct {
		op   store.Op
		want error
	}{
		"a new record that is already there":           {store.Put("there", nil, 0), store.ErrExists},
		"a change of a record that changed":            {store.Put("there", nil, at-1), store.ErrConflict},
		"a change of a record that is gone":            {store.Put("gone", nil, at), store.ErrNotFound},
		"a deletion of a record that changed":          {store.Delete("there", at-1), store.ErrConflict},
		"a deletion of a record that is gone":          {store.Delete("gone", at), store.ErrNotFound},
		"a check of a record that changed":             {store.Check("there", at-1), store.ErrConflict},
		"a check of a record that is gone":             {store.Check("gone", at), store.ErrNotFound},
		"a check that nothing is there where there is": {store.Check("there", 0), store.ErrExists},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := s.Commit(t.Context(), store.Put("new", []byte("n"), 0), c.op)
			var op *store.OpError
			if !errors.Is(err, c.want) || !errors.As(err, &op) || op.Index != 1 {
				t.Fatalf("Commit = %v, want %v of operation 1", err, c.want)
			}
			var want store.Record
			if op.Key == "there" {
				want = get(t, s, "there")
			}
			if diff := cmp.Diff(want, op.Current); diff != "" {
				t.Error(diff)
			}
			if _, err := s.Get(t.Context(), "new"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Get = %v after a refused Commit, want ErrNotFound", err)
			}
		})
	}
}

func TestCommitNamesAllOperationsThatDoNotHold(t *testing.T) {
	s := etcdtest.Store(t)
	at := commit(t, s, store.Put("a", nil, 0), store.Put("b", nil, 0))
	_, err := s.Commit(t.Context(), store.Put("new", nil, 0), store.Put("a", nil, 0), store.Check("b", at),
		store.Delete("gone", at))
	var op *store.OpError
	if !errors.As(err, &op) {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{1, 3}, op.Refused); diff != "" || op.Index != 1 {
		t.Errorf("first %d, all:\n%s", op.Index, diff)
	}
}

func TestOperationsThatDependOnNothingAlwaysSucceed(t *testing.T) {
	s := etcdtest.Store(t)
	commit(t, s, store.Put("a", []byte("1"), store.Whatever))
	commit(t, s, store.Put("a", []byte("2"), store.Whatever), store.Delete("absent", store.Whatever))
	if got := get(t, s, "a"); string(got.Value) != "2" {
		t.Errorf("value = %q, want 2", got.Value)
	}
	commit(t, s, store.Delete("a", store.Whatever), store.Delete("absent", store.Whatever))
	commit(t, s, store.Delete("a", store.Whatever))
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get = %v, want ErrNotFound", err)
	}
}

func TestSenselessOperationsAreRefused(t *testing.T) {
	s := etcdtest.Store(t)
	for name, ops := range map[string][]store.Op{
		"none at all":                   nil,
		"no key":                        {store.Put("", nil, 0)},
		"a deletion of nothing":         {store.Delete("a", 0)},
		"a check of nothing":            {store.Check("a", store.Whatever)},
		"a revision that cannot be":     {store.Put("a", nil, -2)},
		"two changes of the same key":   {store.Put("a", nil, 0), store.Put("a", nil, 0)},
		"more than one transaction can": make129(),
	} {
		if _, err := s.Commit(t.Context(), ops...); err == nil {
			t.Errorf("%s: Commit succeeded", name)
		}
	}
}

func make129() []store.Op {
	var ops []store.Op
	for i := range 129 {
		ops = append(ops, store.Put(strconv.Itoa(i), nil, 0))
	}
	return ops
}

// lost is a run of answers to commits that do not come back; a write of another client is made once, after the first of
// them.
func lost(n int64, meanwhile func()) answers {
	var count atomic.Int64
	return func(txn *etcdserverpb.TxnRequest) bool {
		if len(txn.Compare) == 0 {
			return false // it makes the writer key
		}
		i := count.Add(1)
		if i == 1 && meanwhile != nil {
			meanwhile()
		}
		return i <= n
	}
}

func TestALostAnswerIsNeitherAConflictNorASecondWrite(t *testing.T) {
	cases := map[string]struct {
		ops       func(at int64) []store.Op
		meanwhile func(s *store.Store) []store.Op // what another client commits before the next try
		overtaken bool
	}{
		"a creation": {ops: func(int64) []store.Op { return []store.Op{store.Put("new", []byte("mine"), 0)} }},
		"a change":   {ops: func(at int64) []store.Op { return []store.Op{store.Put("old", []byte("mine"), at)} }},
		"a put that depends on nothing": {ops: func(int64) []store.Op {
			return []store.Op{store.Put("old", []byte("mine"), store.Whatever)}
		}},
		"a batch": {ops: func(at int64) []store.Op {
			return []store.Op{
				store.Check("check", at), store.Delete("old", at), store.Put("new", []byte("mine"), 0),
				store.Put("new2", []byte("mine"), 0),
			}
		}},
		"a creation that others change concurrently": {
			ops:       func(int64) []store.Op { return []store.Op{store.Put("new", []byte("mine"), 0)} },
			meanwhile: func(*store.Store) []store.Op { return []store.Op{store.Put("new", []byte("theirs"), store.Whatever)} },
			overtaken: true,
		},
		"a creation that others delete concurrently": {
			ops: func(int64) []store.Op {
				return []store.Op{store.Put("new", []byte("mine"), 0), store.Put("new2", nil, 0)}
			},
			meanwhile: func(*store.Store) []store.Op { return []store.Op{store.Delete("new", store.Whatever)} },
			overtaken: true,
		},
		"a creation of one record that others delete concurrently": {
			ops:       func(int64) []store.Op { return []store.Op{store.Put("new", []byte("mine"), 0)} },
			meanwhile: func(*store.Store) []store.Op { return []store.Op{store.Delete("new", store.Whatever)} },
			overtaken: true,
		},
		"a put of what was absent that others delete concurrently": {
			ops:       func(int64) []store.Op { return []store.Op{store.Put("new", []byte("mine"), store.Whatever)} },
			meanwhile: func(*store.Store) []store.Op { return []store.Op{store.Delete("new", store.Whatever)} },
			overtaken: true,
		},
		"a put that depends on nothing and that others change concurrently": {
			ops:       func(int64) []store.Op { return []store.Op{store.Put("old", []byte("mine"), store.Whatever)} },
			meanwhile: func(*store.Store) []store.Op { return []store.Op{store.Put("old", []byte("theirs"), store.Whatever)} },
			overtaken: true,
		},
	}
	for name, c := range cases {
		for _, losses := range []int64{1, 3} {
			t.Run(fmt.Sprintf("%s, %d losses", name, losses), func(t *testing.T) {
				plain := etcdtest.Store(t)
				at := commit(t, plain, store.Put("old", []byte("0"), 0), store.Put("check", nil, 0))
				w := plain.Watch(t.Context(), "", at)
				flaky := store.New(clientThatLoses(t, lost(losses, func() {
					if c.meanwhile != nil {
						commit(t, plain, c.meanwhile(plain)...)
					}
				})), plain.Prefix())
				revision, err := flaky.Commit(t.Context(), c.ops(at)...)
				if err != nil {
					t.Fatal(err)
				}
				if b := nextChange(t, w); b.Revision != revision {
					t.Errorf("Commit = %d, but it was carried out at %d", revision, b.Revision)
				}
				if c.overtaken {
					nextChange(t, w)
				}
				end := commit(t, plain, store.Put("end", nil, 0))
				if b := nextChange(t, w); b.Revision != end {
					t.Errorf("written again at %d: %v", b.Revision, b.Events)
				}
			})
		}
	}
}

func TestALostAnswerToADeletionCountsAsDone(t *testing.T) {
	for name, again := range map[string]bool{"gone": false, "created again by others": true} {
		t.Run(name, func(t *testing.T) {
			plain := etcdtest.Store(t)
			at := commit(t, plain, store.Put("a", nil, 0), store.Put("b", nil, 0))
			flaky := store.New(clientThatLoses(t, lost(2, func() {
				if again {
					commit(t, plain, store.Put("a", []byte("theirs"), 0))
				}
			})), plain.Prefix())
			if _, err := flaky.Commit(t.Context(), store.Delete("a", at), store.Delete("b", at)); err != nil {
				t.Fatal(err)
			}
			if _, err := plain.Get(t.Context(), "a"); again != (err == nil) {
				t.Errorf("Get = %v, but created again: %v", err, again)
			}
		})
	}
}

// The attempt of a deletion is lost, and then the writer key moves, as it does when other commits of the process are in
// doubt. A record that is newer than all that the store has seen was not made again for that reason.
func TestADeletionThatWasNeverCarriedOutIsNotDone(t *testing.T) {
	var a, b int64 // the revisions of both records
	cases := map[string]struct {
		ops    func() []store.Op
		drop   int                      // the attempt that is lost
		before func(plain *store.Store) // what others do before the first attempt
		want   error
	}{
		"at a revision": {
			ops:  func() []store.Op { return []store.Op{store.Delete("a", a)} },
			drop: 1,
		},
		"that depends on nothing, after others made the record again": {
			ops:  func() []store.Op { return []store.Op{store.Delete("a", store.Whatever)} },
			drop: 2,
			before: func(plain *store.Store) {
				commit(t, plain, store.Delete("a", a))
				commit(t, plain, store.Put("a", []byte("theirs"), 0))
			},
		},
		"that depends on nothing, beside one that others did": {
			ops:    func() []store.Op { return []store.Op{store.Delete("b", b), store.Delete("a", store.Whatever)} },
			drop:   1,
			before: func(plain *store.Store) { commit(t, plain, store.Delete("b", b)) },
			want:   store.ErrNotFound,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			plain := etcdtest.Store(t)
			raw := etcdtest.Client(t)
			client, wait := clientThatDrops(t, func(n int) bool {
				if n == 1 && c.before != nil {
					c.before(plain)
				}
				if n == c.drop {
					moveWriterKeys(t, raw, plain.Prefix())
				}
				return n == c.drop
			})
			flaky := store.New(client, plain.Prefix())
			commit(t, flaky, store.Put("first", nil, 0))
			b = commit(t, plain, store.Put("b", nil, 0))
			a = commit(t, plain, store.Put("a", nil, 0))
			if _, err := flaky.Commit(t.Context(), c.ops()...); !errors.Is(err, c.want) {
				t.Errorf("Commit = %v, want %v", err, c.want)
			}
			wait()
			if r, err := plain.Get(t.Context(), "a"); c.want == nil && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("it was deleted, and is there as %q at revision %d (%v)", r.Value, r.Revision, err)
			}
		})
	}
}

// moveWriterKeys writes all writer keys as they are.
func moveWriterKeys(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	have, err := client.Get(t.Context(), prefix+"store/writers/", clientv3.WithPrefix())
	if err != nil {
		t.Error(err)
		return
	}
	for _, kv := range have.Kvs {
		if _, err := client.Put(t.Context(), string(kv.Key), string(kv.Value)); err != nil {
			t.Error(err)
		}
	}
}

func TestALostAnswerDoesNotHideARealConflict(t *testing.T) {
	plain := etcdtest.Store(t)
	at := commit(t, plain, store.Put("a", nil, 0))
	commit(t, plain, store.Put("a", []byte("theirs"), at))
	flaky := store.New(clientThatLoses(t, lost(2, nil)), plain.Prefix())
	if _, err := flaky.Commit(t.Context(), store.Put("a", []byte("mine"), at)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("Commit = %v, want ErrConflict", err)
	}
	if _, err := flaky.Commit(t.Context(), store.Put("a", []byte("mine"), 0)); !errors.Is(err, store.ErrExists) {
		t.Errorf("Commit = %v, want ErrExists", err)
	}
}

// Every acknowledged increment is in the counter exactly once, although a third of all answers is lost.
func TestCountersOfManyWritersMissAndRepeatNothing(t *testing.T) {
	const writers, increments = 6, 25
	plain := etcdtest.Store(t)
	commit(t, plain, store.Put("counter", []byte("0"), 0))
	var group sync.WaitGroup
	for range writers {
		s := store.New(clientThatLoses(t, func(*etcdserverpb.TxnRequest) bool { return rand.N(3) == 0 }), plain.Prefix())
		group.Go(func() {
			for range increments {
				if err := increment(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if got := string(get(t, plain, "counter").Value); got != strconv.Itoa(writers*increments) {
		t.Errorf("counter = %s, want %d", got, writers*increments)
	}
}

func increment(ctx context.Context, s *store.Store) error {
	for {
		r, err := s.Get(ctx, "counter")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(r.Value))
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, store.Put("counter", []byte(strconv.Itoa(n+1)), r.Revision))
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func TestADeadlineWithoutAnAnswerIsUnavailable(t *testing.T) {
	s := store.New(clientThatLoses(t, func(*etcdserverpb.TxnRequest) bool { return true }), etcdtest.Prefix(t))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Commit(ctx, store.Put("a", nil, 0))
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Commit = %v, want ErrUnavailable alone", err)
	}
}

func TestACancelledCommitSaysSo(t *testing.T) {
	s := etcdtest.Store(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Commit(ctx, store.Put("a", nil, 0)); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v, want context.Canceled", err)
	}
}

func TestAFallenFenceRefusesWrites(t *testing.T) {
	client := etcdtest.Client(t)
	s := store.New(client, etcdtest.Prefix(t))
	key := etcdtest.Prefix(t) + "election"
	put := func() store.Fence {
		t.Helper()
		resp, err := client.Txn(t.Context()).Then(clientv3.OpPut(key, "holder")).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return store.Fence{Key: key, CreateRevision: resp.Header.Revision}
	}
	ctx := store.WithFence(t.Context(), put())
	at, err := s.Commit(ctx, store.Put("a", []byte("first"), 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{"gone", "taken over"} {
		for _, op := range []store.Op{
			store.Put("a", []byte("late"), at), store.Put("a", []byte("late"), store.Whatever),
			store.Delete("a", at),
		} {
			if _, err := s.Commit(ctx, op); !errors.Is(err, store.ErrFenced) {
				t.Errorf("Commit = %v with the key %s, want ErrFenced", err, state)
			}
		}
		put()
	}
	if got := get(t, s, "a"); string(got.Value) != "first" {
		t.Errorf("value = %q, want first", got.Value)
	}
}
