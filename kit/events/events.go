// Package events records for users what happened to an object. Events are counted in memory and written in batches, at
// most once in ten seconds per reason and object. They are limited per object and best effort: recording never blocks
// the work, and is never part of another write. Each service keeps and serves its own.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Types of events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

const (
	queueSize    = 1024            // events that wait to be written; more are dropped
	keepFor      = time.Hour       // as Kubernetes keeps them
	sweepEvery   = 5 * time.Minute // old events may stay this much longer
	perReason    = 25              // different events of one type and reason that an object may have in perReasonFor
	perReasonFor = 10 * time.Minute

	writeEvery  = 10 * time.Second      // for one reason and object
	gatherFor   = 50 * time.Millisecond // events that come together are written together
	waitingMost = 16384                 // different events that wait to be written; more are dropped
	lookEvery   = 5 * time.Second       // for records that cannot be read
	writeLimit  = 5 * time.Second       // lossy, never stuck
)

// Recorder writes a service's events. Its methods may be called concurrently and return at once.
type Recorder struct {
	component string
	table     *resource.Table[*eventv1.Event]
	queue     chan event
	log       *slog.Logger
	now       func() time.Time

	// Only Run's goroutine touches these.
	budgets map[word]*budget
	windows map[word]*window
	waiting int              // events in all windows
	told    map[string]int64 // revisions of the unreadable records that an event was recorded of
	st      *store.Store
}

// word is what an object's events of one reason have in common.
type word struct{ object, typ, reason string }

// window holds back the events of a word that was written lately.
type window struct {
	until   time.Time
	waiting map[string]*counted // by the name of the event
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
		queue:   make(chan event, queueSize),
		budgets: map[word]*budget{}, windows: map[word]*window{}, told: map[string]int64{}, st: st,
	}
}

// Register serves the recorded events.
func (r *Recorder) Register(s grpc.ServiceRegistrar) error {
	return resource.Register(s, &eventv1.EventService_ServiceDesc, nil, r.table)
}

// Event records that something happened to an object. reason is one CamelCase word, message is for people.
func (r *Recorder) Event(obj object.Object, typ, reason, message string) {
	r.record(event{
		object: object.Reference(obj), typ: typ, reason: reason, message: message,
		trace: trace.ID(obj.GetMetadata()), at: r.now(),
	})
}

func (r *Recorder) record(e event) {
	select {
	case r.queue <- e:
	default:
		r.log.Debug("event dropped", "reason", e.reason, "object", e.object.GetName())
	}
}

