package resource

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/utils/third_party/forked/golang/btree"
)

// Limits of the ring of changes from which watches resume: some seconds of the busiest kind.
const (
	ringSize  = 4096     // revisions
	ringBytes = 32 << 20 // encoded bytes of the objects, most of which the cache has anyway
)

// Change is one object's change at one revision.
type Change[T object.Object] struct {
	Key      object.Key
	Object   T    // after the change; for a deletion the last state, with the revision of the deletion
	Previous T    // before the change; the zero T if it was created
	Existed  bool // whether Previous is set
	Deleted  bool
}

// step is all changes of one revision.
type step[T object.Object] struct {
	revision int64
	changes  []Change[T]
	frames   []frames[T] // of each change
	bytes    int
}

// Cache is a copy of all objects of a kind in memory. Its messages are shared and must not be modified. All methods are
// safe for concurrent use.
type Cache[T object.Object] struct {
	mu       sync.RWMutex
	objects  *btree.BTree[entry[T]] // shared with clones, so only Step and Replace modify it
	revision int64                  // objects has all changes up to here
	notified atomic.Int64           // subscribers have been called with all changes up to here
	latest   *view[T]               // of the current objects; nil until it is needed
	kept     []*view[T]             // for further pages of lists
	synced   chan struct{}
	moved    chan struct{} // closed and replaced each time that the revision moves
	indexes  map[string]*index[T]

	notifying   sync.Mutex // held while a change is applied and subscribers are notified, which keeps the order
	subscribers []func(Change[T])
	parts       parts

	ring  []*step[T] // the last steps, oldest first
	held  int        // bytes of the ring
	floor int64      // changes up to this revision are not in the ring
	feeds map[interest]map[*feed[T]]struct{}
}

// NewCache returns an empty cache.
func NewCache[T object.Object]() *Cache[T] {
	return &Cache[T]{
		objects: newObjects[T](), synced: make(chan struct{}), moved: make(chan struct{}),
		indexes: map[string]*index[T]{}, feeds: map[interest]map[*feed[T]]struct{}{},
	}
}

// Lookup returns an object; the caller must not modify it.
func (c *Cache[T]) Lookup(namespace, name string) (T, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.objects.Get(entry[T]{key: object.Key{Namespace: namespace, Name: name}})
	return e.object, ok
}

// All returns all objects in the order of Objects; the caller must not modify them.
func (c *Cache[T]) All() []T { return slices.Collect(c.Objects()) }

// Objects returns all objects at the time of the call, ordered by namespace and name as their records in etcd are; the
// caller must not modify them. It copies nothing: prefer it to All where no slice is needed.
func (c *Cache[T]) Objects() iter.Seq[T] { return c.view().all() }

// Keys returns the keys of all objects, in the format of Key.String and the order of Objects.
func (c *Cache[T]) Keys() []string {
	v := c.view()
	out := make([]string, 0, v.objects.Len())
	v.objects.Ascend(func(e entry[T]) bool {
		out = append(out, e.key.String())
		return true
	})
	return out
}

// In returns the objects of a namespace at the time of the call, ordered by name; the caller must not modify them.
func (c *Cache[T]) In(namespace string) iter.Seq[T] { return c.view().after(namespace, object.Key{}) }

// Subscribe calls f once with each existing object, as if it had just been created, and then with every change, in
// order. When f is called the cache has that change, or a newer state. f must return immediately, as the Add of a queue
// does, and must not modify objects.
func (c *Cache[T]) Subscribe(f func(Change[T])) {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	c.subscribers = append(c.subscribers, f)
	for o := range c.Objects() {
		f(Change[T]{Key: object.KeyOf(o), Object: o})
	}
}

// IsSynced reports whether the cache has been filled for the first time.
func (c *Cache[T]) IsSynced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// WaitSynced waits until the cache has been filled for the first time, or ctx ends; the error then names the kind.
func (c *Cache[T]) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		var zero T
		d := zero.ProtoReflect().Descriptor()
		name := cmp.Or(object.TypeOf(d).GetPlural(), string(d.Name())+"s") // a message of many kinds has no type of its own
		return fmt.Errorf("%s are not read yet: %w", name, ctx.Err())
	}
}

// Revision returns the revision up to which the cache has all changes.
func (c *Cache[T]) Revision() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision
}

// Notified returns the revision up to which subscribers have been called with all changes.
func (c *Cache[T]) Notified() int64 { return c.notified.Load() }

