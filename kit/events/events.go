// Package events tells people what happened to an object. Events are aggregated (the same word about the same object counts
// up), limited per object, and lost rather than late: they never hold up the work that they tell of, and are never part of
// another write. Each service keeps and serves its own.
package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"buf.build/go/protovalidate"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
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
	perObject    = 50              // different events that one object may have in perObjectSpan
	perObjectFor = 10 * time.Minute
)

// Recorder writes a service's events. Its methods may be called concurrently and return at once.
type Recorder struct {
	component string
	table     *resource.Table[*eventv1.Event]
	queue     chan event
	log       *slog.Logger
	now       func() time.Time
	budgets   map[string]*budget // by object; only Run's goroutine touches it
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

// New returns the recorder of a service; component is the service's name. Nothing is written before Run.
func New(component string, st *store.Store, validator protovalidate.Validator, log *slog.Logger) *Recorder {
	return &Recorder{
		component: component, log: log, now: time.Now,
		table:   resource.NewTable(st, validator, resource.Config[*eventv1.Event]{KeepStatus: true, Log: log}),
		queue:   make(chan event, queueSize),
		budgets: map[string]*budget{},
	}
}

// Register serves the recorded events.
func (r *Recorder) Register(s grpc.ServiceRegistrar) error {
	return resource.Register(s, &eventv1.EventService_ServiceDesc, nil, r.table)
}

// Event records that something happened to an object. reason is one CamelCase word, message is for people.
func (r *Recorder) Event(obj resource.Object, typ, reason, message string) {
	select {
	case r.queue <- event{object: resource.Reference(obj), typ: typ, reason: reason, message: message, trace: trace.ID(obj.GetMetadata()), at: r.now()}:
	default:
		r.log.Debug("event dropped", "reason", reason, "object", obj.GetMetadata().GetName())
	}
}

// Eventf is Event with a message made by fmt.Sprintf.
func (r *Recorder) Eventf(obj resource.Object, typ, reason, format string, args ...any) {
	r.Event(obj, typ, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx ends. What is queued then is lost.
func (r *Recorder) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- r.table.Run(ctx) }()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case e := <-r.queue:
			if err := r.write(ctx, e); err != nil && ctx.Err() == nil {
				r.log.DebugContext(ctx, "event not written", "reason", e.reason, "error", err)
			}
		case <-sweep.C:
			r.sweep(ctx)
		case err := <-done:
			return err
		}
	}
}

// write counts an event up, or creates it.
func (r *Recorder) write(ctx context.Context, e event) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // lossy, never stuck
	defer cancel()
	if err := r.table.WaitSynced(ctx); err != nil {
		return err
	}
	namespace := e.object.GetNamespace()
	if namespace == "" {
		namespace = "default"
	}
	name := eventName(e, r.component)
	if !r.allowed(e, name) {
		return nil
	}
	at := &timestamppb.Timestamp{Seconds: e.at.Unix()}
	key := resource.Key{Namespace: namespace, Name: name}
	_, err := r.table.Modify(ctx, key, func(have *eventv1.Event) error {
		have.Count++
		have.LastTimestamp = at
		return nil
	})
	if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return err
	}
	meta := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	if e.trace != "" {
		meta.Annotations = map[string]string{trace.EventAnnotation: e.trace}
	}
	_, err = r.table.Create(ctx, &eventv1.Event{
		Metadata:       meta,
		InvolvedObject: e.object, Reason: e.reason, Message: e.message, Type: e.typ,
		Source:         &eventv1.EventSource{Component: r.component},
		FirstTimestamp: at, LastTimestamp: at, Count: 1, ReportingComponent: r.component,
	})
	return err
}

// eventName is the same for the same word about the same object, which is what makes events count up.
func eventName(e event, component string) string {
	sum := sha256.Sum256([]byte(e.object.GetUid() + "\x00" + e.object.GetKind() + "\x00" + e.typ + "\x00" + e.reason + "\x00" + e.message + "\x00" + component))
	name := e.object.GetName()
	return name[:min(len(name), 200)] + "." + hex.EncodeToString(sum[:8])
}

// allowed reports whether an object may have one more different event now.
func (r *Recorder) allowed(e event, name string) bool {
	id := e.object.GetUid() + e.object.GetKind() + e.object.GetName()
	b := r.budgets[id]
	if b == nil || e.at.Sub(b.since) > perObjectFor {
		b = &budget{since: e.at, used: map[string]bool{}}
		r.budgets[id] = b
	}
	if !b.used[name] && len(b.used) >= perObject {
		return false
	}
	b.used[name] = true
	return true
}

// sweep removes events and budgets that are too old.
func (r *Recorder) sweep(ctx context.Context) {
	now := r.now()
	for id, b := range r.budgets {
		if now.Sub(b.since) > perObjectFor {
			delete(r.budgets, id)
		}
	}
	for _, e := range r.table.All() {
		if now.Sub(e.GetLastTimestamp().AsTime()) <= keepFor {
			continue
		}
		m := e.GetMetadata()
		if _, err := r.table.Delete(ctx, m.GetNamespace(), m.GetName(), nil); err != nil && ctx.Err() == nil {
			r.log.DebugContext(ctx, "old event not removed", "error", err)
		}
	}
}
