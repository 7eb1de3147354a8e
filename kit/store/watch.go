package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	// members send progress every two seconds by themselves; others are asked for it
	progressAfter = 2500 * time.Millisecond
	watchSilence  = 5 * time.Second // then the member behind the stream is stuck: ask another
	// trust is how long a new stream has to bring what is overdue: many times what a member needs. It doubles up to
	// watchSilence while streams bring nothing: then etcd is slow, and another stream does not help.
	trust = 400 * time.Millisecond
	// trustAgain is how long after the last such stream they are trusted as at first. Where all members are slow, none is
	// given up in between.
	trustAgain   = time.Minute
	reopenPause  = 50 * time.Millisecond // doubles up to the next
	reopenPauses = 500 * time.Millisecond

	// watchBuffer bounds what a watch has in memory for its reader, in bytes of keys and values, where the reader does not
	// say.
	watchBuffer = 64 << 20
)

var errWatchClosed = errors.New("watch ended")

// Event is one change of a record.
type Event struct {
	Deleted bool
	Record  Record // for a deletion: the key and the deletion's revision only
	// the value before; nil if the watch does not ask for it, if the record was created, if it could not be opened, or if
	// etcd has already forgotten it
	Previous []byte
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
	ask     chan struct{}
	overdue chan int64    // a revision
	trust   time.Duration // that streams have at present
	lateFor int64         // revision that is overdue
	late    time.Time     // since when it is
	// distrusted is when a stream was given up last because of what was overdue.
	distrusted time.Time
	most       int // bytes that may wait for the reader
	options    []clientv3.OpOption

	mu  sync.Mutex
	err error
}

// Watch delivers every change after the revision after, of the records whose keys begin with keyPrefix, until ctx ends
// or the history asked for is gone. The loss of members shows as a delay only. No event has Previous: its reader has
// the state before, and etcd need not read it.
func (s *Store) Watch(ctx context.Context, keyPrefix string, after int64) *Watcher {
	return s.watch(ctx, keyPrefix, after, watchBuffer)
}

// WatchWithin is Watch with Previous, and with a bound on the bytes that wait for the reader: beyond it the watch ends
// with ErrBehind.
func (s *Store) WatchWithin(ctx context.Context, keyPrefix string, after int64, most int) *Watcher {
	return s.watch(ctx, keyPrefix, after, most, clientv3.WithPrevKV())
}

func (s *Store) watch(ctx context.Context, keyPrefix string, after int64, most int,
	options ...clientv3.OpOption,
) *Watcher {
	w := &Watcher{
		store: s, prefix: s.prefix + keyPrefix, batches: make(chan Batch), last: after, most: most,
		ask: make(chan struct{}, 1), overdue: make(chan int64, 1), trust: trust, options: options,
	}
	go w.run(ctx)
	return w
}

// Batches returns the changes, one batch per revision, in order, without gap or duplicate. It is closed at the end; Err
// then returns the reason. A reader that stops before must end the watch's context.
func (w *Watcher) Batches() <-chan Batch { return w.batches }

// AskProgress has the watch say soon how far it is, where nothing happens, by a Batch with Progress. It does not wait.
func (w *Watcher) AskProgress() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// Overdue says that etcd has reached a revision some time ago, and that the watch should have delivered it: then the
// member behind its stream may be cut off, which the stream itself shows only after seconds, and another one is asked.
// It does not wait. A caller repeats it while the revision does not come: a stream that was just opened is left alone.
func (w *Watcher) Overdue(revision int64) {
	select {
	case w.overdue <- revision:
	default:
	}
}

// Err returns why the watch ended, once Batches is closed: ErrCompacted, ErrBehind, the error of its context, or a
// refusal by etcd.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *Watcher) run(ctx context.Context) {
	defer close(w.batches)
	again := backoff.New(reopenPause, reopenPauses)
	for {
		before := w.last
		err := w.stream(ctx)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if ctx.Err() == nil && !errors.Is(err, errWatchClosed) && !errors.Is(err, ErrCompacted) &&
			!errors.Is(err, ErrBehind) {
			w.store.refusals.Note(ctx, w.store.log, w.prefix, err)
		}
		if ctx.Err() != nil || fatal(err) {
			w.mu.Lock()
			w.err = fmt.Errorf("watch %q: %w", strings.TrimPrefix(w.prefix, w.store.prefix), err)
			w.mu.Unlock()
			return
		}
		if w.last > before {
			again.Reset()
		}
		again.Wait(ctx)
	}
}