// WaitRevision waits until the cache has all changes up to a revision, or ctx ends.
func (c *Cache[T]) WaitRevision(ctx context.Context, revision int64) error {
	for {
		reached, moved := c.reached(revision)
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reached reports whether the cache has all changes up to a revision. moved is closed when the cache's revision
// changes.
func (c *Cache[T]) reached(revision int64) (reached bool, moved <-chan struct{}) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision >= revision, c.moved
}

// Share has new objects share the parts in which they equal others, so that they take less memory. A caller of Replace
// calls it as the objects arrive: alone, those of a large kind would take several times the memory of the cache.
func (c *Cache[T]) Share(objects ...T) {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	for _, o := range objects {
		c.parts.share(o.ProtoReflect())
	}
}

// Replace sets the complete content at a revision; the objects are the cache's from then on. Subscribers are notified
// of every object that differs, and of one that replaced another of its name first of the deletion and then of the
// creation; watches that are behind the revision must list again.
func (c *Cache[T]) Replace(objects []T, revision int64) {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	c.mu.Lock()
	before := c.objects
	c.objects, c.latest, c.kept = newObjects[T](), nil, nil
	for _, x := range c.indexes {
		clear(x.objects)
	}
	var changed []Change[T]
	for _, o := range objects {
		k := object.KeyOf(o)
		c.objects.ReplaceOrInsert(entry[T]{k, o})
		c.enter(k, o)
		old, ok := before.Get(entry[T]{key: k})
		if ok && old.object.GetMetadata().GetUid() != o.GetMetadata().GetUid() {
			changed = append(changed, deletionOf(old))
			old, ok = entry[T]{}, false
		}
		if !ok || old.object.GetMetadata().GetResourceVersion() != o.GetMetadata().GetResourceVersion() {
			changed = append(changed, Change[T]{Key: k, Object: o, Previous: old.object, Existed: ok})
		}
	}
	before.Ascend(func(e entry[T]) bool {
		if !c.objects.Has(e) {
			changed = append(changed, deletionOf(e))
		}
		return true
	})
	if revision > c.revision {
		c.loseFeeds()
	}
	c.ring, c.held, c.floor = nil, 0, revision
	c.advance(revision)
	c.mu.Unlock()
	c.notify(changed, revision)
}

// deletionOf returns the change of an object that went at an unknown revision.
func deletionOf[T object.Object](e entry[T]) Change[T] {
	return Change[T]{Key: e.key, Object: e.object, Previous: e.object, Existed: true, Deleted: true}
}

// Step applies all changes of one revision, whose objects are the cache's from then on; without changes it only
// advances the revision.
func (c *Cache[T]) Step(revision int64, changes []Change[T]) {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	for _, ch := range changes {
		if !ch.Deleted {
			c.parts.share(ch.Object.ProtoReflect())
		}
	}
	c.mu.Lock()
	if revision < c.revision || (revision == c.revision && len(changes) == 0) {
		c.mu.Unlock()
		return
	}
	for _, ch := range changes {
		var old entry[T]
		var existed bool
		if ch.Deleted {
			old, existed = c.objects.Delete(entry[T]{key: ch.Key})
		} else {
			old, existed = c.objects.ReplaceOrInsert(entry[T]{ch.Key, ch.Object})
		}
		if existed {
			c.leave(ch.Key, old.object)
		}
		if !ch.Deleted {
			c.enter(ch.Key, ch.Object)
		}
	}
	if len(changes) > 0 {
		c.latest = nil
		s := newStep(revision, changes)
		c.ring, c.held = append(c.ring, s), c.held+s.bytes
		for len(c.ring) > ringSize || c.held > ringBytes && len(c.ring) > 1 {
			c.floor, c.held = c.ring[0].revision, c.held-c.ring[0].bytes
			c.ring[0] = nil // release the memory before the slice moves on
			c.ring = c.ring[1:]
		}
		c.dropViews()
		c.feed(s)
	}
	c.advance(revision)
	c.mu.Unlock()
	c.notify(changes, revision)
}

// advance records that the cache has all changes up to a revision. The lock is held.
func (c *Cache[T]) advance(revision int64) {
	c.revision = revision
	if c.latest != nil {
		c.latest = &view[T]{c.latest.objects, revision}
	}
	close(c.moved)
	c.moved = make(chan struct{})
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
}

// notify calls all subscribers with changes, the last ones up to a revision.
func (c *Cache[T]) notify(changes []Change[T], revision int64) {
	for _, ch := range changes {
		for _, f := range c.subscribers {
			f(ch)
		}
	}
	c.notified.Store(revision)
}
