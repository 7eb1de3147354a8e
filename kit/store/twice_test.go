package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

// held keeps the first transaction of a client that compares something, as a member does that was stopped when it had
// taken it.
type held struct {
	t    testing.TB
	mu   sync.Mutex
	send func() // sends it after all
}

// client returns a client whose first commit is held back; its later ones go through.
func (h *held) client() *clientv3.Client {
	h.t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(h.t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				txn, ok := req.(*etcdserverpb.TxnRequest)
				if !ok || len(txn.Compare) == 0 || !h.take(func() {
					if err := invoke(context.WithoutCancel(ctx), method, req, new(etcdserverpb.TxnResponse), cc); err != nil {
						h.t.Errorf("the attempt that was held: %v", err)
					}
				}) {
					return invoke(ctx, method, req, reply, cc, opts...)
				}
				<-ctx.Done()
				return ctx.Err()
			})},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (h *held) take(send func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.send != nil {
		return false
	}
	h.send = send
	return true
}

func (h *held) taken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.send != nil
}

func TestAnAttemptThatComesLateDoesNothingOnceItsCommitIsSettled(t *testing.T) {
	absent := func(s *store.Store, key string) {
		if r, err := s.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%q is there as %q (%v)", key, r.Value, err)
		}
	}
	cases := map[string]struct {
		before func(plain *store.Store) // what others did before
		ops    []store.Op
		want   error
		after  func(plain *store.Store) // what others do once the commit is settled
		check  func(plain *store.Store)
	}{
		"a creation that others delete": {
			ops:   []store.Op{store.Put("a", []byte("mine"), 0)},
			after: func(s *store.Store) { commit(t, s, store.Delete("a", store.Whatever)) },
			check: func(s *store.Store) { absent(s, "a") },
		},
		"a put that depends on nothing, of a record that was absent": {
			ops:   []store.Op{store.Put("a", []byte("mine"), store.Whatever)},
			after: func(s *store.Store) { commit(t, s, store.Delete("a", store.Whatever)) },
			check: func(s *store.Store) { absent(s, "a") },
		},
		"a creation that was refused": {
			before: func(s *store.Store) { commit(t, s, store.Put("a", []byte("theirs"), 0)) },
			ops:    []store.Op{store.Put("a", []byte("mine"), 0)},
			want:   store.ErrExists,
			after:  func(s *store.Store) { commit(t, s, store.Delete("a", store.Whatever)) },
			check:  func(s *store.Store) { absent(s, "a") },
		},
		"a change that was refused because another record had to be absent": {
			before: func(s *store.Store) { commit(t, s, store.Put("lock", nil, 0)) },
			ops:    []store.Op{store.Check("lock", 0), store.Put("a", []byte("mine"), 0)},
			want:   store.ErrExists,
			after:  func(s *store.Store) { commit(t, s, store.Delete("lock", store.Whatever)) },
			check:  func(s *store.Store) { absent(s, "a") },
		},
		"a deletion that found nothing": {
			ops:   []store.Op{store.Delete("a", store.Whatever)},
			after: func(s *store.Store) { commit(t, s, store.Put("a", []byte("theirs"), 0)) },
			check: func(s *store.Store) { get(t, s, "a") },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			plain, h := etcdtest.Store(t), &held{t: t}
			if c.before != nil {
				c.before(plain)
			}
			if _, err := store.New(h.client(), plain.Prefix()).Commit(t.Context(), c.ops...); !errors.Is(err, c.want) {
				t.Fatalf("Commit = %v, want %v", err, c.want)
			}
			c.after(plain)
			if !h.taken() {
				t.Fatal("no attempt was held")
			}
			h.send()
			c.check(plain)
		})
	}
}

// The caller's time ran out: the outcome is unknown, but not permanently.
func TestAnAttemptWhoseCommitGaveUpDoesNothingAfterTheNextCommit(t *testing.T) {
	plain, h := etcdtest.Store(t), &held{t: t}
	s := store.New(h.client(), plain.Prefix())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !h.taken() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := s.Commit(ctx, store.Put("a", []byte("first"), 0)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Commit = %v, want context.Canceled", err)
	}
	at := commit(t, s, store.Put("a", []byte("second"), 0))
	commit(t, plain, store.Delete("a", at))
	h.send()
	if r, err := plain.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is there as %q (%v)", r.Value, err)
	}
}

