package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	progressAfter = 2500 * time.Millisecond // members send progress every two seconds by themselves; others are asked for it
	watchSilence  = 5 * time.Second         // then the member behind the stream is stuck: ask another
	reopenPause   = 50 * time.Millisecond   // doubles up to the next
	reopenPauses  = 500 * time.Millisecond
)

var errWatchClosed = errors.New("watch ended")

// Event is one change of a record.
type Event struct {
	Deleted  bool
	Record   Record // for a deletion: the key and the deletion's revision only
	Previous []byte // the value before; nil if the record was created, or if etcd has already forgotten it
}

// Batch is all that happened at one revision.
type Batch struct {
	Revision int64
	Events   []Event
	Progress bool // there are no events: nothing happened up to Revision
}

// Watcher delivers the changes under a prefix in order. Make one with Store.Watch.
type Watcher struct {
	store   *Store
	prefix  string // absolute
	batches chan Batch
	last    int64 // revision up to which all was delivered

	mu  sync.Mutex
	err error
}

// Watch delivers every change after the revision after, of the records whose keys begin with keyPrefix, until ctx ends
// or the history asked for is gone. The loss of members shows as a delay only.
func (s *Store) Watch(ctx context.Context, keyPrefix string, after int64) *Watcher {
	w := &Watcher{store: s, prefix: s.prefix + keyPrefix, batches: make(chan Batch), last: after}
	go w.run(ctx)
	return w
}

// Batches returns the changes, one batch per revision, in order, without gap or duplicate. It is closed at the end; Err then tells why.
// A reader that stops before must end the watch's context.
func (w *Watcher) Batches() <-chan Batch { return w.batches }

// Err returns why the watch ended, once Batches is closed: ErrCompacted, the error of its context, or a refusal by etcd.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *Watcher) run(ctx context.Context) {
	defer close(w.batches)
	pause := reopenPause
	for {
		before := w.last
		err := w.stream(ctx)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if ctx.Err() != nil || fatal(err) {
			w.mu.Lock()
			w.err = fmt.Errorf("watch %q: %w", strings.TrimPrefix(w.prefix, w.store.prefix), err)
			w.mu.Unlock()
			return
		}
		if w.last > before {
			pause = reopenPause
		}
		sleep(ctx, pause)
		pause = min(2*pause, reopenPauses)
	}
}

// fatal reports whether opening the watch again cannot help.
func fatal(err error) bool {
	switch {
	case errors.Is(err, ErrCompacted), errors.Is(err, errEnvelope):
		return true
	case code(err) == codes.PermissionDenied:
		return true
	default:
		// A refused watch comes back as plain text.
		return err != nil && strings.Contains(err.Error(), rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied))
	}
}

// stream delivers changes after w.last from one stream of its own, until that one fails or falls silent. A new
// clientv3.Watcher each time: on the same one a stuck stream would be used again.
func (w *Watcher) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	watcher := clientv3.NewWatcher(w.store.client)
	defer func() {
		cancel()
		watcher.Close()
	}()
	opened := make(chan clientv3.WatchChan, 1)
	from := clientv3.WithRev(w.last + 1)
	go func() { // Watch returns only when a member has answered, so it is supervised too; it ends with ctx
		opened <- watcher.Watch(ctx, w.prefix, clientv3.WithPrefix(), from,
			clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	}()
	var answers clientv3.WatchChan
	heard := time.Now()
	alarm := time.NewTimer(progressAfter)
	defer alarm.Stop()
	for {
		select {
		case answers = <-opened:
		case resp, ok := <-answers:
			if !ok {
				return errWatchClosed
			}
			if err := w.deliver(ctx, resp); err != nil {
				return err
			}
			heard = time.Now()
			alarm.Reset(progressAfter)
		case <-alarm.C:
			if time.Since(heard) >= watchSilence {
				return errWatchClosed
			}
			if answers != nil {
				askProgress(ctx, watcher)
			}
			alarm.Reset(min(progressAfter, max(watchSilence-time.Since(heard), time.Millisecond)))
		}
	}
}

// askProgress never waits long: a stuck stream does not take the question, and its silence is noticed by the caller.
func askProgress(ctx context.Context, watcher clientv3.Watcher) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_ = watcher.RequestProgress(ctx)
}

// deliver sends what one answer of etcd brings, split by revision.
func (w *Watcher) deliver(ctx context.Context, resp clientv3.WatchResponse) error {
	err := resp.Err()
	if errors.Is(err, rpctypes.ErrCompacted) {
		return ErrCompacted
	}
	if err != nil {
		return err
	}
	for events := resp.Events; len(events) > 0; {
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
			n++
		}
		batch, err := w.batch(events[:n])
		if err != nil {
			return err
		}
		if err := w.send(ctx, batch); err != nil {
			return err
		}
		events = events[n:]
	}
	if resp.IsProgressNotify() {
		return w.send(ctx, Batch{Revision: resp.Header.Revision, Progress: true})
	}
	return nil
}

// send passes on what is new. A member that lags behind may report less progress than was made before.
func (w *Watcher) send(ctx context.Context, b Batch) error {
	if b.Revision < w.last || b.Revision == w.last && !b.Progress {
		return nil
	}
	select {
	case w.batches <- b:
		w.last = b.Revision
		w.store.saw(b.Revision)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// batch translates events of one revision.
func (w *Watcher) batch(events []*clientv3.Event) (Batch, error) {
	b := Batch{Revision: events[0].Kv.ModRevision, Events: make([]Event, 0, len(events))}
	for _, e := range events {
		if keeps(string(e.Kv.Key[len(w.store.prefix):])) {
			continue
		}
		event, err := w.event(e)
		if err != nil {
			return Batch{}, err
		}
		b.Events = append(b.Events, event)
	}
	b.Progress = len(b.Events) == 0
	return b, nil
}

func (w *Watcher) event(e *clientv3.Event) (Event, error) {
	var event Event
	if e.PrevKv != nil {
		previous, err := w.store.record(e.PrevKv)
		if err != nil {
			return Event{}, err
		}
		event.Previous = previous.Value
	}
	if e.Type == clientv3.EventTypeDelete {
		event.Deleted = true
		event.Record = Record{Key: string(e.Kv.Key[len(w.store.prefix):]), Revision: e.Kv.ModRevision}
		return event, nil
	}
	record, err := w.store.record(e.Kv)
	event.Record = record
	return event, err
}
