package resource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Types of the events of a watch.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
)

// bookmarkEvery is how often a watch with bookmarks receives its revision: often enough that the revision of a client
// that resumes is rarely compacted, seldom enough to cost nothing.
const bookmarkEvery = 30 * time.Second

const (
	// bridgeBytes bounds the history that is kept for a watch that resumes from before the cache's ring.
	bridgeBytes = 8 << 20
	// messageBytes and messageEvents bound one message of a watch: gRPC clients accept 4 MiB by default.
	messageBytes  = 3 << 20
	messageEvents = 500
)

var errTooOld = rpcerr.Expired("the revision to watch from is no longer available: list again")

// Event is one change as a watch with a selection sees it.
type Event[T object.Object] struct {
	Type   string
	Object T
	shared *shared // nil if only one watch sends it
}

// shared is an encoded event, made once for all watches of the kind.
type shared struct {
	once  sync.Once
	bytes []byte
	err   error
}

// Events is one message of a watch.
type Events[T object.Object] struct {
	Events   []Event[T]
	Revision int64 // all changes up to here have been sent
	Bookmark bool
}

// Watching sends a kind's changes after a revision, or all objects first if after is 0, until ctx ends or send fails.
// All events of a revision are sent together, in several messages if they are too large for one. The first bookmark
// comes when everything was sent that was written before the call. The error is rpcerr.Expired if the revision is no
// longer available, or if send was too slow.
func (t *Table[T]) Watching(ctx context.Context, namespace string, sel Selection, after int64, bookmarks bool,
	send func(Events[T]) error,
) error {
	if err := t.WaitSynced(ctx); err != nil {
		return err
	}
	want := func(o T) bool {
		return (namespace == "" || o.GetMetadata().GetNamespace() == namespace) && sel.Matches(o)
	}
	of := t.interestOf(namespace, sel)
	resumes := after > 0
	if !resumes || bookmarks {
		if err := t.CatchUp(ctx); err != nil {
			return err
		}
	}
	if !resumes {
		objects, v := t.snapshot(namespace, of)
		if err := sendAll(objects, v.revision, want, send); err != nil {
			return err
		}
		after = v.revision
	}
	f, known := t.newFeed(of, after)
	if !known {
		// The ring no longer has the revision (the process is new, or the watch was interrupted for long): the gap is read
		// from etcd's history.
		var err error
		if after, err = t.bridge(ctx, after, want, send); err != nil {
			return err
		}
		if f, known = t.newFeed(of, after); !known {
			return errTooOld
		}
	}
	defer f.close()
	return f.follow(ctx, want, bookmarks, resumes, send)
}

// sendAll sends every selected object, at a revision.
func sendAll[T object.Object](objects iter.Seq[T], revision int64, want func(T) bool,
	send func(Events[T]) error,
) error {
	all := func(yield func(Event[T]) bool) {
		for o := range objects {
			if want(o) && !yield(Event[T]{Type: Added, Object: o}) {
				return
			}
		}
	}
	if err := sendSplit(all, 0, send); err != nil {
		return err
	}
	return send(Events[T]{Revision: revision, Bookmark: true})
}

