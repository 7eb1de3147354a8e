// Package informer keeps a copy of another service's objects in memory, in sync by that service's Watch method. After a
// broken connection it resumes at its revision, and it lists again only if the service answers that the revision is too
// old. It never writes.
package informer

import (
	"context"
	"fmt"
	"log/slog"
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
	return &Informer[T]{Cache: resource.NewCache[T](), conn: conn, watch: watch, log: log}, nil
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
		err := i.follow(ctx, &revision)
		if ctx.Err() != nil {
			return nil
		}
		if status.Code(err) == codes.OutOfRange {
			revision = 0
		}
		if revision != before {
			again.Reset()
		}
		level := slog.LevelDebug
		if revision != before || time.Since(began) >= warnEvery {
			warned = time.Now()
		} else if time.Since(warned) >= warnEvery {
			level, warned = slog.LevelWarn, time.Now()
		}
		i.log.Log(ctx, level, "watch ended", "kind", string(i.watch.Name()), "revision", revision, "error", err)
		again.Wait(ctx)
	}
	return nil
}

// follow applies the changes of one stream. revision is where to resume, 0 for a new list; follow advances it.
func (i *Informer[T]) follow(ctx context.Context, revision *int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := i.open(ctx, *revision)
	if err != nil {
		return err
	}
	frame := resource.NewFrame(i.watch.Output())
	var initial []T
	var split []resource.Event[T] // of a revision that is split over several messages
	for listing := *revision == 0; ; {
		m := resource.NewMessage(i.watch.Output())
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		events, at, bookmark, err := resource.ReadFrame[T](frame, m)
		if err != nil {
			return err
		}
		switch {
		case listing && bookmark:
			i.Replace(initial, at)
			initial, listing, *revision = nil, false, at
		case listing:
			for _, e := range events {
				initial = append(initial, e.Object)
			}
		case at == 0:
			split = append(split, events...)
		default:
			i.Step(at, i.changes(append(split, events...)))
			split, *revision = nil, at
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
