package resource

import "github.com/windlass-dev/windlass/kit/object"

// ByOwner is the index of every table by the uids of an object's owners. Field selectors use the index of their field,
// so the name is none that an object of any kind may have.
const ByOwner = "metadata.ownerReferences[*].uid"

// index finds objects by values that a function reads from them.
type index[T object.Object] struct {
	of      func(T) []string
	objects map[string]map[object.Key]T
}

// Index declares an index for ByIndex; of returns the values under which an object is found. A watch whose field
// selector requires one value of the field name, such as "spec.nodeName=n1", is woken only by changes of objects with
// that value. Index must be called before the cache is filled, and of must be pure.
func (c *Cache[T]) Index(name string, of func(T) []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.indexes[name] = &index[T]{of: of, objects: map[string]map[object.Key]T{}}
}

// ByIndex returns the objects that have a value in an index, ordered by namespace and name; the caller must not modify
// them. It panics if the index was not declared.
func (c *Cache[T]) ByIndex(name, value string) []T {
	c.mu.RLock()
	x, ok := c.indexes[name]
	if !ok {
		c.mu.RUnlock()
		panic("no index " + name)
	}
	out := values(x.objects[value])
	c.mu.RUnlock()
	sortByKey(out)
	return out
}

// enter adds an object to all indexes. The lock is held.
func (c *Cache[T]) enter(k object.Key, o T) {
	for _, x := range c.indexes {
		for _, v := range x.of(o) {
			if x.objects[v] == nil {
				x.objects[v] = map[object.Key]T{}
			}
			x.objects[v][k] = o
		}
	}
}

// leave is the inverse of enter.
func (c *Cache[T]) leave(k object.Key, o T) {
	for _, x := range c.indexes {
		for _, v := range x.of(o) {
			delete(x.objects[v], k)
			if len(x.objects[v]) == 0 {
				delete(x.objects, v)
			}
		}
	}
}
