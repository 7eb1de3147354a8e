// Package informer keeps a copy of another service's objects in memory, in sync by that service's Watch method. After a
// broken connection it resumes at its revision, and it lists again only if the service answers that the revision is too
// old. It never writes.
package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Informer is a copy of all objects of a kind. Its messages are shared and must not be modified.
type Informer[T object.Object] struct {
	*resource.Cache[T]
	conn  grpc.ClientConnInterface
	watch protoreflect.MethodDescriptor
	log   *slog.Logger

	mu       sync.Mutex
	asked    int           // calls of CatchUp
	answered int           // how many of them were answered
	changed  chan struct{} // closed and replaced when answered changes
	end      func()        // ends the stream; nil if it has not caught up
	refusal  string        // message of a refusal of the last watch; empty if it was not refused
	unserved string        // message of a service that did not know the kind at the last watch; empty if it does
}

// New returns an informer of a kind over a connection to the service that owns it. Nothing is read before Run.
func New[T object.Object](conn grpc.ClientConnInterface, log *slog.Logger) (*Informer[T], error) {
	var zero T
	methods, err := resource.Methods(zero.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	watch, ok := methods[resource.Watch]
	if !ok {
		return nil, fmt.Errorf("%s has no Watch method", zero.ProtoReflect().Descriptor().FullName())
	}
	return &Informer[T]{Cache: resource.NewCache[T](), conn: conn, watch: watch, log: log, changed: make(chan struct{})},
		nil
}

// errReopen ends a stream that began before the last call of CatchUp.
var errReopen = errors.New("opened again, to catch up")

// CatchUp waits until the copy has everything that its service had stored at the time of the call, or ctx ends; the
// error then names the kind. It opens the watch again: the service says when it has sent all that was stored before.
// Nothing is caught up with before Run.
func (i *Informer[T]) CatchUp(ctx context.Context) error {
	i.mu.Lock()
	i.asked++
	mine := i.asked
	if i.end != nil {
		i.end()
		i.end = nil
	}
	i.mu.Unlock()
	for {
		i.mu.Lock()
		answered, changed := i.answered, i.changed
		i.mu.Unlock()
		if answered >= mine {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			var zero T
			kind := object.TypeOf(zero.ProtoReflect().Descriptor())
			return fmt.Errorf("%s may have changed since they were read: %w", kind.GetPlural(), ctx.Err())
		}
	}
}

// opens returns how many calls of CatchUp a stream answers that begins now.
func (i *Informer[T]) opens() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// caughtUp notes that the stream has caught up, which answers so many calls of CatchUp; end ends the stream. It reports
// false if there were more calls since.
func (i *Informer[T]) caughtUp(asked int, end func()) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answered, i.refusal, i.unserved = asked, "", ""
	close(i.changed)
	i.changed = make(chan struct{})
	if i.asked > asked {
		return false
	}
	i.end = end
	return true
}

// Refusal returns why the service refuses the watch for want of rights; empty if it does not. The copy keeps its last
// state while it is refused.
func (i *Informer[T]) Refusal() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.refusal
}

// Absent returns why nothing can be followed: the service refuses the watch for want of rights, or does not serve the
// kind, as one of an earlier release. It is empty otherwise.
func (i *Informer[T]) Absent() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return cmp.Or(i.refusal, i.unserved)
}

// refused notes how the last stream ended.
func (i *Informer[T]) refused(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refusal, i.unserved = "", ""
	switch s := status.Convert(err); s.Code() {
	case codes.PermissionDenied:
		i.refusal = s.Message()
	case codes.Unimplemented:
		i.unserved = s.Message()
	}
}

// ends notes the end of the stream.
func (i *Informer[T]) ends(end func()) {
	end()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.end = nil
}

// warnEvery is how long a watch may be broken before a warning is logged, and the time between two warnings.
const warnEvery = time.Minute

// Run keeps the copy in sync until ctx ends. While the watch is broken the copy keeps its last state.
func (i *Informer[T]) Run(ctx context.Context) error {
	again := backoff.New(50*time.Millisecond, time.Second) // a service restarts within this time
	var revision int64
	warned := time.Now() // the last warning, or the last time that the watch was open
	for ctx.Err() == nil {
		before, began := revision, time.Now()
		current, err := i.follow(ctx, &revision)
		if ctx.Err() != nil {
			return nil
		}
		i.refused(err)
		if status.Code(err) == codes.OutOfRange {
			revision = 0
		}
		if current = current || revision != before; current {
			again.Reset()
		}
		level := slog.LevelDebug
		if current || time.Since(began) >= warnEvery {
			warned = time.Now()
		} else if time.Since(warned) >= warnEvery {
			level, warned = slog.LevelWarn, time.Now()
		}
		i.log.Log(ctx, level, "watch ended", "kind", string(i.watch.Name()), "revision", revision, "error", err)
		again.Wait(ctx)
	}
	return nil
}

// follow applies the changes of one stream. revision is where to resume, 0 for a new list; follow advances it, and
// reports whether the stream caught up with what was stored before it began.
func (i *Informer[T]) follow(ctx context.Context, revision *int64) (current bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	asked := i.opens()
	defer i.ends(cancel)
	stream, err := i.open(ctx, *revision)
	if err != nil {
		return false, err
	}
	frame := resource.NewFrame(i.watch.Output())
	var initial []T
	var split []resource.Event[T] // of a revision that is split over several messages
	for listing := *revision == 0; ; {
		m := resource.NewMessage(i.watch.Output())
		if err := stream.RecvMsg(m); err != nil {
			return current, err
		}
		events, at, bookmark, err := resource.ReadFrame[T](frame, m)
		if err != nil {
			return current, err
		}
		switch {
		case listing && bookmark:
			i.Replace(initial, at)
			initial, listing, *revision = nil, false, at
		case listing:
			for _, e := range events {
				i.Share(e.Object)
				initial = append(initial, e.Object)
			}
		case at == 0:
			split = append(split, events...)
		default:
			i.Step(at, i.changes(append(split, events...)))
			split, *revision = nil, at
		}
		if bookmark && !current {
			current = true
			if !i.caughtUp(asked, cancel) {
				return current, errReopen
			}
		}
	}
}

func (i *Informer[T]) open(ctx context.Context, after int64) (grpc.ClientStream, error) {
	method := fmt.Sprintf("/%s/%s", i.watch.Parent().FullName(), i.watch.Name())
	stream, err := i.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(i.request(after)); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

func (i *Informer[T]) request(after int64) proto.Message {
	req := resource.NewMessage(i.watch.Input())
	f := req.ProtoReflect().Descriptor().Fields()
	if after > 0 {
		req.ProtoReflect().Set(f.ByName("resource_version"), protoreflect.ValueOfString(resource.FormatRevision(after)))
	}
	req.ProtoReflect().Set(f.ByName("allow_watch_bookmarks"), protoreflect.ValueOfBool(true))
	return req
}

func (i *Informer[T]) changes(events []resource.Event[T]) []resource.Change[T] {
	out := make([]resource.Change[T], len(events))
	for n, e := range events {
		k := object.KeyOf(e.Object)
		out[n] = resource.Change[T]{Key: k, Object: e.Object, Deleted: e.Type == resource.Deleted}
		out[n].Previous, out[n].Existed = i.Lookup(k.Namespace, k.Name)
	}
	return out
}
