package resource

import (
	"iter"
	"slices"

	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/utils/third_party/forked/golang/btree"
)

// mostViews is how many paged lists may continue from the cache: the others read the history of etcd.
const mostViews = 16

// entry is an object under its key.
type entry[T object.Object] struct {
	key    object.Key
	object T
}

// newObjects returns a tree of objects in the order of their records in etcd, so that a list may begin in the cache and
// continue in etcd.
func newObjects[T object.Object]() *btree.BTree[entry[T]] {
	const degree = 16 // a write copies some nodes of up to 31 entries if a view shares them
	return btree.New(degree, func(a, b entry[T]) bool { return before(a.key, b.key) })
}

func before(a, b object.Key) bool {
	if a.Namespace == b.Namespace {
		return a.Name < b.Name
	}
	return a.Namespace+"/" < b.Namespace+"/"
}

// view is an immutable snapshot of a cache at one revision. It shares memory with the cache.
type view[T object.Object] struct {
	objects  *btree.BTree[entry[T]]
	revision int64
}

// view returns a snapshot of the current objects.
func (c *Cache[T]) view() *view[T] {
	c.mu.RLock()
	latest := c.latest
	c.mu.RUnlock()
	if latest != nil {
		return latest
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.viewLocked()
}

// viewLocked is view with the lock held.
func (c *Cache[T]) viewLocked() *view[T] {
	if c.latest == nil {
		c.latest = &view[T]{c.objects.Clone(), c.revision}
	}
	return c.latest
}

// all returns all objects in order.
func (v *view[T]) all() iter.Seq[T] { return v.after("", object.Key{}) }

// after returns the objects after a key, in order: those of a namespace, or of all if it is "".
func (v *view[T]) after(namespace string, k object.Key) iter.Seq[T] {
	if first := (object.Key{Namespace: namespace}); before(k, first) {
		k = first
	}
	return func(yield func(T) bool) {
		v.objects.AscendGreaterOrEqual(entry[T]{key: k}, func(e entry[T]) bool {
			return e.key == k || (namespace == "" || e.key.Namespace == namespace) && yield(e.object)
		})
	}
}

// named returns the object with a name in a namespace, or those of all namespaces if it is "".
func (v *view[T]) named(namespace, name string) iter.Seq[T] {
	return func(yield func(T) bool) {
		k := object.Key{Namespace: namespace, Name: name}
		if e, ok := v.objects.Get(entry[T]{key: k}); ok || namespace != "" {
			_ = ok && yield(e.object)
			return
		}
		v.objects.Ascend(func(e entry[T]) bool { return e.key.Name != name || yield(e.object) })
	}
}

// snapshot returns the objects of a namespace ("" for all) that an interest may include, in order, and the view that
// they are from.
func (c *Cache[T]) snapshot(namespace string, of interest) (iter.Seq[T], *view[T]) {
	c.mu.Lock()
	v := c.viewLocked()
	x, indexed := c.indexes[of.index]
	var found []T
	if indexed {
		found = values(x.objects[of.value])
	}
	c.mu.Unlock()
	switch {
	case indexed:
		sortByKey(found)
		return slices.Values(found), v
	case of.index == byName:
		return v.named(namespace, of.value), v
	}
	return v.after(namespace, object.Key{}), v
}

// values returns the objects of an index in any order.
func values[T object.Object](objects map[object.Key]T) []T {
	out := make([]T, 0, len(objects))
	for _, o := range objects {
		out = append(out, o)
	}
	return out
}

func sortByKey[T object.Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		switch x, y := object.KeyOf(a), object.KeyOf(b); {
		case before(x, y):
			return -1
		case before(y, x):
			return 1
		}
		return 0
	})
}

// keepView keeps a view for the next pages of a list. A view holds the memory of everything that changed since. The
// ring holds that anyway, so a view is kept while the ring reaches back to it.
func (c *Cache[T]) keepView(v *view[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.revision < c.floor || slices.Contains(c.kept, v) {
		return
	}
	c.kept = append(c.kept, v)
	c.dropViews()
}

// keptView returns the view of a revision, nil if it is not kept.
func (c *Cache[T]) keptView(revision int64) *view[T] {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, v := range c.kept {
		if v.revision == revision {
			return v
		}
	}
	return nil
}

// dropViews drops the views that the ring does not reach back to, and the oldest ones beyond mostViews. The lock is
// held.
func (c *Cache[T]) dropViews() {
	c.kept = slices.DeleteFunc(c.kept, func(v *view[T]) bool { return v.revision < c.floor })
	c.kept = slices.Delete(c.kept, 0, max(0, len(c.kept)-mostViews))
}
