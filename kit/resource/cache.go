package resource

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// ringSize is the number of changes that a cache remembers for watches that resume: some seconds of the busiest kind.
const ringSize = 4096

// Change is one object's change at one revision.
type Change[T Object] struct {
	Key      Key
	Object   T    // after the change; for a deletion as it was last, at the revision of the deletion
	Previous T    // before the change; the zero T if it was created
	Existed  bool // whether Previous is set
	Deleted  bool
}

// step is all changes of one revision.
type step[T Object] struct {
	revision int64
	changes  []Change[T]
}

// Cache is a copy of all objects of a kind in memory. Its messages are shared: nobody may modify them.
// All methods may be called concurrently.
type Cache[T Object] struct {
	mu          sync.RWMutex
	objects     map[Key]T
	revision    int64 // everything up to here is in objects
	synced      chan struct{}
	moved       chan struct{} // closed and replaced each time that the revision moves
	subscribers []func(Key)

	ring  []step[T] // the last steps, oldest first
	first int64     // number of the ring's oldest step since the beginning
	floor int64     // changes up to this revision are not in the ring
}

// NewCache returns an empty cache.
func NewCache[T Object]() *Cache[T] {
	return &Cache[T]{objects: map[Key]T{}, synced: make(chan struct{}), moved: make(chan struct{})}
}

// Lookup returns an object; the caller must not modify it.
func (c *Cache[T]) Lookup(namespace, name string) (T, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	o, ok := c.objects[Key{Namespace: namespace, Name: name}]
	return o, ok
}

// All returns all objects, ordered by namespace and name; the caller must not modify them.
func (c *Cache[T]) All() []T {
	c.mu.RLock()
	out := make([]T, 0, len(c.objects))
	for _, o := range c.objects {
		out = append(out, o)
	}
	c.mu.RUnlock()
	slices.SortFunc(out, func(a, b T) int {
		x, y := KeyOf(a), KeyOf(b)
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// Keys returns the keys of all objects, as Key.String writes them, in any order.
func (c *Cache[T]) Keys() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]string, 0, len(c.objects))
	for k := range c.objects {
		out = append(out, k.String())
	}
	return out
}

// Subscribe has f called with the key of every object that changes from now on, and once with each that is there. f must
// return at once, as the Add of a queue does.
func (c *Cache[T]) Subscribe(f func(Key)) {
	c.mu.Lock()
	c.subscribers = append(c.subscribers, f)
	keys := make([]Key, 0, len(c.objects))
	for k := range c.objects {
		keys = append(keys, k)
	}
	c.mu.Unlock()
	for _, k := range keys {
		f(k)
	}
}

// Synced is closed when the cache has been filled for the first time.
func (c *Cache[T]) Synced() <-chan struct{} { return c.synced }

// WaitSynced waits until the cache has been filled for the first time, or ctx ends.
func (c *Cache[T]) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Revision returns the revision up to which the cache shows everything.
func (c *Cache[T]) Revision() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision
}

// WaitRevision waits until the cache shows everything up to a revision, or ctx ends.
func (c *Cache[T]) WaitRevision(ctx context.Context, revision int64) error {
	for {
		c.mu.RLock()
		reached, moved := c.revision >= revision, c.moved
		c.mu.RUnlock()
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

// Replace sets the whole content as it was at a revision. Subscribers hear of every object that differs, watches that
// have not come so far must list again.
func (c *Cache[T]) Replace(objects []T, revision int64) {
	c.mu.Lock()
	before := c.objects
	c.objects = make(map[Key]T, len(objects))
	var changed []Key
	for _, o := range objects {
		k := KeyOf(o)
		c.objects[k] = o
		if old, ok := before[k]; !ok || old.GetMetadata().GetResourceVersion() != o.GetMetadata().GetResourceVersion() {
			changed = append(changed, k)
		}
	}
	for k := range before {
		if _, ok := c.objects[k]; !ok {
			changed = append(changed, k)
		}
	}
	c.first += int64(len(c.ring))
	c.ring, c.floor = nil, revision
	c.advance(revision)
	c.mu.Unlock()
	c.tell(changed)
}

// Step takes in all changes of one revision; none means that nothing happened up to it.
func (c *Cache[T]) Step(revision int64, changes []Change[T]) {
	c.mu.Lock()
	if revision < c.revision || (revision == c.revision && len(changes) == 0) {
		c.mu.Unlock()
		return
	}
	keys := make([]Key, 0, len(changes))
	for _, ch := range changes {
		if ch.Deleted {
			delete(c.objects, ch.Key)
		} else {
			c.objects[ch.Key] = ch.Object
		}
		keys = append(keys, ch.Key)
	}
	if len(changes) > 0 {
		if len(c.ring) == ringSize {
			c.floor = c.ring[0].revision
			c.ring[0] = step[T]{} // let the garbage collector have it before the slice moves on
			c.ring = c.ring[1:]
			c.first++
		}
		c.ring = append(c.ring, step[T]{revision, changes})
	}
	c.advance(revision)
	c.mu.Unlock()
	c.tell(keys)
}

// advance notes that everything up to a revision is in the cache. The lock is held.
func (c *Cache[T]) advance(revision int64) {
	c.revision = revision
	close(c.moved)
	c.moved = make(chan struct{})
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
}

func (c *Cache[T]) tell(keys []Key) {
	c.mu.RLock()
	subscribers := c.subscribers
	c.mu.RUnlock()
	for _, k := range keys {
		for _, f := range subscribers {
			f(k)
		}
	}
}

// since returns the steps after a revision and the revision up to which they tell everything. moved is closed when there is
// more. ok is false if the ring no longer reaches back so far.
func (c *Cache[T]) since(after int64) (steps []step[T], upTo int64, moved <-chan struct{}, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if after < c.floor {
		return nil, 0, nil, false
	}
	i, _ := slices.BinarySearchFunc(c.ring, after, func(s step[T], r int64) int {
		if s.revision <= r {
			return -1
		}
		return 1
	})
	return slices.Clone(c.ring[i:]), c.revision, c.moved, true
}
