package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

const patience = 2 * time.Minute // for what takes milliseconds on a machine that is not busy

// next returns the next batch, progress included.
func next(t testing.TB, w *store.Watcher) store.Batch {
	t.Helper()
	select {
	case b, ok := <-w.Batches():
		if !ok {
			t.Fatalf("watch ended: %v", w.Err())
		}
		return b
	case <-time.After(patience):
		t.Fatalf("nothing after %v", patience)
		return store.Batch{}
	}
}

// nextChange returns the next batch with events.
func nextChange(t testing.TB, w *store.Watcher) store.Batch {
	t.Helper()
	for {
		if b := next(t, w); !b.Progress {
			return b
		}
	}
}

func TestAWatchDeliversEachRevisionAsOneBatch(t *testing.T) {
	s := etcdtest.Store(t)
	before := commit(t, s, store.Put("old", []byte("0"), 0))
	first := commit(t, s, store.Put("a", []byte("1"), 0), store.Put("b", []byte("1"), 0))
	second := commit(t, s, store.Put("a", []byte("2"), first), store.Delete("b", first))
	want := []store.Batch{
		{Revision: first, Events: []store.Event{
			{Record: store.Record{Key: "a", Value: []byte("1"), Revision: first, CreateRevision: first}},
			{Record: store.Record{Key: "b", Value: []byte("1"), Revision: first, CreateRevision: first}},
		}},
		{Revision: second, Events: []store.Event{
			{Record: store.Record{Key: "a", Value: []byte("2"), Revision: second, CreateRevision: first}, Previous: []byte("1")},
			{Deleted: true, Record: store.Record{Key: "b", Revision: second}, Previous: []byte("1")},
		}},
	}
	w := s.WatchWithin(t.Context(), "", before, 1<<20)
	if diff := cmp.Diff(want, []store.Batch{nextChange(t, w), nextChange(t, w)}); diff != "" {
		t.Error(diff)
	}
}

func TestAWatchSaysThatNothingHappened(t *testing.T) {
	s := etcdtest.Store(t)
	at := commit(t, s, store.Put("watched/a", nil, 0))
	w := s.Watch(t.Context(), "watched/", at)
	elsewhere := commit(t, s, store.Put("elsewhere/b", nil, 0))
	for {
		b := next(t, w)
		if !b.Progress || len(b.Events) > 0 {
			t.Fatalf("batch %+v, want progress only", b)
		}
		if b.Revision >= elsewhere {
			return
		}
	}
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	s := etcdtest.Store(t)
	ctx, cancel := context.WithCancel(t.Context())
	w := s.Watch(ctx, "", commit(t, s, store.Put("a", nil, 0)))
	cancel()
	for range w.Batches() {
	}
	if !errors.Is(w.Err(), context.Canceled) {
		t.Errorf("Err = %v, want context.Canceled", w.Err())
	}
}

func TestAWatchSurvivesCutsWithoutGapOrDuplicate(t *testing.T) {
	const changes, cuts = 300, 10
	writer, reader, line := watchedLine(t)
	at := commit(t, writer, store.Put("start", nil, 0))
	w := reader.Watch(t.Context(), "", at)
	var writes sync.WaitGroup
	writes.Go(func() {
		for i := range changes {
			if _, err := writer.Commit(t.Context(), store.Put(fmt.Sprintf("a%d", i), nil, 0),
				store.Put(fmt.Sprintf("b%d", i), nil, 0)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range changes {
		b := nextChange(t, w)
		if len(b.Events) != 2 || b.Events[0].Record.Key != fmt.Sprintf("a%d", i) ||
			b.Events[1].Record.Key != fmt.Sprintf("b%d", i) {
			t.Fatalf("batch %d is %+v", i, b)
		}
		if i%(changes/cuts) == 0 {
			line.cut()
		}
	}
	writes.Wait() // a change may be seen before its write has its answer
}

func TestASilentStreamIsReplaced(t *testing.T) {
	t.Parallel() // it waits until the silence is noticed
	writer, stuck := etcdtest.Store(t), make(chan struct{})
	reader := store.New(clientThatSticks(t, stuck), writer.Prefix())
	w := reader.Watch(t.Context(), "", commit(t, writer, store.Put("start", nil, 0)))
	first := commit(t, writer, store.Put("before", nil, 0))
	if b := nextChange(t, w); b.Revision != first {
		t.Fatalf("batch %+v, want revision %d", b, first)
	}
	close(stuck)
	started := time.Now()
	want := []int64{commit(t, writer, store.Put("a", nil, 0)), commit(t, writer, store.Put("b", nil, 0))}
	if diff := cmp.Diff(want, []int64{nextChange(t, w).Revision, nextChange(t, w).Revision}); diff != "" {
		t.Error(diff)
	}
	if took := time.Since(started); took < 3*time.Second {
		t.Errorf("the stream was not stuck: %v", took)
	}
}

// watchedLine returns a store to write to and the same one behind a line.
func watchedLine(t testing.TB) (writer, reader *store.Store, l *line) {
	t.Helper()
	writer, l = etcdtest.Store(t), newLine(t)
	client, err := store.Dial(store.ClientConfig{Endpoints: []string{l.endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return writer, store.New(client, writer.Prefix()), l
}

// stuckStream receives nothing, as from a member that was cut off a moment ago.
type stuckStream struct{ grpc.ClientStream }

func (s stuckStream) RecvMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

func TestAnOverdueWatchAsksAnotherMember(t *testing.T) {
	const silence = 5 * time.Second // after which a watch asks another member by itself
	var opened atomic.Int32
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				if err == nil && strings.HasSuffix(method, "Watch/Watch") && opened.Add(1) == 1 {
					return stuckStream{stream}, nil
				}
				return stream, err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s := store.New(client, fmt.Sprintf("/%s/", t.Name()))
	before := commit(t, s, store.Put("a", nil, 0))
	w := s.Watch(t.Context(), "", before)
	began := time.Now()
	want := commit(t, s, store.Put("b", nil, 0))
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.After(patience); ; {
		select {
		case b, ok := <-w.Batches():
			switch {
			case !ok:
				t.Fatal(w.Err())
			case b.Progress:
				continue
			case b.Revision != want:
				t.Errorf("revision %d, want %d", b.Revision, want)
			}
			if took := time.Since(began); took >= silence {
				t.Errorf("it took %v", took)
			}
			w.Overdue(want) // which is no reason for a third stream
			commit(t, s, store.Put("c", nil, 0))
			nextChange(t, w)
			if n := opened.Load(); n != 2 {
				t.Errorf("%d streams", n)
			}
			return
		case <-again.C:
			w.Overdue(want)
		case <-end:
			t.Fatal("nothing comes")
		}
	}
}

func TestAWatchKeepsABoundedAmountForItsReader(t *testing.T) {
	s := etcdtest.Store(t)
	after := commit(t, s, store.Put("a", nil, 0))
	for range 12 {
		commit(t, s, store.Put("a", make([]byte, 1<<20), store.Whatever))
	}
	w := s.WatchWithin(t.Context(), "", after, 8<<20)
	waitFor(t, "the watch of a reader that takes nothing to end", func() bool { return w.Err() != nil })
	if !errors.Is(w.Err(), store.ErrBehind) {
		t.Errorf("Err = %v, want ErrBehind", w.Err())
	}
	whole := s.Watch(t.Context(), "", after)
	for range 12 {
		nextChange(t, whole)
	}
}
