package resource

import (
	"iter"
	"slices"
	"sync/atomic"

	"github.com/windlass-dev/windlass/kit/object"

	"google.golang.org/protobuf/proto"
)

// interest is the smallest group of objects that the cache can find by an index and that includes all objects of a
// watch. The zero interest is all objects.
type interest struct {
	index string // "name", "namespace", or the name of an index of the cache
	value string
}

const (
	byName      = "name" // in any namespace
	byNamespace = "namespace"
)

// feed holds the changes that one watch has not sent yet. A change is added only to the feeds whose interest includes
// it, so its cost does not grow with the number of watches: notifying 5,000 watches of every change took 32 ms. The
// cache's lock guards a feed.
type feed[T object.Object] struct {
	cache   *Cache[T]
	of      interest
	after   int64 // the watch has all changes up to here
	waiting []portion[T]
	lost    bool // changes are missing: the watch has to list again
	ready   chan struct{}
}

// portion is the changes of a step that an interest may include. A watch does not read the others: with 1,000 pods in a
// transaction and as many agents, that took most of the time.
type portion[T object.Object] struct {
	*step[T]
	of []int // their indexes, ascending
}

// interestOf returns the interest of a watch of a namespace ("" for all) with a selection. The lock need not be held.
func (c *Cache[T]) interestOf(namespace string, sel Selection) interest {
	if name, ok := sel.exactly("metadata.name"); ok {
		return interest{byName, name}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for field := range c.indexes {
		if value, ok := sel.exactly(field); ok {
			return interest{field, value}
		}
	}
	if namespace != "" {
		return interest{byNamespace, namespace}
	}
	return interest{}
}

// newFeed returns a feed of the changes after a revision; false if the ring no longer has all of them. The feed must be
// closed.
func (c *Cache[T]) newFeed(of interest, after int64) (*feed[T], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if after < c.floor {
		return nil, false
	}
	f := &feed[T]{cache: c, of: of, after: after, ready: make(chan struct{}, 1)}
	first, _ := slices.BinarySearchFunc(c.ring, after+1, func(s *step[T], r int64) int { return int(s.revision - r) })
	for _, s := range c.ring[first:] {
		p := portion[T]{step: s}
		for i := range s.changes {
			if c.concerns(&s.changes[i], of) {
				p.of = append(p.of, i)
			}
		}
		if len(p.of) > 0 {
			f.waiting = append(f.waiting, p)
		}
	}
	if len(f.waiting) > 0 {
		f.ready <- struct{}{}
	}
	if c.feeds[of] == nil {
		c.feeds[of] = map[*feed[T]]struct{}{}
	}
	c.feeds[of][f] = struct{}{}
	return f, true
}

func (f *feed[T]) close() {
	c := f.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.feeds[f.of], f)
	if len(c.feeds[f.of]) == 0 {
		delete(c.feeds, f.of)
	}
}

// take returns the changes since the last call, and the revision up to which they are complete; false if changes are
// missing.
func (f *feed[T]) take() (portions []portion[T], upTo int64, complete bool) {
	c := f.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	portions, f.waiting = f.waiting, nil
	return portions, max(c.revision, f.after), !f.lost
}

// feed adds the changes of a step to the feeds whose interest may include them. The lock is held.
func (c *Cache[T]) feed(s *step[T]) {
	if len(c.feeds) == 0 {
		return
	}
	of := map[interest][]int{} // of those that have feeds
	for i := range s.changes {
		for in := range c.interests(&s.changes[i]) {
			if at := of[in]; len(c.feeds[in]) > 0 && (len(at) == 0 || at[len(at)-1] < i) {
				of[in] = append(at, i)
			}
		}
	}
	for in, at := range of {
		for f := range c.feeds[in] {
			f.add(portion[T]{s, at})
		}
	}
}

// interests are those that may include a change; one may come twice. The lock is held.
func (c *Cache[T]) interests(ch *Change[T]) iter.Seq[interest] {
	return func(yield func(interest) bool) {
		if !yield(interest{}) || !yield(interest{byName, ch.Key.Name}) || !yield(interest{byNamespace, ch.Key.Namespace}) {
			return
		}
		for name, x := range c.indexes {
			for _, v := range x.of(ch.Object) {
				if !yield(interest{name, v}) {
					return
				}
			}
			if !ch.Existed {
				continue
			}
			for _, v := range x.of(ch.Previous) {
				if !yield(interest{name, v}) {
					return
				}
			}
		}
	}
}

// concerns reports whether an interest may include a change. The lock is held.
func (c *Cache[T]) concerns(ch *Change[T], of interest) bool {
	switch of.index {
	case "":
		return true
	case byName:
		return ch.Key.Name == of.value
	case byNamespace:
		return ch.Key.Namespace == of.value
	}
	x := c.indexes[of.index]
	return slices.Contains(x.of(ch.Object), of.value) || ch.Existed && slices.Contains(x.of(ch.Previous), of.value)
}

// add adds changes to a feed. A feed whose reader is further behind than the ring is lost: it must not keep in memory
// what the ring has dropped. The lock is held.
func (f *feed[T]) add(p portion[T]) {
	if p.revision <= f.after || f.lost {
		return
	}
	f.waiting = append(f.waiting, p)
	if f.waiting[0].revision <= f.cache.floor {
		f.waiting, f.lost = nil, true
	}
	f.wake()
}

func (f *feed[T]) wake() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// loseFeeds marks all feeds as lost, because the changes are not known. The lock is held.
func (c *Cache[T]) loseFeeds() {
	for _, feeds := range c.feeds {
		for f := range feeds {
			f.waiting, f.lost = nil, true
			f.wake()
		}
	}
}

// frames are the events of one change, each encoded once for all watches.
type frames[T object.Object] struct {
	added, modified, deleted, gone atomic.Pointer[Event[T]]
}

// event returns the event of a change for a selection: an object that begins to match is added, one that no longer
// matches is deleted. False if there is none.
func (s *step[T]) event(i int, want func(T) bool) (*Event[T], bool) {
	ch, f := &s.changes[i], &s.frames[i]
	before := ch.Existed && want(ch.Previous)
	now := !ch.Deleted && want(ch.Object)
	switch {
	case before && now:
		return once(&f.modified, Modified, ch.Object), true
	case now:
		return once(&f.added, Added, ch.Object), true
	case before && ch.Deleted:
		return once(&f.deleted, Deleted, ch.Object), true
	case before:
		if e := f.gone.Load(); e != nil {
			return e, true
		}
		gone := object.Clone(ch.Previous)
		gone.GetMetadata().ResourceVersion = FormatRevision(s.revision)
		return once(&f.gone, Deleted, gone), true
	}
	return nil, false
}

// once returns the event at p, and creates it if there is none. Of concurrent calls the first one sets it.
func once[T object.Object](p *atomic.Pointer[Event[T]], typ string, o T) *Event[T] {
	if e := p.Load(); e != nil {
		return e
	}
	p.CompareAndSwap(nil, &Event[T]{Type: typ, Object: o, shared: new(shared)})
	return p.Load()
}

// whole is all changes of a step.
func whole[T object.Object](s *step[T]) portion[T] {
	p := portion[T]{step: s, of: make([]int, len(s.changes))}
	for i := range p.of {
		p.of[i] = i
	}
	return p
}

func newStep[T object.Object](revision int64, changes []Change[T]) *step[T] {
	s := &step[T]{revision: revision, changes: changes, frames: make([]frames[T], len(changes))}
	for i := range changes {
		s.bytes += proto.Size(changes[i].Object)
	}
	return s
}
