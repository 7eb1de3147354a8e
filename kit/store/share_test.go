package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// gate holds the transactions of a client that compare something until it is opened, and counts all such.
type gate struct {
	open  chan struct{}
	count atomic.Int64

	stuckKey string        // the first transaction that writes this key never gets an answer
	stuck    atomic.Bool   // it was sent
	late     chan func()   // receives what sends it after all
	reopen   chan struct{} // later transactions wait until it is closed
}

func (g *gate) client(t testing.TB) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Compare) > 0 {
					g.count.Add(1)
					<-g.open
					if g.stuckKey != "" && writes(txn, g.stuckKey) && g.stuck.CompareAndSwap(false, true) {
						g.late <- func() {
							if err := invoke(context.WithoutCancel(ctx), method, req, new(etcdserverpb.TxnResponse), cc); err != nil {
								t.Errorf("the attempt that was held: %v", err)
							}
						}
						<-ctx.Done()
						return ctx.Err()
					}
					if g.stuck.Load() {
						<-g.reopen
					}
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func writes(txn *etcdserverpb.TxnRequest, key string) bool {
	return slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return string(op.GetRequestPut().GetKey()) == key
	})
}

// await waits until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for !holds() {
		if t.Context().Err() != nil {
			t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

// crowd has so many commits wait for a transaction to share, behind others that the gate holds.
type crowd struct {
	*gate
	s     *store.Store
	plain *store.Store
	group sync.WaitGroup
}

func newCrowd(t testing.TB) *crowd {
	c := &crowd{
		gate:  &gate{open: make(chan struct{}), late: make(chan func(), 1), reopen: make(chan struct{})},
		plain: etcdtest.Store(t),
	}
	c.s = store.New(c.client(t), c.plain.Prefix())
	c.s.ShareWait(time.Hour)
	for i := range store.SharedAtOnce {
		c.commit(t.Context(), store.Put(fmt.Sprint("before-", i), nil, 0), func(_ int64, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		await(t, "a transaction of its own", func() bool { return c.count.Load() > int64(i) })
	}
	return c
}

// stuckAt lets the transactions go that are held, but for the first that writes a key and those after it, which wait
// until reopen is closed: what is sent again because an answer is late must not take its place.
func (g *gate) stuckAt(key string) {
	g.stuckKey = key
	close(g.open)
}

func (c *crowd) commit(ctx context.Context, op store.Op, then func(revision int64, err error)) {
	c.group.Go(func() { then(c.s.Commit(ctx, op)) })
}

func TestConcurrentCommitsOfOnePutShareATransaction(t *testing.T) {
	const n = 50
	c := newCrowd(t)
	commit(t, c.plain, store.Put("of-others", []byte("theirs"), 0))
	election := c.plain.Prefix() + "election"
	won, err := etcdtest.Client(t).Put(t.Context(), election, "")
	if err != nil {
		t.Fatal(err)
	}
	fence := store.Fence{Key: election, CreateRevision: won.Header.Revision}
	holds := store.WithFence(t.Context(), fence)
	fence.CreateRevision--
	fell := store.WithFence(t.Context(), fence)
	var revisions sync.Map
	for i := range n {
		c.commit(t.Context(), store.Put(fmt.Sprint("a-", i), []byte("mine"), 0), func(revision int64, err error) {
			if err != nil {
				t.Errorf("a-%d: %v", i, err)
			}
			revisions.Store(revision, true)
		})
	}
	c.commit(t.Context(), store.Put("of-others", []byte("mine"), 0), func(_ int64, err error) {
		var refused *store.OpError
		if !errors.As(err, &refused) || !errors.Is(err, store.ErrExists) || refused.Index != 0 ||
			string(refused.Current.Value) != "theirs" {
			t.Errorf("a creation of a record that others have: %v", err)
		}
	})
	c.commit(t.Context(), store.Put("none", []byte("mine"), 1), func(_ int64, err error) {
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a change of a record that is gone: %v", err)
		}
	})
	c.commit(holds, store.Put("led", nil, 0), func(_ int64, err error) {
		if err != nil {
			t.Errorf("under a fence that holds: %v", err)
		}
	})
	c.commit(fell, store.Put("not-led", nil, 0), func(_ int64, err error) {
		if !errors.Is(err, store.ErrFenced) {
			t.Errorf("under a fence that fell: %v", err)
		}
	})
	await(t, "all commits", func() bool { return c.s.Waiting() == n+4 })
	sent := c.count.Load()
	close(c.open)
	c.group.Wait()
	shared := 0
	revisions.Range(func(any, any) bool { shared++; return true })
	// The refused ones end one attempt for the others, the fences have one each.
	if sent = c.count.Load() - sent; shared != 1 || sent > 4 {
		t.Errorf("%d commits came to %d revisions in %d transactions", n, shared, sent)
	}
	if got := string(get(t, c.plain, "of-others").Value); got != "theirs" {
		t.Errorf("the record of others is %q", got)
	}
}

func TestConcurrentCommitsOfOneKeyAreTriedOneAfterTheOther(t *testing.T) {
	const n = 10
	c := newCrowd(t)
	var created, refused atomic.Int64
	for i := range n {
		c.commit(t.Context(), store.Put("a", []byte(fmt.Sprint(i)), 0), func(_ int64, err error) {
			switch {
			case err == nil:
				created.Add(1)
			case errors.Is(err, store.ErrExists):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	await(t, "all commits", func() bool { return c.s.Waiting() == n })
	close(c.open)
	c.group.Wait()
	if created.Load() != 1 || refused.Load() != n-1 {
		t.Errorf("%d created it, %d were refused", created.Load(), refused.Load())
	}
}

func TestACommitDoesNotWaitForOthersThatHang(t *testing.T) {
	c := newCrowd(t)
	c.s.ShareWait(time.Millisecond)
	sent := c.count.Load()
	c.commit(t.Context(), store.Put("a", nil, 0), func(_ int64, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	await(t, "a transaction of its own", func() bool { return c.count.Load() > sent })
	close(c.open)
	c.group.Wait()
}

func TestACommitThatStillWaitsMayEnd(t *testing.T) {
	c := newCrowd(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.commit(ctx, store.Put("a", nil, 0), func(_ int64, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Commit = %v, want context.Canceled", err)
		}
	})
	await(t, "it waits", func() bool { return c.s.Waiting() == 1 })
	cancel()
	await(t, "it ended", func() bool { return c.s.Waiting() == 0 })
	close(c.open)
	c.group.Wait()
	if r, err := c.plain.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is there as %q (%v)", r.Value, err)
	}
}

// The time of one of the callers ran out while the transaction of all was on its way. The others get theirs, and it is
// not carried out any more once another commit has written, however late the transaction comes.
func TestAnAttemptOfManyDoesNothingForACallerThatGaveUp(t *testing.T) {
	c := newCrowd(t)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan struct{})
	c.commit(ctx, store.Put("a", nil, 0), func(_ int64, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Commit = %v, want context.Canceled", err)
		}
		close(gaveUp)
	})
	c.commit(t.Context(), store.Put("b", nil, 0), func(_ int64, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	await(t, "both wait", func() bool { return c.s.Waiting() == 2 })
	c.stuckAt(c.plain.Prefix() + "a")
	send := <-c.late
	cancel()
	<-gaveUp
	close(c.reopen)
	commit(t, c.s, store.Check("none", 0))
	send()
	c.group.Wait()
	if r, err := c.plain.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is there as %q (%v)", r.Value, err)
	}
	get(t, c.plain, "b")
}

// Callers give up at any moment, answers are lost, and others delete what was created: nothing is created twice, what
// was acknowledged was there, and what has no known outcome is settled by the next commit.
func TestSharedCommitsOfCallersThatGiveUpHappenAtMostOnce(t *testing.T) {
	const writers, each = 16, 40
	plain := etcdtest.Store(t)
	s := store.New(clientThatLoses(t, func(*etcdserverpb.TxnRequest) bool { return rand.N(8) == 0 }), plain.Prefix())
	w := plain.Watch(t.Context(), "", commit(t, plain, store.Put("start", nil, 0)))
	var mu sync.Mutex
	acknowledged, settled := map[string]int64{}, map[string]bool{} // by key: at which revision; whether it was there
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for n := range each {
				key := fmt.Sprintf("%d-%d", i, n)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if n%2 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rand.N(2000))*time.Microsecond)
				}
				at, err := s.Commit(ctx, store.Put(key, nil, 0))
				cancel()
				switch {
				case err == nil:
					mu.Lock()
					acknowledged[key] = at
					mu.Unlock()
					commit(t, plain, store.Delete(key, store.Whatever))
				case errors.Is(err, store.ErrUnavailable):
					// From here on it does not come any more.
					if _, err := s.Commit(t.Context(), store.Check("none", 0)); err != nil {
						t.Error(err)
					}
					_, err := plain.Get(t.Context(), key)
					mu.Lock()
					settled[key] = err == nil
					mu.Unlock()
				default:
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
	group.Wait()
	end := commit(t, plain, store.Put("end", nil, 0))
	puts := map[string]int64{}
	for done := false; !done; {
		b := nextChange(t, w)
		for _, e := range b.Events {
			if !e.Deleted && puts[e.Record.Key] > 0 {
				t.Errorf("%q was created at %d and at %d", e.Record.Key, puts[e.Record.Key], e.Record.Revision)
			}
			if !e.Deleted {
				puts[e.Record.Key] = e.Record.Revision
			}
		}
		done = b.Revision >= end
	}
	for key, at := range acknowledged {
		if puts[key] != at {
			t.Errorf("%q was created at %d, acknowledged at %d", key, puts[key], at)
		}
	}
	for key, there := range settled {
		if there != (puts[key] > 0) {
			t.Errorf("%q: was there %v after the next commit, created at %d", key, there, puts[key])
		}
	}
	if len(acknowledged) == 0 || len(settled) == 0 {
		t.Errorf("%d acknowledged, %d without a known outcome: want both", len(acknowledged), len(settled))
	}
}
