package resource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Types of the events of a watch.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
)

// bookmarkEvery is how often a watch that asked for it is told how far it has come: often enough that a client which resumes seldom
// finds its revision compacted, seldom enough to cost nothing.
const bookmarkEvery = 30 * time.Second

const (
	// bridgeBytes bounds the history that is kept for a watch which resumes further back than the cache remembers.
	bridgeBytes = 8 << 20
	// messageBytes and messageEvents bound one message of a watch: gRPC's clients take 4 MiB unless they ask for more.
	messageBytes  = 3 << 20
	messageEvents = 500
)

var errTooOld = rpcerr.Expired("the revision to watch from is no longer there: list again")

// Event is one change as a watch with a selection sees it.
type Event[T Object] struct {
	Type   string
	Object T
}

// Events is what a watch has to tell at once.
type Events[T Object] struct {
	Events   []Event[T]
	Revision int64 // everything up to here has been told
	Bookmark bool
}

// Watching sends a kind's changes after a revision, or all objects first if after is 0, until ctx ends or send fails. All events of a revision
// are sent together, in several messages where they are too large for one. The error is rpcerr.Expired if the revision is no longer there, or if send was too slow.
func (t *Table[T]) Watching(ctx context.Context, namespace string, sel Selection, after int64, bookmarks bool, send func(Events[T]) error) error {
	if err := t.WaitSynced(ctx); err != nil {
		return err
	}
	want := func(o T) bool {
		return (namespace == "" || o.GetMetadata().GetNamespace() == namespace) && sel.Matches(o)
	}
	if after == 0 {
		var err error
		if after, err = t.sendAll(ctx, want, send); err != nil {
			return err
		}
	}
	return t.sendChanges(ctx, after, want, bookmarks, send)
}

// sendAll sends every object as it is in etcd now and returns the revision.
func (t *Table[T]) sendAll(ctx context.Context, want func(T) bool, send func(Events[T]) error) (int64, error) {
	page, err := t.st.List(ctx, t.prefix(), store.ListOptions{})
	if err != nil {
		return 0, err
	}
	var all []Event[T]
	for _, o := range t.objects(page, ignore) {
		if want(o) {
			all = append(all, Event[T]{Added, o})
		}
	}
	if err := sendSplit(Events[T]{Events: all}, send); err != nil {
		return 0, err
	}
	return page.Revision, send(Events[T]{Revision: page.Revision, Bookmark: true})
}

func (t *Table[T]) sendChanges(ctx context.Context, after int64, want func(T) bool, bookmarks bool, send func(Events[T]) error) error {
	steps, upTo, moved, ok := t.since(after)
	if !ok {
		// The ring no longer has it (the process is new, or the watch was away for long): etcd's own history bridges the gap.
		var err error
		if after, err = t.bridge(ctx, after, want, send); err != nil {
			return err
		}
		steps, upTo, moved, ok = t.since(after)
	}
	ticker := time.NewTicker(bookmarkEvery)
	defer ticker.Stop()
	for ; ok; steps, upTo, moved, ok = t.since(after) {
		for _, s := range steps {
			if err := sendStep(s.revision, s.changes, want, send); err != nil {
				return err
			}
		}
		after = max(after, upTo)
		select {
		case <-moved:
		case <-ticker.C:
			if bookmarks {
				if err := send(Events[T]{Revision: after, Bookmark: true}); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errTooOld
}

// bridge sends what happened after a revision up to where the cache stands and returns that revision.
func (t *Table[T]) bridge(ctx context.Context, after int64, want func(T) bool, send func(Events[T]) error) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	goal := t.Revision()
	w := t.st.WatchWithin(ctx, t.prefix(), after, bridgeBytes)
	for b := range w.Batches() {
		if err := sendStep(b.Revision, t.changes(b, ignore), want, send); err != nil {
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

// sendStep sends one revision's changes as the selection sees them: an object that comes to match was added, one that no longer does
// was deleted.
func sendStep[T Object](revision int64, changes []Change[T], want func(T) bool, send func(Events[T]) error) error {
	out := Events[T]{Revision: revision}
	for _, ch := range changes {
		before := ch.Existed && want(ch.Previous)
		now := !ch.Deleted && want(ch.Object)
		switch {
		case before && now:
			out.Events = append(out.Events, Event[T]{Modified, ch.Object})
		case now:
			out.Events = append(out.Events, Event[T]{Added, ch.Object})
		case before && ch.Deleted:
			out.Events = append(out.Events, Event[T]{Deleted, ch.Object})
		case before:
			gone := Clone(ch.Previous)
			gone.GetMetadata().ResourceVersion = FormatRevision(revision)
			out.Events = append(out.Events, Event[T]{Deleted, gone})
		}
	}
	return sendSplit(out, send)
}

// sendSplit sends events in messages that gRPC takes. Only the last one has the revision: who has come no further resumes before it.
func sendSplit[T Object](e Events[T], send func(Events[T]) error) error {
	var part []Event[T]
	size := 0
	for _, event := range e.Events {
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
	return send(Events[T]{Events: part, Revision: e.Revision})
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
			r := request{req.ProtoReflect()}
			sel, err := ParseSelection(r.text("label_selector"), r.text("field_selector"))
			if err != nil {
				return err
			}
			after, err := ParseRevision(r.text("resource_version"))
			if err != nil {
				return err
			}
			frame := NewFrame(m.Output())
			return s.t.Watching(stream.Context(), r.text("namespace"), sel, after, r.flag("allow_watch_bookmarks"), func(e Events[T]) error {
				events := make([]protoEvent, len(e.Events))
				for i, ev := range e.Events {
					events[i] = protoEvent{ev.Type, ev.Object}
				}
				return stream.SendMsg(frame.message(events, e.Revision, e.Bookmark))
			})
		},
	}
}

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
	f := Frame{out: out, events: out.Fields().ByName("events"), revision: out.Fields().ByName("resource_version"), bookmark: out.Fields().ByName("bookmark")}
	f.typ, f.object = f.events.Message().Fields().ByName("type"), f.events.Message().Fields().ByName("object")
	return f
}

func (f Frame) message(events []protoEvent, revision int64, bookmark bool) proto.Message {
	m := NewMessage(f.out).ProtoReflect()
	list := m.Mutable(f.events).List()
	for _, e := range events {
		v := list.NewElement()
		v.Message().Set(f.typ, protoreflect.ValueOfString(e.typ))
		v.Message().Set(f.object, protoreflect.ValueOfMessage(e.object.ProtoReflect()))
		list.Append(v)
	}
	if revision > 0 {
		m.Set(f.revision, protoreflect.ValueOfString(FormatRevision(revision)))
	}
	m.Set(f.bookmark, protoreflect.ValueOfBool(bookmark))
	return m.Interface()
}

// read is the inverse of message: the events of a frame, its revision, and whether it is a bookmark.
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

// ReadFrame returns the events of a Watch method's message, the revision up to which they tell everything (0 if the message does not say), and
// whether it is a bookmark.
func ReadFrame[T Object](f Frame, m proto.Message) ([]Event[T], int64, bool, error) {
	raw, revision, bookmark, err := f.read(m)
	if err != nil {
		return nil, 0, false, err
	}
	out := make([]Event[T], len(raw))
	for i, e := range raw {
		out[i] = Event[T]{e.typ, e.object.(T)}
	}
	return out, revision, bookmark, nil
}