// fatal reports whether opening the watch again cannot help.
func fatal(err error) bool {
	switch {
	case errors.Is(err, ErrCompacted), errors.Is(err, ErrBehind):
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
	options := append(slices.Clone(w.options), clientv3.WithRev(w.last+1), clientv3.WithPrefix(),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	go func() { // Watch returns only when a member has answered, so it is supervised too; it ends with ctx
		opened <- watcher.Watch(ctx, w.prefix, options...)
	}()
	var answers clientv3.WatchChan
	var waiting queue
	opening := time.Now()
	heard := opening
	alarm := time.NewTimer(progressAfter)
	defer alarm.Stop()
	for {
		// What etcd's client has received would pile up there without bound, so it is taken at once and counted here.
		var out chan<- Batch
		head, ok := waiting.head(w)
		if ok {
			out = w.batches
		}
		select {
		case out <- head:
			waiting.pop()
			w.last = head.Revision
			w.store.saw(head.Revision)
		case answers = <-opened:
		case resp, ok := <-answers:
			if !ok {
				return errWatchClosed
			}
			if err := waiting.take(resp, w.most); err != nil {
				return err
			}
			heard = time.Now()
			alarm.Reset(progressAfter)
		case <-ctx.Done():
			return ctx.Err()
		case <-w.ask:
			if answers != nil {
				askProgress(ctx, watcher)
			}
		case revision := <-w.overdue:
			reached := max(w.last, waiting.reached())
			if reached >= revision {
				continue
			}
			if time.Since(w.distrusted) > trustAgain {
				w.trust = trust
			}
			if reached >= w.lateFor {
				w.lateFor, w.late = revision, time.Now().Add(-trust) // so long it took until this was said
			}
			if time.Since(opening) >= w.trust && time.Since(w.late) >= w.trust {
				w.trust, w.distrusted = min(2*w.trust, watchSilence), time.Now()
				return errWatchClosed
			}
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

// queue is what etcd has sent and the reader has not taken, one element for each revision.
type queue struct {
	list  []waitingBatch
	bytes int
}

type waitingBatch struct {
	revision int64
	events   []*clientv3.Event // none: nothing happened up to the revision
	bytes    int
	made     *Batch // once it is at the head
}

// take adds what one answer of etcd brings, split by revision.
func (q *queue) take(resp clientv3.WatchResponse, most int) error {
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
		b := waitingBatch{revision: events[0].Kv.ModRevision, events: events[:n]}
		for _, e := range b.events {
			b.bytes += len(e.Kv.Key) + len(e.Kv.Value)
			if e.PrevKv != nil {
				b.bytes += len(e.PrevKv.Key) + len(e.PrevKv.Value)
			}
		}
		q.list = append(q.list, b)
		q.bytes += b.bytes
		events = events[n:]
	}
	if n := len(q.list); resp.IsProgressNotify() && n > 1 && len(q.list[n-1].events) == 0 {
		q.list[n-1].revision = max(q.list[n-1].revision, resp.Header.Revision)
	} else if resp.IsProgressNotify() {
		q.list = append(q.list, waitingBatch{revision: resp.Header.Revision})
	}
	// One revision may be larger than the bound.
	if q.bytes > most && len(q.list) > 1 {
		return ErrBehind
	}
	return nil
}

// head returns the first batch that is new to the reader, if there is one. A member that lags behind may report less
// progress than was made before.
func (q *queue) head(w *Watcher) (Batch, bool) {
	for len(q.list) > 0 {
		first := &q.list[0]
		if first.revision > w.last || first.revision == w.last && len(first.events) == 0 {
			if first.made == nil {
				b := w.batch(first.revision, first.events)
				first.made = &b
			}
			return *first.made, true
		}
		q.pop()
	}
	return Batch{}, false
}

// reached returns the last revision that waits for the reader; 0 without one.
func (q *queue) reached() int64 {
	if len(q.list) == 0 {
		return 0
	}
	return q.list[len(q.list)-1].revision
}

func (q *queue) pop() {
	q.bytes -= q.list[0].bytes
	q.list[0] = waitingBatch{} // for the garbage collector
	q.list = q.list[1:]
}

// batch translates events of one revision.
func (w *Watcher) batch(revision int64, events []*clientv3.Event) Batch {
	b := Batch{Revision: revision}
	for _, e := range events {
		if !keeps(string(e.Kv.Key[len(w.store.prefix):])) {
			b.Events = append(b.Events, w.event(e))
		}
	}
	b.Progress = len(b.Events) == 0
	return b
}

func (w *Watcher) event(e *clientv3.Event) Event {
	var event Event
	if e.PrevKv != nil {
		if previous := w.store.record(e.PrevKv); previous.Damage == nil {
			event.Previous = previous.Value
		}
	}
	if e.Type == clientv3.EventTypeDelete {
		event.Deleted = true
		event.Record = Record{Key: string(e.Kv.Key[len(w.store.prefix):]), Revision: e.Kv.ModRevision}
		return event
	}
	event.Record = w.store.record(e.Kv)
	return event
}
