// Package events records for users what happened to an object. Events are counted in memory and written in batches, at
// most once in ten seconds per reason and object. They are limited per object and best effort: recording never blocks
// the work, and is never part of another write. What is lost is counted. Each service keeps and serves its own.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Types of events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

const (
	queueMost    = 16384           // events that were recorded and not counted yet; more are dropped
	keepFor      = time.Hour       // as Kubernetes keeps them
	sweepEvery   = 5 * time.Minute // old events may stay this much longer
	sweepAtOnce  = 8               // old events that are removed concurrently
	perReason    = 25              // different events of one type and reason that an object may have in perReasonFor
	perReasonFor = 10 * time.Minute

	writeEvery  = 10 * time.Second      // for one reason and object
	gatherFor   = 50 * time.Millisecond // events that come together are written together
	waitingMost = 16384                 // different events that wait to be written; as many are being written
	wordsMost   = 32768                 // words of which it is known what was written lately; then all are forgotten
	lookEvery   = 5 * time.Second       // for records that cannot be read
	writeLimit  = 5 * time.Second       // lossy, never stuck
	logEvery    = time.Minute           // that events are lost
)

// Recorder writes a service's events. Its methods may be called concurrently and return at once.
type Recorder struct {
	component string
	table     *resource.Table[*eventv1.Event]
	queue     queue
	lost      [causes]atomic.Int64
	log       *slog.Logger
	now       func() time.Time

	// Only Run's goroutine touches these.
	budgets map[word]*budget
	windows map[word]*window
	pending map[word]*window // those in which something waits
	due     time.Time        // when the first of pending may be written; later if pending is empty
	forgot  time.Time        // when windows in which nothing waits were last dropped
	waiting int              // events in all windows
	writing chan struct{}    // closed when the last write has ended; nil before the first
	told    map[string]int64 // revisions of the unreadable records that an event was recorded of
	logged  time.Time        // when it was last logged that events are lost
	logLost int64            // how many there were then
	st      *store.Store
}

// word is what an object's events of one reason have in common.
type word struct{ object, typ, reason string }

// window holds back the events of a word that was written lately.
type window struct {
	until   time.Time
	waiting map[string]*counted // by the name of the event; nil while there is none
}

// counted is an event that happened count times since it was written last.
type counted struct {
	event
	last  time.Time
	count int32
}

type event struct {
	object               *metav1.ObjectReference
	typ, reason, message string
	component            string // who reports it
	trace                string // id of the trace that the object is in, empty if it is in none
	at                   time.Time
}

type budget struct {
	since time.Time
	used  map[string]bool // names of the events in the present span
}

// Sink takes what happened to objects, for people; Recorder is one. reason is one CamelCase word.
type Sink interface {
	Event(obj object.Object, typ, reason, message string)
}

// New returns the recorder of a service; component is the service's name. Nothing is written before Run.
func New(component string, st *store.Store, validator protovalidate.Validator, log *slog.Logger) *Recorder {
	return &Recorder{
		component: component, log: log, now: time.Now,
		table:   resource.NewTable(st, validator, resource.Config[*eventv1.Event]{KeepStatus: true, Log: log}),
		queue:   queue{more: make(chan struct{}, 1)},
		budgets: map[word]*budget{}, windows: map[word]*window{}, pending: map[word]*window{},
		told: map[string]int64{}, st: st,
	}
}

// Register serves the recorded events.
func (r *Recorder) Register(s grpc.ServiceRegistrar) error {
	return resource.Register(s, &eventv1.EventService_ServiceDesc, nil, r.table)
}

// Event records that something happened to an object. reason is one CamelCase word, message is for people.
func (r *Recorder) Event(obj object.Object, typ, reason, message string) {
	reporter{r, r.component}.Event(obj, typ, reason, message)
}

// From returns a sink for events that name another reporter than the service of s, such as the user who bound a pod.
func From(s Sink, component string) Sink {
	if r, ok := s.(*Recorder); ok && component != "" {
		return reporter{r, component}
	}
	return s
}

