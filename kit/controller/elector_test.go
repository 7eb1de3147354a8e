package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const patience = 90 * time.Second // for what takes milliseconds on a machine that is not busy

func TestOnlyAWinnerLeads(t *testing.T) {
	e := controller.NewElector(etcdtest.Client(t), service(t), "127.0.0.1:1", slog.New(slog.DiscardHandler))
	if e.Leads() {
		t.Error("it leads before the election")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := e.Run(ctx, func(ctx context.Context) error {
		if !e.Leads() {
			t.Error("the winner does not lead")
		}
		cancel()
		<-ctx.Done()
		return nil
	})
	if err != nil || e.Leads() {
		t.Errorf("Run = %v; it leads afterwards: %v", err, e.Leads())
	}
}

// candidate is an elector that runs, and whose terms a test can follow.
type candidate struct {
	terms chan context.Context // of each term, when it begins
	stop  func()
}

func service(t testing.TB) string {
	return "test" + strings.ReplaceAll(etcdtest.Prefix(t), "/", "-")
}

// campaign runs a candidate; its leadership lasts until its context ends.
func campaign(t *testing.T, c *clientv3.Client, service, address string) *candidate {
	t.Helper()
	return campaignWith(t, controller.NewElector(c, service, address, slog.New(slog.DiscardHandler)))
}

func campaignWith(t *testing.T, e *controller.Elector) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &candidate{terms: make(chan context.Context)}
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context) error {
			select {
			case s.terms <- ctx:
				<-ctx.Done()
			case <-ctx.Done():
			}
			return nil
		})
	}()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	t.Cleanup(s.stop)
	return s
}

// leads waits for the candidate's next term.
func (s *candidate) leads(t *testing.T) context.Context {
	t.Helper()
	select {
	case ctx := <-s.terms:
		return ctx
	case <-time.After(patience):
		t.Fatal("not elected")
		return nil
	}
}

func ends(t *testing.T, term context.Context) {
	t.Helper()
	select {
	case <-term.Done():
	case <-time.After(patience):
		t.Fatal("the term does not end")
	}
}

func TestOnlyTheLeaderIsOneInMetrics(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	electors := [2]*controller.Elector{}
	candidates := [2]*candidate{}
	for i := range electors {
		electors[i] = controller.NewElector(client, name, fmt.Sprintf("127.0.0.1:%d", i+1), slog.New(slog.DiscardHandler))
		if got := leads(t, electors[i]); got != 0 {
			t.Errorf("windlass_leader = %v before the election", got)
		}
	}
	candidates[0] = campaignWith(t, electors[0])
	candidates[0].leads(t)
	candidates[1] = campaignWith(t, electors[1])
	if first, second := leads(t, electors[0]), leads(t, electors[1]); first != 1 || second != 0 {
		t.Errorf("windlass_leader = %v and %v, want 1 and 0", first, second)
	}
	candidates[0].stop()
	candidates[1].leads(t)
	if first, second := leads(t, electors[0]), leads(t, electors[1]); first != 0 || second != 1 {
		t.Errorf("windlass_leader = %v and %v, want 0 and 1", first, second)
	}
}

func leads(t *testing.T, e *controller.Elector) float64 {
	t.Helper()
	return metric(t, e, "windlass_leader")
}

func TestTheKeySaysWhoLeads(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	s := campaign(t, client, name, "127.0.0.1:1")
	s.leads(t)
	resp, err := client.Get(t.Context(), "/windlass/elections/"+name)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("Get = %v, %v", resp, err)
	}
	var got controller.Candidacy
	if err := json.Unmarshal(resp.Kvs[0].Value, &got); err != nil {
		t.Fatal(err)
	}
	if want := (controller.Candidacy{
		Address: "127.0.0.1:1",
		Holder:  fmt.Sprintf("%s@%d", name, os.Getpid()),
	}); got != want {
		t.Errorf("key holds %+v, want %+v", got, want)
	}
	s.stop()
	if resp, err = client.Get(t.Context(), "/windlass/elections/"+name); err != nil || len(resp.Kvs) != 0 {
		t.Errorf("Get = %v, %v after a clean end, want nothing", resp, err)
	}
}

func TestTheNextLeadsAsSoonAsALeaderResigns(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	first := campaign(t, client, name, "127.0.0.1:1")
	term := first.leads(t)
	second := campaign(t, client, name, "127.0.0.1:2")
	select {
	case <-second.terms:
		t.Fatal("two leaders")
	case <-term.Done():
		t.Fatal("a second candidate ended the term")
	case <-time.After(100 * time.Millisecond):
	}
	start := time.Now()
	first.stop()
	second.leads(t)
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("the next leader came after %v: it waited for the lease", took)
	}
}