// Eventf is Event with a message made by fmt.Sprintf.
func (r *Recorder) Eventf(obj object.Object, typ, reason, format string, args ...any) {
	r.Event(obj, typ, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx ends. What is queued then is lost.
func (r *Recorder) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- r.table.Run(ctx) }()
	sweep, look := time.NewTicker(sweepEvery), time.NewTicker(lookEvery)
	defer sweep.Stop()
	defer look.Stop()
	flush := time.NewTimer(gatherFor)
	defer flush.Stop()
	at := time.Now().Add(gatherFor) // of the next flush
	for {
		select {
		case e := <-r.queue:
			r.take(e)
			for more := true; more; {
				select {
				case e := <-r.queue:
					r.take(e)
				default:
					more = false
				}
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
		case <-sweep.C:
			r.sweep(ctx)
		case err := <-done:
			return err
		}
	}
}

// take counts an event.
func (r *Recorder) take(e event) {
	name := eventName(e, r.component)
	w := word{object: e.object.GetUid() + "/" + e.object.GetKind() + "/" + e.object.GetNamespace() + "/" +
		e.object.GetName(), typ: e.typ, reason: e.reason}
	if !r.allowed(w, e.at, name) {
		return
	}
	win := r.windows[w]
	if win == nil {
		win = &window{waiting: map[string]*counted{}}
		r.windows[w] = win
	}
	c := win.waiting[name]
	if c == nil {
		if r.waiting >= waitingMost {
			return
		}
		c = &counted{event: e}
		win.waiting[name] = c
		r.waiting++
	}
	c.last = e.at
	c.count++
}

// wait returns how long it is until something may be written.
func (r *Recorder) wait() time.Duration {
	now := r.now()
	wait := writeEvery
	for _, win := range r.windows {
		if len(win.waiting) > 0 {
			wait = min(wait, win.until.Sub(now))
		}
	}
	return max(wait, gatherFor)
}

// flush writes what has waited long enough, and forgets windows in which nothing waits.
func (r *Recorder) flush(ctx context.Context) {
	now := r.now()
	due := map[object.Key]*counted{}
	for w, win := range r.windows {
		if now.Before(win.until) {
			continue
		}
		if len(win.waiting) == 0 {
			delete(r.windows, w)
			continue
		}
		for name, c := range win.waiting {
			due[object.Key{Namespace: namespaceOf(c.object), Name: name}] = c
		}
		r.waiting -= len(win.waiting)
		win.waiting, win.until = map[string]*counted{}, now.Add(writeEvery)
	}
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := r.write(ctx, due); err != nil {
		r.log.DebugContext(ctx, "events not written", "error", err)
	}
}

// write counts the events up that are there, and creates the others, many in a transaction.
func (r *Recorder) write(ctx context.Context, due map[object.Key]*counted) error {
	if err := r.table.WaitSynced(ctx); err != nil {
		return err
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
			Source:         &eventv1.EventSource{Component: r.component},
			FirstTimestamp: seconds(c.at), LastTimestamp: seconds(c.last), Count: c.count, ReportingComponent: r.component,
			EventTime: c.moment(),
		})
	}
	slices.SortFunc(fresh, func(a, b *eventv1.Event) int {
		return due[object.KeyOf(a)].at.Compare(due[object.KeyOf(b)].at)
	})
	var errs []error
	for i, w := range r.table.CreateAll(ctx, fresh) {
		if rpcerr.Reason(w.Err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			known = append(known, object.KeyOf(fresh[i]))
			continue
		}
		errs = append(errs, w.Err)
	}
	for _, w := range r.table.ModifyAll(ctx, known, func(have *eventv1.Event) error {
		c := due[object.KeyOf(have)]
		have.Count += c.count
		have.EventTime = ""
		have.LastTimestamp = seconds(c.last)
		return nil
	}) {
		errs = append(errs, w.Err)
	}
	return errors.Join(errs...)
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
			at: r.now(),
		})
	}
}

// namespaceOf is where the events of an object are.
func namespaceOf(o *metav1.ObjectReference) string {
	return cmp.Or(o.GetNamespace(), "default")
}

func seconds(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

// eventName is the same for the same word about the same object, which is what makes events count up.
func eventName(e event, component string) string {
	sum := sha256.Sum256([]byte(e.object.GetUid() + "\x00" + e.object.GetKind() + "\x00" + e.typ + "\x00" + e.reason +
		"\x00" + e.message + "\x00" + component))
	name := e.object.GetName()
	return name[:min(len(name), 200)] + "." + hex.EncodeToString(sum[:8])
}

// allowed reports whether there may be one more different event of a word now. Each reason has a budget of its own, so
// one that occurs with many messages leaves room for the others, and events of type Normal for warnings.
func (r *Recorder) allowed(w word, at time.Time, name string) bool {
	b := r.budgets[w]
	if b == nil || at.Sub(b.since) > perReasonFor {
		b = &budget{since: at, used: map[string]bool{}}
		r.budgets[w] = b
	}
	if !b.used[name] && len(b.used) >= perReason {
		return false
	}
	b.used[name] = true
	return true
}

// sweep removes events and budgets that are too old.
func (r *Recorder) sweep(ctx context.Context) {
	now := r.now()
	for w, b := range r.budgets {
		if now.Sub(b.since) > perReasonFor {
			delete(r.budgets, w)
		}
	}
	for e := range r.table.Objects() {
		if now.Sub(e.GetLastTimestamp().AsTime()) <= keepFor {
			continue
		}
		m := e.GetMetadata()
		if _, err := r.table.Delete(ctx, m.GetNamespace(), m.GetName(), nil); err != nil && ctx.Err() == nil {
			r.log.DebugContext(ctx, "old event not removed", "error", err)
		}
	}
}
