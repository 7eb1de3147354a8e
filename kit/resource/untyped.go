package resource

import (
	"context"
	"iter"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Untyped is a table for code that treats all kinds alike, such as a collector. Its methods are those of Table, without
// the objects that writes return.
type Untyped interface {
	Served
	Lookup(namespace, name string) (object.Object, bool)
	Objects() iter.Seq[object.Object]
	In(namespace string) iter.Seq[object.Object]
	ByIndex(name, value string) []object.Object
	Subscribe(f func(Change[object.Object]))
	Get(ctx context.Context, namespace, name string) (object.Object, error)
	Modify(ctx context.Context, key object.Key, f func(obj object.Object) error, opts ...WriteOptions) error
	Delete(ctx context.Context, namespace, name string, pre *metav1.Preconditions, opts ...WriteOptions) error
}

// Untyped returns the same table without its type.
func (t *Table[T]) Untyped() Untyped { return untyped[T]{t} }

type untyped[T object.Object] struct{ *Table[T] }

func (u untyped[T]) Lookup(namespace, name string) (object.Object, bool) {
	o, ok := u.Table.Lookup(namespace, name)
	return o, ok
}

func (u untyped[T]) Objects() iter.Seq[object.Object] { return widen(u.Table.Objects()) }

func (u untyped[T]) In(namespace string) iter.Seq[object.Object] { return widen(u.Table.In(namespace)) }

// widen returns the same objects without their type.
func widen[T object.Object](objects iter.Seq[T]) iter.Seq[object.Object] {
	return func(yield func(object.Object) bool) {
		for o := range objects {
			if !yield(o) {
				return
			}
		}
	}
}

func (u untyped[T]) ByIndex(name, value string) []object.Object {
	found := u.Table.ByIndex(name, value)
	out := make([]object.Object, len(found))
	for i, o := range found {
		out[i] = o
	}
	return out
}

func (u untyped[T]) Subscribe(f func(Change[object.Object])) {
	u.Table.Subscribe(func(ch Change[T]) {
		f(Change[object.Object]{
			Key: ch.Key, Object: ch.Object, Previous: ch.Previous, Existed: ch.Existed, Deleted: ch.Deleted,
		})
	})
}

func (u untyped[T]) Get(ctx context.Context, namespace, name string) (object.Object, error) {
	return u.Table.Get(ctx, namespace, name)
}

func (u untyped[T]) Modify(ctx context.Context, key object.Key, f func(object.Object) error,
	opts ...WriteOptions,
) error {
	_, err := u.Table.Modify(ctx, key, func(obj T) error { return f(obj) }, opts...)
	return err
}

func (u untyped[T]) Delete(ctx context.Context, namespace, name string, pre *metav1.Preconditions,
	opts ...WriteOptions,
) error {
	_, err := u.Table.Delete(ctx, namespace, name, pre, opts...)
	return err
}
