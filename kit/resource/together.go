package resource

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// DeleteAndModify deletes an object of t, as Table.Delete does, and changes an object of u in the same transaction:
// either both are stored, or neither. partner returns the key of the other object; change changes a copy of it. Both
// get the object that is deleted, may run several times, and their errors are returned. If either object changes
// concurrently, both are read again. Both tables must be of one store, and their kinds must differ.
func DeleteAndModify[T, U object.Object](ctx context.Context, t *Table[T], key object.Key, pre *metav1.Preconditions,
	u *Table[U], partner func(T) (object.Key, error), change func(T, U) error, opts ...WriteOptions,
) (T, U, error) {
	var zero T
	var none U
	for range maxRetries {
		w, v := writing[T](ctx, opts), writing[U](ctx, opts)
		var err error
		if w.Old, err = t.Get(ctx, key.Namespace, key.Name); err != nil {
			return zero, none, err
		}
		if err := t.hold(w.Old, pre); err != nil {
			return zero, none, err
		}
		other, err := partner(w.Old)
		if err != nil {
			return zero, none, err
		}
		if v.Old, err = u.Get(ctx, other.Namespace, other.Name); err != nil {
			return zero, none, err
		}
		v.New = object.Clone(v.Old)
		if err := change(w.Old, v.New); err != nil {
			return zero, none, err
		}
		gone, changed, err := commitBoth(ctx, t, w, u, v)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return gone, changed, err
		}
	}
	return zero, none, rpcerr.Conflict(t.typ.GetKind(), key.Name, "")
}

// commitBoth stores a deletion and a change in one transaction.
func commitBoth[T, U object.Object](ctx context.Context, t *Table[T], w *Write[T], u *Table[U], v *Write[U]) (T, U,
	error,
) {
	var zero T
	var none U
	if err := u.checkChange(v); err != nil {
		return zero, none, err
	}
	gone, ops, err := t.removal(ctx, w)
	if err != nil || w.DryRun {
		return gone, v.New, err
	}
	if !proto.Equal(v.Old, v.New) {
		claims, err := u.claimOps(ctx, v.Old, v.New)
		if err != nil {
			return zero, none, err
		}
		value, err := u.encode(v.New)
		if err != nil {
			return zero, none, err
		}
		ops = append(append(ops, store.Put(u.key(object.KeyOf(v.Old)), value, revisionOf(v.Old))), claims...)
	}
	if len(ops) == 0 {
		return w.Old, v.Old, nil
	}
	revision, err := t.st.Commit(ctx, ops...)
	if err != nil {
		return zero, none, err
	}
	if gone, err = t.written(ctx, gone, revision, nil); err != nil {
		return zero, none, err
	}
	changed, err := u.written(ctx, v.New, revision, nil)
	return gone, changed, err
}