func TestALeaderThatLostItsKeyEndsAndCannotWrite(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	st := store.New(client, etcdtest.Prefix(t))
	key := "/windlass/elections/" + name
	for what, take := range map[string]func() error{
		"the key was deleted": func() error { _, err := client.Delete(t.Context(), key); return err },
		"the lease was revoked": func() error {
			resp, err := client.Get(t.Context(), key)
			if err == nil {
				_, err = client.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := campaign(t, client, name, "127.0.0.1:1")
			term := s.leads(t)
			if err := take(); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Commit(context.WithoutCancel(term), store.Put("a", nil, store.Whatever)); !errors.Is(err,
				store.ErrFenced) {
				t.Errorf("Commit = %v, want ErrFenced", err)
			}
			ends(t, term)
			again := s.leads(t)
			if _, err := st.Commit(again, store.Put("a", nil, store.Whatever)); err != nil {
				t.Errorf("Commit = %v in the next term", err)
			}
		})
	}
}

func TestACandidateTakesItsOwnAddressOverAtOnce(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	st := store.New(client, etcdtest.Prefix(t))
	// The former holder is dead, but its lease has an hour to go.
	lease, err := client.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	put, err := client.Put(t.Context(), "/windlass/elections/"+name, `{"address":"127.0.0.1:1","holder":"dead@1"}`,
		clientv3.WithLease(lease.ID))
	if err != nil {
		t.Fatal(err)
	}
	dead := store.WithFence(t.Context(), store.Fence{
		Key:            "/windlass/elections/" + name,
		CreateRevision: put.Header.Revision,
	})
	if _, err := st.Commit(dead, store.Put("a", []byte("before"), 0)); err != nil {
		t.Fatal(err)
	}
	term := campaign(t, client, name, "127.0.0.1:1").leads(t)
	if _, err := st.Commit(dead, store.Put("a", []byte("late"), store.Whatever)); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Commit of the dead = %v, want ErrFenced", err)
	}
	if _, err := st.Commit(term, store.Put("a", []byte("mine"), store.Whatever)); err != nil {
		t.Error(err)
	}
}

func TestAnErrorOfTheLeadEndsTheRunAndResigns(t *testing.T) {
	client, name := etcdtest.Client(t), service(t)
	broken := errors.New("broken")
	e := controller.NewElector(client, name, "127.0.0.1:1", slog.New(slog.DiscardHandler))
	if err := e.Run(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("Run = %v, want %v", err, broken)
	}
	resp, err := client.Get(t.Context(), "/windlass/elections/"+name)
	if err != nil || len(resp.Kvs) != 0 {
		t.Errorf("Get = %v, %v, want nothing", resp, err)
	}
}

// deafClient returns a client whose requests hang while deaf is set.
func deafClient(t *testing.T, deaf *atomic.Bool) *clientv3.Client {
	t.Helper()
	hung := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				if deaf.Load() {
					return hung(ctx)
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				if deaf.Load() {
					return nil, status.Error(codes.Unavailable, "no quorum")
				}
				return open(ctx, desc, cc, method, opts...)
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestALeaderWithoutAnswersEndsInTimeAndCampaignsAgain(t *testing.T) {
	const ttl = 2 * time.Second
	var deaf atomic.Bool
	e := controller.NewElector(deafClient(t, &deaf), service(t), "127.0.0.1:1", slog.New(slog.DiscardHandler))
	controller.ShortenLease(e, ttl)
	s := campaignWith(t, e)
	term := s.leads(t)
	deaf.Store(true)
	start := time.Now()
	ends(t, term)
	if took := time.Since(start); took > ttl+time.Second {
		t.Errorf("the term ended %v after the silence began, want about %v", took, ttl)
	}
	deaf.Store(false)
	s.leads(t)
}

// Leaders write their term, as fast as they can and beyond their context's end, while their key is taken away again and
// again. The record's history must never go back to an earlier term.
func TestTwoLeadersNeverBothWrite(t *testing.T) {
	const takeovers = 15
	client, name := etcdtest.Client(t), service(t)
	st := store.New(client, etcdtest.Prefix(t))
	start, err := st.Commit(t.Context(), store.Put("term", []byte("0"), 0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	for i := range cap(done) {
		e := controller.NewElector(client, name, fmt.Sprintf("127.0.0.1:%d", i+1), slog.New(slog.DiscardHandler))
		go func() {
			done <- e.Run(ctx, func(term context.Context) error { return writeUntilFenced(term, ctx, st) })
		}()
	}
	w := st.Watch(ctx, "", start)
	var last int64
	for terms := 0; terms < takeovers; {
		b, ok := <-w.Batches()
		if !ok {
			t.Fatal(w.Err())
		}
		for _, event := range b.Events {
			term, err := strconv.ParseInt(string(event.Record.Value), 10, 64)
			if err != nil || term < last {
				t.Fatalf("term %q wrote after term %d", event.Record.Value, last)
			}
			if term > last {
				last, terms = term, terms+1
			}
			if rand.N(20) == 0 {
				if _, err := client.Delete(t.Context(), "/windlass/elections/"+name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cancel()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// writeUntilFenced believes that it leads until etcd says otherwise: it takes no notice of the end of its term.
func writeUntilFenced(term, end context.Context, st *store.Store) error {
	fence, ok := store.FenceFrom(term)
	if !ok {
		return errors.New("a lead without a fence")
	}
	ctx := store.WithFence(end, fence)
	for ctx.Err() == nil {
		if _, err := st.Commit(ctx, store.Put("term", []byte(strconv.FormatInt(fence.CreateRevision, 10)),
			store.Whatever)); err != nil {
			return err
		}
	}
	return nil
}
