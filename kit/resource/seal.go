package resource

import (
	"context"
	"errors"
	"time"

	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/store"
)

// resealEvery is how soon after a rotation of the record keys the records are sealed by the new one.
const resealEvery = 10 * time.Second

// put is the operation that stores an object.
func (t *Table[T]) put(key string, value []byte, ifRevision int64) store.Op {
	if t.cfg.Sealed {
		return store.PutSealed(key, value, ifRevision)
	}
	return store.Put(key, value, ifRevision)
}

// Reseal keeps the records of a sealed kind sealed by the key in force until ctx ends: after a rotation they are
// written again, which changes their resourceVersion only. One process, the leader, should run it.
func (t *Table[T]) Reseal(ctx context.Context) error {
	var done uint64 // the key that has sealed all records
	for ctx.Err() == nil {
		by, err := t.st.SealsBy()
		if err == nil && by != 0 && by != done {
			if err = t.reseal(ctx, by); err == nil {
				done = by
			}
		}
		if err != nil && ctx.Err() == nil {
			t.cfg.Log.WarnContext(ctx, "records are not sealed by the record key in force", "kind", t.typ.GetKind(), "error",
				err)
		}
		backoff.Sleep(ctx, resealEvery)
	}
	return nil
}

// reseal writes all records again that another key than by has sealed.
func (t *Table[T]) reseal(ctx context.Context, by uint64) error {
	page, err := t.st.List(ctx, t.prefix(), store.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range page.Records {
		if r.SealedBy == by || r.Damage != nil { // a damaged one is reported by the watch
			continue
		}
		_, err := t.st.Commit(ctx, t.put(r.Key, r.Value, r.Revision))
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			continue // a concurrent write has used the key in force, or there is nothing left to seal
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
