package resource

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// What a cache remembers for watches that resume: some seconds of the busiest kind.
const (
	ringSize  = 4096     // revisions
	ringBytes = 32 << 20 // encoded bytes of the objects, most of which the cache has anyway
)

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
	frames   []frames[T] // of each change
	bytes    int
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
	indexes     map[string]*index[T]

	ring  []*step[T] // the last steps, oldest first
	held  int        // bytes of the ring
	floor int64      // changes up to this revision are not in the ring
	feeds map[interest]map[*feed[T]]struct{}
}

// NewCache returns an empty cache.
func NewCache[T Object]() *Cache[T] {
	return &Cache[T]{
		objects: map[Key]T{}, synced: make(chan struct{}), moved: make(chan struct{}),
		indexes: map[string]*index[T]{}, feeds: map[interest]map[*feed[T]]struct{}{},
	}
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
	out := values(c.objects)
	c.mu.RUnlock()
	sortByKey(out)
	return out
}

func values[T Object](objects map[Key]T) []T {
	out := make([]T, 0, len(objects))
	for _, o := range objects {
		out = append(out, o)
	}
	return out
}

func sortByKey[T Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		x, y := KeyOf(a), KeyOf(b)
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
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

// reached reports whether the cache shows everything up to a revision. moved is closed when it shows more than now.
func (c *Cache[T]) reached(revision int64) (reached bool, moved <-chan struct{}) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision >= revision, c.moved
}

// Replace sets the whole content as it was at a revision. Subscribers hear of every object that differs, watches that
// have not come so far must list again.
func (c *Cache[T]) Replace(objects []T, revision int64) {
	c.mu.Lock()
	before := c.objects
	c.objects = make(map[Key]T, len(objects))
	for _, x := range c.indexes {
		clear(x.objects)
	}
	var changed []Key
	for _, o := range objects {
		k := KeyOf(o)
		c.objects[k] = o
		c.enter(k, o)
		if old, ok := before[k]; !ok || old.GetMetadata().GetResourceVersion() != o.GetMetadata().GetResourceVersion() {
			changed = append(changed, k)
		}
	}
	for k := range before {
		if _, ok := c.objects[k]; !ok {
			changed = append(changed, k)
		}
	}
	if revision > c.revision {
		c.loseFeeds()
	}
	c.ring, c.held, c.floor = nil, 0, revision
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
		if old, ok := c.objects[ch.Key]; ok {
			c.leave(ch.Key, old)
		}
		if ch.Deleted {
			delete(c.objects, ch.Key)
		} else {
			c.objects[ch.Key] = ch.Object
			c.enter(ch.Key, ch.Object)
		}
		keys = append(keys, ch.Key)
	}
	if len(changes) > 0 {
		s := newStep(revision, changes)
		c.ring, c.held = append(c.ring, s), c.held+s.bytes
		for len(c.ring) > ringSize || c.held > ringBytes && len(c.ring) > 1 {
			c.floor, c.held = c.ring[0].revision, c.held-c.ring[0].bytes
			c.ring[0] = nil // let the garbage collector have it before the slice moves on
			c.ring = c.ring[1:]
		}
		c.feed(s)
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