// follow sends the changes of a feed until ctx ends. If there are bookmarks, the first one comes at once if first is
// set.
func (f *feed[T]) follow(ctx context.Context, want func(T) bool, bookmarks, first bool,
	send func(Events[T]) error,
) error {
	var due <-chan time.Time
	if bookmarks {
		ticker := time.NewTicker(bookmarkEvery)
		defer ticker.Stop()
		due = ticker.C
	}
	for bookmark := bookmarks && first; ; {
		portions, upTo, complete := f.take()
		if !complete {
			return errTooOld
		}
		for _, p := range portions {
			if err := p.send(want, send); err != nil {
				return err
			}
		}
		if bookmark {
			if err := send(Events[T]{Revision: upTo, Bookmark: true}); err != nil {
				return err
			}
		}
		select {
		case <-f.ready:
			bookmark = false
		case <-due:
			bookmark = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// bridge sends the changes from a revision up to the cache's revision, and returns the revision that it reached. It
// needs each object as it was before a change, to know whether the watch selected it; the cache has only newer states.
func (t *Table[T]) bridge(ctx context.Context, after int64, want func(T) bool, send func(Events[T]) error) (int64,
	error,
) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	goal := t.Revision()
	w := t.st.WatchWithin(ctx, t.prefix(), after, bridgeBytes)
	for b := range w.Batches() {
		if slices.ContainsFunc(b.Events, forgotten) {
			return 0, errTooOld
		}
		if err := whole(newStep(b.Revision, t.changes(b, ignore))).send(want, send); err != nil {
			return 0, err
		}
		after = b.Revision
		if after >= goal {
			return after, nil
		}
	}
	if errors.Is(w.Err(), store.ErrCompacted) || errors.Is(w.Err(), store.ErrBehind) {
		return 0, errTooOld
	}
	return 0, w.Err()
}

// forgotten reports whether an event does not show the record as it was before: etcd may have compacted that since.
func forgotten(e store.Event) bool {
	return e.Previous == nil && (e.Deleted || e.Record.CreateRevision < e.Record.Revision)
}

// send sends changes of one revision, filtered by a selection.
func (p portion[T]) send(want func(T) bool, send func(Events[T]) error) error {
	events := func(yield func(Event[T]) bool) {
		for _, i := range p.of {
			if e, ok := p.event(i, want); ok && !yield(*e) {
				return
			}
		}
	}
	return sendSplit(events, p.revision, send)
}

// sendSplit sends events in messages within gRPC's limit. Only the last one has the revision: a client that did not
// receive it resumes before it.
func sendSplit[T object.Object](events iter.Seq[Event[T]], revision int64, send func(Events[T]) error) error {
	var part []Event[T]
	size := 0
	for event := range events {
		n := proto.Size(event.Object)
		if len(part) == messageEvents || len(part) > 0 && size+n > messageBytes {
			if err := send(Events[T]{Events: part}); err != nil {
				return err
			}
			part, size = nil, 0
		}
		part, size = append(part, event), size+n
	}
	if len(part) == 0 {
		return nil
	}
	return send(Events[T]{Events: part, Revision: revision})
}

// watchMethod is the Watch method of the kind's gRPC service.
func (s server[T]) watchMethod(m protoreflect.MethodDescriptor) grpc.StreamDesc {
	return grpc.StreamDesc{
		StreamName:    string(m.Name()),
		ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			req := NewMessage(m.Input())
			if err := stream.RecvMsg(req); err != nil {
				return err
			}
			return s.watch(stream.Context(), m, request{req.ProtoReflect()}, func(m proto.Message) error {
				return stream.SendMsg(m)
			})
		},
	}
}

// watch sends the messages of a Watch method.
func (s server[T]) watch(ctx context.Context, m protoreflect.MethodDescriptor, r request,
	send func(proto.Message) error,
) error {
	sel, err := ParseSelection(r.text("label_selector"), r.text("field_selector"))
	if err != nil {
		return err
	}
	after, err := ParseRevision(r.text("resource_version"))
	if err != nil {
		return err
	}
	frame := NewFrame(m.Output())
	return s.t.Watching(ctx, r.text("namespace"), sel, after, r.flag("allow_watch_bookmarks"), func(e Events[T]) error {
		for i, event := range e.Events {
			if o := s.shown(event.Object); any(o) != any(event.Object) {
				e.Events[i].Object, e.Events[i].shared = o, nil
			}
		}
		m, err := frameMessage(frame, e)
		if err != nil {
			return err
		}
		return send(m)
	})
}

// protoEvent is an event that was read.
type protoEvent struct {
	typ    string
	object proto.Message
}

// Frame builds and reads the messages of a Watch method, whose fields have the same names for every kind.
type Frame struct {
	out                        protoreflect.MessageDescriptor
	events, revision, bookmark protoreflect.FieldDescriptor
	typ, object                protoreflect.FieldDescriptor
}

// NewFrame returns the Frame of a Watch method's response message.
func NewFrame(out protoreflect.MessageDescriptor) Frame {
	f := Frame{
		out: out, events: out.Fields().ByName("events"), revision: out.Fields().ByName("resource_version"),
		bookmark: out.Fields().ByName("bookmark"),
	}
	f.typ, f.object = f.events.Message().Fields().ByName("type"), f.events.Message().Fields().ByName("object")
	return f
}

// frameMessage returns the message of events. It contains the events as encoded bytes in its unknown fields: a change
// is encoded once for all watches.
func frameMessage[T object.Object](f Frame, e Events[T]) (proto.Message, error) {
	m := NewMessage(f.out).ProtoReflect()
	var raw []byte
	for _, ev := range e.Events {
		if ev.shared == nil {
			var err error
			if raw, err = f.appendEvent(raw, ev.Type, ev.Object); err != nil {
				return nil, err
			}
			continue
		}
		ev.shared.once.Do(func() { ev.shared.bytes, ev.shared.err = f.appendEvent(nil, ev.Type, ev.Object) })
		if ev.shared.err != nil {
			return nil, ev.shared.err
		}
		raw = append(raw, ev.shared.bytes...)
	}
	m.SetUnknown(raw)
	if e.Revision > 0 {
		m.Set(f.revision, protoreflect.ValueOfString(FormatRevision(e.Revision)))
	}
	m.Set(f.bookmark, protoreflect.ValueOfBool(e.Bookmark))
	return m.Interface(), nil
}

// appendEvent appends an element of the events field in the wire format.
func (f Frame) appendEvent(raw []byte, typ string, object proto.Message) ([]byte, error) {
	size := proto.Size(object)
	raw = protowire.AppendTag(raw, f.events.Number(), protowire.BytesType)
	raw = protowire.AppendVarint(raw, uint64(protowire.SizeTag(f.typ.Number())+protowire.SizeBytes(len(typ))+
		protowire.SizeTag(f.object.Number())+protowire.SizeBytes(size)))
	raw = protowire.AppendTag(raw, f.typ.Number(), protowire.BytesType)
	raw = protowire.AppendString(raw, typ)
	raw = protowire.AppendTag(raw, f.object.Number(), protowire.BytesType)
	raw = protowire.AppendVarint(raw, uint64(size))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(raw, object)
}

// read is the inverse of frameMessage: the events of a frame, its revision, and whether it is a bookmark.
func (f Frame) read(m proto.Message) ([]protoEvent, int64, bool, error) {
	r := m.ProtoReflect()
	list := r.Get(f.events).List()
	out := make([]protoEvent, list.Len())
	for i := range out {
		e := list.Get(i).Message()
		out[i] = protoEvent{e.Get(f.typ).String(), e.Get(f.object).Message().Interface()}
	}
	revision, err := ParseRevision(r.Get(f.revision).String())
	if err != nil {
		return nil, 0, false, fmt.Errorf("watch: %w", err)
	}
	return out, revision, r.Get(f.bookmark).Bool(), nil
}

// ReadFrame returns the events of a Watch method's message, the revision up to which they are complete (0 if the
// message has none), and whether it is a bookmark.
func ReadFrame[T object.Object](f Frame, m proto.Message) ([]Event[T], int64, bool, error) {
	raw, revision, bookmark, err := f.read(m)
	if err != nil {
		return nil, 0, false, err
	}
	out := make([]Event[T], len(raw))
	for i, e := range raw {
		out[i] = Event[T]{Type: e.typ, Object: e.object.(T)}
	}
	return out, revision, bookmark, nil
}
