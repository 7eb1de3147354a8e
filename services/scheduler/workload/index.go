package workload

import (
	"cmp"
	"slices"
	"sync"

	"github.com/windlass-dev/windlass/kit/resource"
)

// Who manages objects, where it is no uid.
const (
	nobody    = ""
	everybody = "*"
)

// index finds the objects of a namespace by the uid of who manages them. The objects come from the cache of their table; what is indexed
// is as new as the last refresh of their keys. All methods may be called concurrently.
type index[T resource.Object] struct {
	table *resource.Table[T]

	mu      sync.Mutex
	indexed map[resource.Key]T // what the groups are made of
	told    map[resource.Key]T // what change returned last
	groups  map[group]map[resource.Key]struct{}
}

type group struct{ namespace, manager string }

func newIndex[T resource.Object](t *resource.Table[T]) *index[T] {
	return &index[T]{
		table: t, indexed: map[resource.Key]T{}, told: map[resource.Key]T{}, groups: map[group]map[resource.Key]struct{}{},
	}
}

// change takes in what the cache shows of an object. It returns what it returned before, and what the cache shows now; nil where there is
// nothing. It is for whoever hears of changes, and for nobody else: what is returned once is not told again.
func (x *index[T]) change(k resource.Key) (was, is T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was = x.told[k]
	is, there := x.take(k)
	if there {
		x.told[k] = is
	} else {
		delete(x.told, k)
	}
	return was, is
}

// refresh takes in what the cache shows of an object that was just written, before its change is heard of.
func (x *index[T]) refresh(k resource.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.take(k)
}

// take brings the groups up to date. The lock is held.
func (x *index[T]) take(k resource.Key) (is T, there bool) {
	is, there = x.table.Lookup(k.Namespace, k.Name)
	if was, known := x.indexed[k]; known {
		for _, g := range groupsOf(was) {
			delete(x.groups[g], k)
			if len(x.groups[g]) == 0 {
				delete(x.groups, g)
			}
		}
		delete(x.indexed, k)
	}
	if !there {
		return is, false
	}
	for _, g := range groupsOf(is) {
		if x.groups[g] == nil {
			x.groups[g] = map[resource.Key]struct{}{}
		}
		x.groups[g][k] = struct{}{}
	}
	x.indexed[k] = is
	return is, true
}

// refreshAll takes in all that the cache shows.
func (x *index[T]) refreshAll() {
	for _, o := range x.table.All() {
		x.refresh(resource.KeyOf(o))
	}
}

func groupsOf[T resource.Object](o T) []group {
	ns := o.GetMetadata().GetNamespace()
	return []group{{ns, everybody}, {ns, resource.ControllerOf(o).GetUid()}}
}

// of returns the objects of a namespace that are managed by somebody, by name, as the cache shows them.
func (x *index[T]) of(namespace, manager string) []T {
	x.mu.Lock()
	keys := make([]resource.Key, 0, len(x.groups[group{namespace, manager}]))
	for k := range x.groups[group{namespace, manager}] {
		keys = append(keys, k)
	}
	x.mu.Unlock()
	slices.SortFunc(keys, func(a, b resource.Key) int { return cmp.Compare(a.Name, b.Name) })
	out := make([]T, 0, len(keys))
	for _, k := range keys {
		if o, ok := x.table.Lookup(k.Namespace, k.Name); ok {
			out = append(out, o)
		}
	}
	return out
}

// claimable returns the objects that an owner manages, and those of its namespace that nobody does.
func (x *index[T]) claimable(owner resource.Object) []T {
	m := owner.GetMetadata()
	return append(x.of(m.GetNamespace(), m.GetUid()), x.of(m.GetNamespace(), nobody)...)
}
