package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

// slow is an etcd that answers late, and counts what it is asked for.
type slow struct {
	after atomic.Int64 // time.Duration
	asked atomic.Int64
}

func answersAfter(d time.Duration) *slow {
	s := &slow{}
	s.after.Store(int64(d))
	return s
}

// client returns a client that gets every answer late.
func (s *slow) client(t testing.TB) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				s.asked.Add(1)
				err := invoke(ctx, method, req, reply, cc, opts...)
				timer := time.NewTimer(time.Duration(s.after.Load()))
				defer timer.Stop()
				select {
				case <-timer.C:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// commits returns how many requests each of n commits took, and how long.
func (s *slow) commits(t testing.TB, st *store.Store, n int) (txns []int64, took []time.Duration) {
	t.Helper()
	for i := range n {
		before, began := s.asked.Load(), time.Now()
		commit(t, st, store.Put(fmt.Sprint(began.UnixNano(), i), nil, 0))
		txns, took = append(txns, s.asked.Load()-before), append(took, time.Since(began))
	}
	return txns, took
}

func median[N int64 | time.Duration](list []N) N {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

func TestACommitUnderASlowEtcdTakesOneTransaction(t *testing.T) {
	s := answersAfter(350 * time.Millisecond)
	txns, _ := s.commits(t, store.New(s.client(t), etcdtest.Prefix(t)), 7)
	if median(txns) != 1 || txns[0] > 6 { // the first makes the writer key, too: by one read and one transaction at least
		t.Errorf("requests of each commit: %v, want one at the median, and few for the first", txns)
	}
}

// An etcd that was fast and becomes slow is learned too, and one that is fast again.
func TestTheLimitFollowsTheLatency(t *testing.T) {
	s := answersAfter(0)
	st := store.New(s.client(t), etcdtest.Prefix(t))
	for i := range 20 {
		commit(t, st, store.Put(fmt.Sprint("fast-", i), nil, 0))
	}
	s.after.Store(int64(200 * time.Millisecond))
	if txns, _ := s.commits(t, st, 9); median(txns) != 1 {
		t.Errorf("transactions of each commit: %v, want one at the median", txns)
	}
	s.after.Store(0)
	for i := range 60 {
		commit(t, st, store.Put(fmt.Sprint("again-", i), nil, 0))
	}
	if limit := st.FirstLimit(); limit > 100*time.Millisecond {
		t.Errorf("the first attempt of a write is given up after %s", limit)
	}
}

// Without budget an attempt waits as long as an election takes before another one is sent.
func TestRetriesHaveABudget(t *testing.T) {
	asked := func(spend bool) int64 {
		s := answersAfter(0)
		st := store.New(s.client(t), etcdtest.Prefix(t))
		commit(t, st, store.Put("a", nil, 0))
		s.after.Store(int64(time.Hour))
		if spend {
			st.SpendBudget()
		}
		before := s.asked.Load()
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if _, err := st.Commit(ctx, store.Put("b", nil, 0)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Commit = %v, want ErrUnavailable", err)
		}
		return s.asked.Load() - before
	}
	if n := asked(true); n != 1 {
		t.Errorf("%d transactions in 1.5 s without budget, want 1", n)
	}
	if n := asked(false); n < 3 {
		t.Errorf("%d transactions in 1.5 s with budget, want several: a lost leader is to be noticed", n)
	}
}

// BenchmarkCommitSlow prints what docs/figures.md states of an etcd that answers after 500 ms.
func BenchmarkCommitSlow(b *testing.B) {
	s := answersAfter(500 * time.Millisecond)
	st := store.New(s.client(b), etcdtest.Prefix(b))
	const n = 41
	for b.Loop() {
		txns, took := s.commits(b, st, n)
		b.ReportMetric(float64(median(txns)), "requests/median")
		b.ReportMetric(float64(slices.Max(txns)), "requests/worst")
		b.ReportMetric(float64(median(took).Milliseconds()), "ms/median")
		b.ReportMetric(float64(slices.Max(took).Milliseconds()), "ms/worst")
	}
}

// BenchmarkLeaderKilled measures the longest gap between the answers to one writer when the leader of three members is
// killed.
func BenchmarkLeaderKilled(b *testing.B) {
	var gaps []time.Duration
	for b.Loop() {
		members := etcdtest.StartMembers(b, 3)
		st := store.New(members.Client(b), etcdtest.Prefix(b))
		leader := members.Leader()
		var worst time.Duration
		last := time.Now()
		for i := range 400 {
			if i == 200 {
				members.Kill(leader)
			}
			commit(b, st, store.Put(fmt.Sprint(i), nil, 0))
			worst = max(worst, time.Since(last))
			last = time.Now()
		}
		gaps = append(gaps, worst)
	}
	b.ReportMetric(float64(median(gaps).Milliseconds()), "ms/median")
	b.ReportMetric(float64(slices.Max(gaps).Milliseconds()), "ms/worst")
}