// reporter records events in the name of a component.
type reporter struct {
	*Recorder
	component string
}

func (r reporter) Event(obj object.Object, typ, reason, message string) {
	r.record(event{
		object: object.Reference(obj), typ: typ, reason: reason, message: message, component: r.component,
		trace: trace.ID(obj.GetMetadata()), at: r.now(),
	})
}

func (r *Recorder) record(e event) {
	if !r.queue.add(e) {
		r.lost[overload].Add(1)
	}
}

// queue holds the events that Run has not taken yet. It is safe for concurrent use.
type queue struct {
	more chan struct{} // receives once there is an event

	mu     sync.Mutex
	events []event
}

// add reports whether there was room.
func (q *queue) add(e event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= queueMost {
		return false
	}
	q.events = append(q.events, e)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true
}

func (q *queue) take() []event {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.events
	q.events = nil
	return out
}

// cause is why events are lost.
type cause int

const (
	overload  cause = iota // more than the recorder holds
	limited                // more different ones of one reason and object than are kept
	unwritten              // etcd did not take them
	causes
)

func (c cause) String() string { return [causes]string{"overload", "limit", "unwritten"}[c] }

var descLost = prometheus.NewDesc("windlass_events_lost_total",
	"Events that were not stored: because too many waited (overload), an object had too many of one reason (limit), or "+
		"etcd did not take them (unwritten).", []string{"cause"}, nil)

// Describe and Collect make the recorder a prometheus.Collector.
func (r *Recorder) Describe(out chan<- *prometheus.Desc) { out <- descLost }

// Collect sends how many events were lost.
func (r *Recorder) Collect(out chan<- prometheus.Metric) {
	for c := range causes {
		out <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(r.lost[c].Load()), c.String())
	}
}

// reportLost logs that events are lost, at most once a minute. Those beyond the limit of an object are as documented.
func (r *Recorder) reportLost() {
	lost := r.lost[overload].Load() + r.lost[unwritten].Load()
	if now := r.now(); lost > r.logLost && now.Sub(r.logged) >= logEvery {
		r.log.Warn("events were lost", "count", lost-r.logLost, "total", lost)
		r.logged, r.logLost = now, lost
	}
}

