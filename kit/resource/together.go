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

// ReplaceBoth stores two objects in place of the stored ones in one transaction: either both are stored, or neither.
// Each must be stored at the resourceVersion that it has; else the error is a conflict. Both tables must be of one
// store, and their kinds must differ.
func ReplaceBoth[T, U object.Object](ctx context.Context, t *Table[T], one T, u *Table[U], other U,
	opts ...WriteOptions,
) (T, U, error) {
	var zero T
	var none U
	w, v := writing[T](ctx, opts), writing[U](ctx, opts)
	for _, err := range []error{prepareReplace(ctx, t, w, one), prepareReplace(ctx, u, v, other)} {
		if err != nil {
			return zero, none, err
		}
	}
	ops, err := replacement(ctx, t, w)
	if err != nil {
		return zero, none, err
	}
	more, err := replacement(ctx, u, v)
	if err != nil || w.DryRun {
		return w.New, v.New, err
	}
	revision, err := t.st.Commit(ctx, append(ops, more...)...)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return zero, none, rpcerr.Conflict(t.typ.GetKind(), one.GetMetadata().GetName(), "")
	}
	now, err := t.shownAt(ctx, w, revision, err)
	if err != nil {
		return zero, none, err
	}
	then, err := u.shownAt(ctx, v, revision, nil)
	return now, then, err
}

// ReplaceWith stores an object in place of the stored one, which must be at the resourceVersion that it has, together
// with further operations of the table's store: either all are stored, or nothing. The error is a conflict if the
// object changed, or if the condition of an operation does not hold.
func (t *Table[T]) ReplaceWith(ctx context.Context, obj T, further []store.Op, opts ...WriteOptions) (T, error) {
	var zero T
	w := writing[T](ctx, opts)
	if err := prepareReplace(ctx, t, w, obj); err != nil {
		return zero, err
	}
	ops, err := replacement(ctx, t, w)
	if err != nil || w.DryRun {
		return w.New, err
	}
	revision, err := t.st.Commit(ctx, append(ops, further...)...)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists) {
		return zero, rpcerr.Conflict(t.typ.GetKind(), obj.GetMetadata().GetName(), "")
	}
	return t.shownAt(ctx, w, revision, err)
}

// prepareReplace reads what is stored in place of an object, and applies all rules to the change.
func prepareReplace[T object.Object](ctx context.Context, t *Table[T], w *Write[T], next T) error {
	m := next.GetMetadata()
	old, err := t.Get(ctx, m.GetNamespace(), m.GetName())
	if err != nil {
		return err
	}
	if err := t.hold(old, preconditions(next)); err != nil {
		return err
	}
	w.Old, w.New = old, object.Clone(next)
	return t.checkChange(ctx, w)
}

// replacement returns the operations that store the new object of a write in place of the old one. That the old one is
// unchanged is one of them, also if the two are equal.
func replacement[T object.Object](ctx context.Context, t *Table[T], w *Write[T]) ([]store.Op, error) {
	if proto.Equal(w.Old, w.New) {
		return []store.Op{t.Unchanged(w.Old)}, nil
	}
	claims, err := t.claimOps(ctx, w.Old, w.New)
	if err != nil {
		return nil, err
	}
	value, err := t.encode(w.New)
	if err != nil {
		return nil, err
	}
	return append([]store.Op{t.put(t.key(object.KeyOf(w.Old)), value, revisionOf(w.Old))}, claims...), nil
}

// shownAt returns the new object of a write at its revision.
func (t *Table[T]) shownAt(ctx context.Context, w *Write[T], revision int64, err error) (T, error) {
	if err == nil && proto.Equal(w.Old, w.New) {
		return w.Old, nil
	}
	return t.written(ctx, w.New, revision, err)
}

// commitBoth stores a deletion and a change in one transaction.
func commitBoth[T, U object.Object](ctx context.Context, t *Table[T], w *Write[T], u *Table[U], v *Write[U]) (T, U,
	error,
) {
	var zero T
	var none U
	if err := u.checkChange(ctx, v); err != nil {
		return zero, none, err
	}
	gone, ops, err := t.removal(ctx, w)
	if err != nil || w.DryRun {
		return gone, v.New, err
	}
	if len(ops) == 0 && proto.Equal(v.Old, v.New) {
		return w.Old, v.Old, nil
	}
	more, err := replacement(ctx, u, v)
	if err != nil {
		return zero, none, err
	}
	revision, err := t.st.Commit(ctx, append(ops, more...)...)
	if err != nil {
		return zero, none, err
	}
	if gone, err = t.written(ctx, gone, revision, nil); err != nil {
		return zero, none, err
	}
	changed, err := u.shownAt(ctx, v, revision, nil)
	return gone, changed, err
}
