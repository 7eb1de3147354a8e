package resource

import (
	"bytes"
	"context"
	"sync"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/store"
)

// own are the objects that this process writes and the watch has not shown yet. The watch recognises a write by its
// bytes, and gives the cache the object instead of decoding it again.
type own[T object.Object] struct {
	mu     sync.Mutex
	writes map[string]*ownWrite[T] // by the key of the record
}

type ownWrite[T object.Object] struct {
	key    object.Key
	record string
	value  []byte
	object T // belongs to the cache once it was taken
}

// expect notes a write before it is sent. Nothing else may use obj from now on.
func (o *own[T]) expect(k object.Key, record string, value []byte, obj T) *ownWrite[T] {
	w := &ownWrite[T]{key: k, record: record, value: value, object: obj}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writes == nil {
		o.writes = map[string]*ownWrite[T]{}
	}
	o.writes[record] = w
	return w
}

// withdraw drops a write that was shown, or will not be.
func (o *own[T]) withdraw(w *ownWrite[T]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writes[w.record] == w {
		delete(o.writes, w.record)
	}
}

// take returns the object of a record if this process wrote it.
func (o *own[T]) take(r store.Record) (obj T, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.writes[r.Key]
	if w == nil || r.Damage != nil || !bytes.Equal(w.value, r.Value) {
		return obj, false
	}
	delete(o.writes, r.Key)
	return w.object, true
}

// shown returns the object of a write at its revision once the cache has it, or err.
func (t *Table[T]) shown(ctx context.Context, w *ownWrite[T], revision int64, err error) (T, error) {
	defer t.own.withdraw(w)
	if err != nil {
		var zero T
		return zero, err
	}
	// The write succeeded, so it is no error if the cache lags behind until the caller's deadline.
	_ = t.reach(ctx, revision)
	if o, ok := t.Lookup(w.key.Namespace, w.key.Name); ok && revisionOf(o) == revision {
		return o, nil
	}
	return t.decode(w.value, revision) // the cache lags behind, or has a newer state
}