// Eventf is Event with a message made by fmt.Sprintf.
func (r *Recorder) Eventf(obj object.Object, typ, reason, format string, args ...any) {
	r.Event(obj, typ, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx ends. What is queued then is lost. Events are taken while others are written: a write may
// take longer than the queue lasts.
func (r *Recorder) Run(ctx context.Context) error {
	defer r.wrote()
	done := make(chan error, 1)
	go func() {
		var group errgroup.Group
		group.Go(func() error { return r.table.Run(ctx) })
		group.Go(func() error { r.sweepAll(ctx); return nil })
		done <- group.Wait()
	}()
	sweep, look := time.NewTicker(sweepEvery), time.NewTicker(lookEvery)
	defer sweep.Stop()
	defer look.Stop()
	flush := time.NewTimer(gatherFor)
	defer flush.Stop()
	at := time.Now().Add(gatherFor) // of the next flush
	for {
		select {
		case <-r.queue.more:
			for _, e := range r.queue.take() {
				r.take(e)
			}
			// Never later than before: events may come without a pause.
			if next := time.Now().Add(r.wait()); next.Before(at) {
				at = next
				flush.Reset(time.Until(at))
			}
		case <-flush.C:
			r.flush(ctx)
			at = time.Now().Add(r.wait())
			flush.Reset(time.Until(at))
		case <-look.C:
			r.unreadable()
			r.reportLost()
		case <-sweep.C:
			r.forget()
		case err := <-done:
			return err
		}
	}
}

// take counts an event.
func (r *Recorder) take(e event) {
	name := eventName(e)
	w := word{object: e.object.GetUid() + "/" + e.object.GetKind() + "/" + e.object.GetNamespace() + "/" +
		e.object.GetName(), typ: e.typ, reason: e.reason}
	if !r.allowed(w, e.at, name) {
		r.lost[limited].Add(1)
		return
	}
	win := r.windows[w]
	if win == nil {
		if len(r.windows) >= wordsMost {
			r.dropQuiet(func(*window) bool { return true })
		}
		win = &window{}
		r.windows[w] = win
	}
	c := win.waiting[name]
	if c == nil {
		if r.waiting >= waitingMost {
			r.lost[overload].Add(1)
			return
		}
		c = &counted{event: e}
		if win.waiting == nil {
			win.waiting = map[string]*counted{}
			if r.pending[w] = win; len(r.pending) == 1 || win.until.Before(r.due) {
				r.due = win.until
			}
		}
		win.waiting[name] = c
		r.waiting++
	}
	c.last = e.at
	c.count++
}

// wait returns how long it is until something may be written.
func (r *Recorder) wait() time.Duration {
	if len(r.pending) == 0 {
		return writeEvery
	}
	return min(max(r.due.Sub(r.now()), gatherFor), writeEvery)
}

// wrote waits until the last write has ended.
func (r *Recorder) wrote() {
	if r.writing != nil {
		<-r.writing
	}
}

// flush begins to write what has waited long enough, and forgets windows in which nothing waits. It does nothing while
// it still writes.
func (r *Recorder) flush(ctx context.Context) {
	select {
	case <-r.writing:
	default:
		if r.writing != nil {
			return
		}
	}
	now := r.now()
	due := map[object.Key]*counted{}
	r.due = now.Add(writeEvery)
	for w, win := range r.pending {
		if now.Before(win.until) {
			if win.until.Before(r.due) {
				r.due = win.until
			}
			continue
		}
		for name, c := range win.waiting {
			due[object.Key{Namespace: namespaceOf(c.object), Name: name}] = c
		}
		r.waiting -= len(win.waiting)
		win.waiting, win.until = nil, now.Add(writeEvery)
		delete(r.pending, w)
	}
	if now.Sub(r.forgot) >= writeEvery {
		r.dropQuiet(func(win *window) bool { return !now.Before(win.until) })
		r.forgot = now
	}
	if len(due) == 0 {
		return
	}
	writing := make(chan struct{})
	r.writing = writing
	go func() {
		defer close(writing)
		ctx, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()
		if lost, err := r.write(ctx, due); err != nil {
			r.lost[unwritten].Add(lost)
			r.log.DebugContext(ctx, "events not written", "count", lost, "error", err)
		}
	}()
}

// dropQuiet forgets windows in which nothing waits.
func (r *Recorder) dropQuiet(which func(*window) bool) {
	maps.DeleteFunc(r.windows, func(_ word, win *window) bool { return win.waiting == nil && which(win) })
}

// write counts the events up that are there, and creates the others, many in a transaction. It returns how many were
// lost, and the error of one of them. It reads nothing of r that changes.
func (r *Recorder) write(ctx context.Context, due map[object.Key]*counted) (lost int64, err error) {
	if err := r.table.WaitSynced(ctx); err != nil {
		for _, c := range due {
			lost += int64(c.count)
		}
		return lost, err
	}
	var known []object.Key
	var fresh []*eventv1.Event
	for key, c := range due {
		if _, ok := r.table.Lookup(key.Namespace, key.Name); ok {
			known = append(known, key)
			continue
		}
		meta := &metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
		if c.trace != "" {
			meta.Annotations = map[string]string{trace.EventAnnotation: c.trace}
		}
		fresh = append(fresh, &eventv1.Event{
			Metadata:       meta,
			InvolvedObject: c.object, Reason: c.reason, Message: c.message, Type: c.typ,
			Source:         &eventv1.EventSource{Component: c.component},
			FirstTimestamp: seconds(c.at), LastTimestamp: seconds(c.last), Count: c.count, ReportingComponent: c.component,
			EventTime: c.moment(),
		})
	}
	slices.SortFunc(fresh, func(a, b *eventv1.Event) int {
		return due[object.KeyOf(a)].at.Compare(due[object.KeyOf(b)].at)
	})
	note := func(key object.Key, failed error) {
		if failed != nil {
			lost += int64(due[key].count)
			err = failed
		}
	}
	for i, w := range r.table.CreateAll(ctx, fresh) {
		if rpcerr.Reason(w.Err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			known = append(known, object.KeyOf(fresh[i]))
			continue
		}
		note(object.KeyOf(fresh[i]), w.Err)
	}
	for i, w := range r.table.ModifyAll(ctx, known, func(have *eventv1.Event) error {
		c := due[object.KeyOf(have)]
		have.Count += c.count
		have.EventTime = ""
		have.LastTimestamp = seconds(c.last)
		return nil
	}) {
		note(known[i], w.Err)
	}
	return lost, err
}

// moment returns when an event happened that happened once, in the format of Kubernetes' micro times; else nothing. It
// orders events that were written together, which have one revision.
func (c *counted) moment() string {
	if c.count > 1 {
		return ""
	}
	return c.at.UTC().Format("2006-01-02T15:04:05.000000Z07:00")
}

// unreadable records an event for each record that cannot be read.
func (r *Recorder) unreadable() {
	for _, u := range r.st.Unreadable() {
		if r.told[u.Key] == u.Revision {
			continue
		}
		r.told[u.Key] = u.Revision
		r.record(event{
			object: &metav1.ObjectReference{ApiVersion: u.APIVersion, Kind: u.Kind, Namespace: u.Namespace, Name: u.Name},
			typ:    Warning, reason: "UnreadableRecord", message: "The record cannot be read and is skipped: " + u.Err,
			at: r.now(), component: r.component,
		})
	}
}

// namespaceOf is where the events of an object are.
func namespaceOf(o *metav1.ObjectReference) string {
	return cmp.Or(o.GetNamespace(), "default")
}

func seconds(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

// eventName is the same for the same word about the same object, which is what makes events count up.
func eventName(e event) string {
	sum := sha256.Sum256([]byte(e.object.GetUid() + "\x00" + e.object.GetKind() + "\x00" + e.typ + "\x00" + e.reason +
		"\x00" + e.message + "\x00" + e.component))
	name := e.object.GetName()
	return name[:min(len(name), 200)] + "." + hex.EncodeToString(sum[:8])
}

// allowed reports whether there may be one more different event of a word now. Each reason has a budget of its own, so
// one that occurs with many messages leaves room for the others, and events of type Normal for warnings.
func (r *Recorder) allowed(w word, at time.Time, name string) bool {
	b := r.budgets[w]
	if b == nil || at.Sub(b.since) > perReasonFor {
		if b == nil && len(r.budgets) >= wordsMost {
			clear(r.budgets)
		}
		b = &budget{since: at, used: map[string]bool{}}
		r.budgets[w] = b
	}
	if !b.used[name] && len(b.used) >= perReason {
		return false
	}
	b.used[name] = true
	return true
}

// forget drops budgets that are too old.
func (r *Recorder) forget() {
	now := r.now()
	for w, b := range r.budgets {
		if now.Sub(b.since) > perReasonFor {
			delete(r.budgets, w)
		}
	}
}

// sweepAll sweeps until ctx ends. To remove the events of a burst takes longer than new ones may wait.
func (r *Recorder) sweepAll(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// sweep removes events that are too old.
func (r *Recorder) sweep(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(sweepAtOnce)
	for _, e := range r.old() {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := r.remove(ctx, e); err != nil && ctx.Err() == nil {
				r.log.DebugContext(ctx, "old event not removed", "error", err)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// old returns the events that are too old.
func (r *Recorder) old() []*eventv1.Event {
	now := r.now()
	return slices.DeleteFunc(r.table.All(), func(e *eventv1.Event) bool {
		return now.Sub(e.GetLastTimestamp().AsTime()) <= keepFor
	})
}

// remove removes an event, unless it has occurred again: events are written while others are removed.
func (r *Recorder) remove(ctx context.Context, e *eventv1.Event) error {
	m := e.GetMetadata()
	_, err := r.table.Delete(ctx, m.GetNamespace(), m.GetName(), &metav1.Preconditions{
		Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
	})
	return rpcerr.IgnoreChanged(err)
}
