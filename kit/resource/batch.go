package resource

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

const (
	// batchOps is how many objects share a transaction: below etcd's limit of 128 operations, with room for the fence.
	batchOps = 100
	// batchBytes is the total size of the objects of a transaction; a larger object is written alone. A member accepts 8
	// MiB: a larger transaction would always fail, with every object in it.
	batchBytes = 1 << 20
	// batchCommits is how many transactions of one batch run concurrently.
	batchCommits = 4
	// batchAsks is how many objects of one batch other programs decide on concurrently.
	batchAsks = 64
)

// Written is the result of writing one object of a batch.
type Written[T object.Object] struct {
	Object T // as stored, which must not be modified; the zero T where Err is set
	Err    error
}

// CreateAll stores many new objects independently: a refused object does not affect the others. Many share a
// transaction and a revision. The results are in the order of objs.
func (t *Table[T]) CreateAll(ctx context.Context, objs []T, opts ...WriteOptions) []Written[T] {
	out := make([]Written[T], len(objs))
	t.prepareAll(ctx, objs, out, opts)
	var ready []prepared[T]
	for i, w := range out {
		if w.Err == nil {
			ready = append(ready, prepared[T]{at: i, next: w.Object})
			out[i] = Written[T]{}
		}
	}
	alone := func(p prepared[T]) (T, error) { return t.Create(ctx, objs[p.at], opts...) }
	var c *Creation[T]
	if !dryRun(opts) {
		c = t.creating(nextOf(ready))
	}
	if c == nil {
		t.commitAll(ctx, ready, out, dryRun(opts), alone)
		return out
	}
	t.commitAll(store.WithFence(ctx, c.Fence), ready, out, false, alone)
	c.Done(resultsOf(ready, out))
	for _, p := range ready {
		if errors.Is(out[p.at].Err, store.ErrFenced) {
			out[p.at].Object, out[p.at].Err = alone(p)
		}
	}
	return out
}

// prepareAll prepares new objects one by one, or many concurrently while other programs decide on them. out receives
// the results.
func (t *Table[T]) prepareAll(ctx context.Context, objs []T, out []Written[T], opts []WriteOptions) {
	var group errgroup.Group
	group.SetLimit(batchAsks)
	asks := t.asksOthers()
	for i, obj := range objs {
		prepare := func() error {
			out[i].Object, out[i].Err = t.prepareCreate(ctx, writing[T](ctx, opts), obj)
			return nil
		}
		if asks {
			group.Go(prepare)
		} else {
			_ = prepare() // the errors are in out
		}
	}
	_ = group.Wait()
}

func nextOf[T object.Object](ready []prepared[T]) []T {
	out := make([]T, len(ready))
	for i, p := range ready {
		out[i] = p.next
	}
	return out
}

func resultsOf[T object.Object](ready []prepared[T], all []Written[T]) []Written[T] {
	out := make([]Written[T], len(ready))
	for i, p := range ready {
		out[i] = all[p.at]
	}
	return out
}

// ModifyAll has f change a copy of each named object, and stores those that are unchanged since the cache read them;
// any other is read again and changed separately, as by Modify. f is called for one object at a time and may run
// several times for it; messages that it puts into the object must not be modified later. The results are in the order
// of keys.
func (t *Table[T]) ModifyAll(ctx context.Context, keys []object.Key, f func(obj T) error,
	opts ...WriteOptions,
) []Written[T] {
	out := make([]Written[T], len(keys))
	var ready []prepared[T]
	for i, key := range keys {
		old, ok := t.Lookup(key.Namespace, key.Name)
		if !ok {
			out[i].Err = rpcerr.NotFound(t.typ.GetKind(), key.Name)
			continue
		}
		w, next := writing[T](ctx, opts), object.Clone(old)
		w.Old, w.New = old, next
		if err := errors.Join(f(next), t.checkChange(ctx, w)); err != nil {
			out[i].Err = err
			continue
		}
		if proto.Equal(old, next) {
			out[i].Object = old
			continue
		}
		if released(old, next) { // a deletion, which a batch of puts cannot contain
			out[i].Object, out[i].Err = t.Modify(ctx, key, f, opts...)
			continue
		}
		ready = append(ready, prepared[T]{at: i, next: next, was: revisionOf(old)})
	}
	t.commitAll(ctx, ready, out, dryRun(opts), func(p prepared[T]) (T, error) {
		return t.Modify(ctx, keys[p.at], f, opts...)
	})
	return out
}

// prepared is an object of a batch that passed all checks and is not stored yet.
type prepared[T object.Object] struct {
	at   int // place in the batch
	next T
	was  int64 // revision that it replaces; 0 for a new one

	write *ownWrite[T] // once it is sent
}

// commitAll stores prepared objects, many in a transaction. Objects for which a transaction is refused are removed from
// it and stored by alone; so are repeated objects, after the others.
func (t *Table[T]) commitAll(ctx context.Context, ready []prepared[T], out []Written[T], dryRun bool,
	alone func(prepared[T]) (T, error),
) {
	// Nothing is written, or each object is written with its claims or a guard.
	if dryRun || t.cfg.Claims != nil || t.cfg.Guard != nil {
		for _, p := range ready {
			out[p.at].Object, out[p.at].Err = alone(p)
		}
		return
	}
	named := make(map[object.Key]bool, len(ready))
	var once, again []prepared[T]
	for _, p := range ready {
		if k := object.KeyOf(p.next); named[k] {
			again = append(again, p)
		} else {
			named[k] = true
			once = append(once, p)
		}
	}
	var group errgroup.Group
	group.SetLimit(batchCommits)
	for len(once) > 0 {
		n := transaction(once)
		part := once[:n:n]
		once = once[n:]
		group.Go(func() error {
			t.commitPart(ctx, part, out, alone)
			return nil
		})
	}
	_ = group.Wait() // the errors are in out
	for _, p := range again {
		out[p.at].Object, out[p.at].Err = alone(p)
	}
}

// transaction returns how many objects at the head of a list share a transaction.
func transaction[T object.Object](list []prepared[T]) int {
	size := 0
	for n, p := range list {
		if size += proto.Size(p.next); n == batchOps || n > 0 && size > batchBytes {
			return n
		}
	}
	return len(list)
}

// commitPart stores objects in one transaction, except those that a concurrent write changed: alone stores these.
func (t *Table[T]) commitPart(ctx context.Context, part []prepared[T], out []Written[T],
	alone func(prepared[T]) (T, error),
) {
	ready, ops := make([]prepared[T], 0, len(part)), make([]store.Op, 0, len(part))
	for _, p := range part {
		value, err := t.encode(p.next)
		if err != nil {
			out[p.at].Err = err
			continue
		}
		k := object.KeyOf(p.next)
		p.write = t.own.expect(k, t.key(k), value, p.next)
		ready = append(ready, p)
		ops = append(ops, t.put(p.write.record, value, p.was))
	}
	var refused []prepared[T]
	for len(ready) > 0 {
		revision, err := t.st.Commit(ctx, ops...)
		var op *store.OpError
		if errors.As(err, &op) && !errors.Is(err, store.ErrFenced) {
			for _, i := range slices.Backward(op.Refused) {
				t.own.withdraw(ready[i].write)
				refused = append(refused, ready[i])
				ready, ops = slices.Delete(ready, i, i+1), slices.Delete(ops, i, i+1)
			}
			continue
		}
		for _, p := range ready {
			out[p.at].Object, out[p.at].Err = t.shown(ctx, p.write, revision, err)
		}
		break
	}
	for _, p := range refused {
		out[p.at].Object, out[p.at].Err = alone(p)
	}
}
