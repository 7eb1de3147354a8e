package resource

import (
	"context"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
)

// Orphan is the propagation of a deletion that keeps the objects which the deleted object owns.
const Orphan = "Orphan"

// WriteOptions are the options of a write. The zero value stores the write with the rights of the context's caller.
type WriteOptions struct {
	// Own marks a write that the service decided on, though a caller's request led to it: rules about callers do not apply
	// to it. Outside of requests every write is the service's own; that of a request without a caller is not.
	Own bool
	// DryRun checks everything and stores nothing.
	DryRun bool
	// Propagation of a deletion is "", "Background" or Orphan.
	Propagation string
	// Grace is the grace period of a deletion in seconds; nil leaves it to Config.Grace.
	Grace *int32
	// Reason is why an object is deleted, for people; Config.Mark may record it.
	Reason string
	// Decider is the object whose rules led to a deletion that the service itself decided on; nil otherwise.
	Decider object.Object
	// Warn receives the warnings about an accepted write. If nil, they are returned to the caller with the response.
	Warn func(text string)
}

// Write is one write of an object, as the rules of its kind see it.
type Write[T object.Object] struct {
	Old T               // the zero T for a creation
	New T               // the zero T for a deletion
	By  identity.Caller // the caller of the request; the zero Caller outside of requests
	WriteOptions
}

// Creates reports whether there was no object before.
func (w *Write[T]) Creates() bool { return !w.Old.ProtoReflect().IsValid() }

// Deletes reports whether the write is a deletion.
func (w *Write[T]) Deletes() bool { return !w.New.ProtoReflect().IsValid() }

func dryRun(opts []WriteOptions) bool { return len(opts) > 0 && opts[0].DryRun }

// writing returns the Write of a context and at most one set of options, without its objects.
func writing[T object.Object](ctx context.Context, opts []WriteOptions) *Write[T] {
	w := &Write[T]{}
	if len(opts) > 0 {
		w.WriteOptions = opts[0]
	}
	var called bool
	w.By, called = identity.CallerFrom(ctx)
	w.Own = w.Own || !called && grpc.ServerTransportStreamFromContext(ctx) == nil
	if w.Warn == nil {
		w.Warn = func(text string) { rpcerr.Warn(ctx, text) }
	}
	return w
}