// Anyone may remove a writer key, and none of the many that processes leave stays permanently.
func TestWriterKeysDoNotAccumulateAndMayVanish(t *testing.T) {
	client, prefix := etcdtest.Client(t), etcdtest.Prefix(t)
	first := store.New(client, prefix)
	commit(t, first, store.Put("a", nil, store.Whatever))
	for range 3 * store.WritersKept {
		commit(t, store.New(client, prefix), store.Put("a", nil, store.Whatever))
	}
	resp, err := client.Get(t.Context(), prefix+"store/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	if resp.Count > store.WritersKept {
		t.Errorf("%d writer keys, want at most %d", resp.Count, store.WritersKept)
	}
	commit(t, first, store.Put("a", []byte("last"), store.Whatever)) // its key is gone
	if got := string(get(t, first, "a").Value); got != "last" {
		t.Errorf("value = %q, want last", got)
	}
	page, err := first.List(t.Context(), "", store.ListOptions{})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("List = %v (%v), want a alone", page.Records, err)
	}
}

// Others' doubts move the key under commits in flight: none of them fails, and none is carried out twice.
func TestCommitsInFlightOutliveADoubtOfTheSameProcess(t *testing.T) {
	const writers, each = 8, 30
	plain := etcdtest.Store(t)
	s := store.New(clientThatLoses(t, func(*etcdserverpb.TxnRequest) bool { return rand.N(5) == 0 }), plain.Prefix())
	w := plain.Watch(t.Context(), "", commit(t, plain, store.Put("start", nil, 0)))
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for n := range each {
				if _, err := s.Commit(t.Context(), store.Put(fmt.Sprintf("%d-%d", i, n), nil, 0)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	seen := map[string]int{}
	for len(seen) < writers*each {
		for _, e := range nextChange(t, w).Events {
			seen[e.Record.Key]++
		}
	}
	for key, n := range seen {
		if n != 1 {
			t.Errorf("%q was written %d times", key, n)
		}
	}
}

// rounds is how often a follower is stopped: thousands of times where WINDLASS_FAULTS=all asks for it.
func rounds() int {
	if os.Getenv("WINDLASS_FAULTS") == "all" {
		return 3000
	}
	return 40
}

// A follower is stopped while writers create records, so that some first attempts are carried out late: after another
// attempt succeeded, its writer had the answer, and another client deleted the record. It must not come back.
func TestFaultsACreationNeverHappensTwice(t *testing.T) {
	const writers = 8
	members := etcdtest.StartMembers(t, 3)
	leader := members.Leader()
	prefix := etcdtest.Prefix(t)
	deleter := store.New(members.Client(t, leader), prefix)
	var clients [writers]*clientv3.Client
	for i := range clients {
		clients[i] = members.Client(t)
	}
	// One for each member: what a follower held is in the log before a write through it, or never.
	var barriers [3]*store.Store
	for i := range barriers {
		barriers[i] = store.New(members.Client(t, i), prefix)
	}
	var stores [writers]*store.Store
	var created sync.Map // key → revision
	var doubts atomic.Int64
	began := time.Now()
	for round := range rounds() {
		// A new store has all its early attempts before it. One that has spent them waits for seconds in each round.
		if round%100 == 0 {
			for i, client := range clients {
				stores[i] = store.New(client, prefix)
				commit(t, stores[i], store.Put(fmt.Sprintf("warm-up-%d", i), nil, store.Whatever))
			}
		}
		follower := (leader + 1 + round%2) % 3
		var group sync.WaitGroup
		for i, s := range stores {
			key := fmt.Sprintf("round-%d-%d", round, i)
			wait := time.Duration(rand.N(3000)) * time.Microsecond
			group.Go(func() {
				timer := time.NewTimer(wait)
				<-timer.C
				limit, asked := s.FirstLimit(), time.Now()
				at, err := s.Commit(t.Context(), store.Put(key, []byte("first"), 0))
				if time.Since(asked) > limit {
					doubts.Add(1)
				}
				if err != nil {
					t.Errorf("create %s: %v", key, err)
					return
				}
				created.Store(key, at)
				if _, err := deleter.Commit(t.Context(), store.Delete(key, at)); err != nil {
					t.Errorf("delete %s: %v", key, err)
				}
			})
		}
		timer := time.NewTimer(time.Duration(rand.N(3000)) * time.Microsecond)
		<-timer.C
		members.Stop(follower)
		group.Wait()
		members.Continue(follower)
		commit(t, barriers[follower], store.Put("barrier", nil, store.Whatever))
	}
	page, err := deleter.List(t.Context(), "round-", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range page.Records {
		if at, _ := created.Load(r.Key); at == r.Revision {
			t.Errorf("%q was not deleted, although that was acknowledged", r.Key)
		} else {
			t.Errorf("%q came back at revision %d", r.Key, r.Revision)
		}
	}
	t.Logf("%d creations in %d rounds, %d of them after a first attempt without an answer, %s", rounds()*writers, rounds(),
		doubts.Load(), time.Since(began).Round(time.Second))
	if doubts.Load() == 0 {
		t.Error("each creation was answered at once: no follower held one")
	}
}
