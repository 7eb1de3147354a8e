package plan

import (
	"maps"
	"slices"
)

// board is what is known of a cluster for placing pods by a profile. It is kept from one round to the next: each class
// takes in what changed since it was used last, and nothing is computed for classes that are not used. It ends when
// nodes come, go or change their labels.
type board struct {
	cluster *Cluster
	profile *Profile
	round   uint64 // of placeAll

	log   []change
	begun uint64 // number of the first change of log

	shapes  kept[*shape]
	classes kept[*class]
	columns map[string]*column
	places  places
}

// change is a change of a node: of its own state, or of the pods on it.
type change struct {
	node *node
	pod  *bound // that came or left; nil if the node's own state changed
	by   int32  // 1 if pod came, -1 if it left
}

// limits bound what a board keeps.
type limits struct {
	log    int // changes, for classes to take in; a class that was not used for as long is made again
	kept   int // bytes of classes, and of shapes
	values int // how many values a label may have to be among places
	places int // every place may need bunches of its own
}

func defaultLimits() limits { return limits{log: 1 << 14, kept: 64 << 20, values: 64, places: 256} }

// mostBoards is how many boards a cluster keeps: those of the policies that were used last.
const mostBoards = 4

// boardFor returns the cluster's board for a profile.
func (c *Cluster) boardFor(p *Profile) *board {
	if i := slices.IndexFunc(c.boards, func(b *board) bool { return b.profile == p }); i >= 0 {
		b := c.boards[i]
		copy(c.boards[1:], c.boards[:i])
		c.boards[0] = b
		return b
	}
	for i, n := range c.nodes {
		n.at = i
	}
	most := max(1, c.limits.kept/(16*(len(c.nodes)+1)))
	b := &board{cluster: c, profile: p, columns: map[string]*column{}}
	b.shapes.most, b.classes.most = most, most
	b.places = b.placesBy(p.places)
	c.boards = append([]*board{b}, c.boards[:min(len(c.boards), mostBoards-1)]...)
	return b
}

// note keeps a change for the classes of the boards.
func (c *Cluster) note(ch change) {
	if len(c.boards) == 0 {
		return
	}
	ch.node.changed++
	for _, b := range c.boards {
		if most := c.limits.log; len(b.log) >= most {
			n := copy(b.log, b.log[most/2:])
			clear(b.log[n:])
			b.log = b.log[:n]
			b.begun += uint64(most / 2)
		}
		b.log = append(b.log, ch)
	}
}

// now is the number of the next change.
func (b *board) now() uint64 { return b.begun + uint64(len(b.log)) }

// since returns the changes from a number on; false if not all of them are kept.
func (b *board) since(number uint64) ([]change, bool) {
	if number < b.begun {
		return nil, false
	}
	return b.log[number-b.begun:], true
}

// kept are the values that were used last: at least most of them, and at most twice as many.
type kept[T any] struct {
	recent, older map[string]T
	most          int
}

func (k *kept[T]) get(id string) (T, bool) {
	v, ok := k.recent[id]
	if !ok {
		if v, ok = k.older[id]; ok {
			k.set(id, v)
		}
	}
	return v, ok
}

func (k *kept[T]) set(id string, v T) {
	if k.recent == nil || len(k.recent) >= k.most {
		k.recent, k.older = map[string]T{}, k.recent
	}
	k.recent[id] = v
}

func (k *kept[T]) drop(is func(T) bool) {
	for _, m := range []map[string]T{k.recent, k.older} {
		maps.DeleteFunc(m, func(_ string, v T) bool { return is(v) })
	}
}

// column is the values of one label on all nodes.
type column struct {
	values  []int32          // by the index of the node, the number of its value, from 1; 0 where it lacks the label
	numbers map[string]int32 // of the values
	names   []string         // the values by their number; the first is of none
	members [][]int32        // indices of the nodes by the number of the value; nil until it is needed
}

// column numbers the values of a label.
func (b *board) column(label string) *column {
	if c := b.columns[label]; c != nil {
		return c
	}
	c := &column{values: make([]int32, len(b.cluster.nodes)), numbers: map[string]int32{}, names: []string{""}}
	for i, n := range b.cluster.nodes {
		value, ok := n.labels[label]
		if !ok {
			continue
		}
		number, ok := c.numbers[value]
		if !ok {
			number = int32(len(c.numbers) + 1)
			c.numbers[value] = number
			c.names = append(c.names, value)
		}
		c.values[i] = number
	}
	b.columns[label] = c
	return c
}

// in returns the indices of the nodes in a domain.
func (b *board) in(d domain) []int32 {
	c := b.column(d.key)
	if c.members == nil {
		c.members = make([][]int32, len(c.numbers)+1)
		sizes := make([]int, len(c.members))
		for _, v := range c.values {
			sizes[v]++
		}
		all := make([]int32, 0, len(c.values))
		for v, size := range sizes {
			start := len(all)
			all = all[:start+size]
			c.members[v] = all[start:start:len(all)]
		}
		for i, v := range c.values {
			c.members[v] = append(c.members[v], int32(i))
		}
	}
	number, ok := c.numbers[d.value]
	if !ok {
		return nil
	}
	return c.members[number]
}

// places number the combinations of zone and values of some labels that nodes have: those that decide about many nodes
// at once.
type places struct {
	version uint64
	labels  []string
	of      []int32 // by the index of the node
	example []*node // of each place
}

// placesBy returns the places by some labels, and by zones.
func (b *board) placesBy(labels []string) places {
	p := places{labels: labels, of: make([]int32, len(b.cluster.nodes))}
	split := func(value func(i int) int32) {
		numbers := map[[2]int32]int32{}
		for i := range p.of {
			key := [2]int32{p.of[i], value(i)}
			number, ok := numbers[key]
			if !ok {
				number = int32(len(numbers))
				numbers[key] = number
			}
			p.of[i] = number
		}
	}
	split(func(i int) int32 { return b.cluster.nodes[i].zone })
	for _, label := range labels {
		c := b.column(label)
		split(func(i int) int32 { return c.values[i] })
	}
	for i, number := range p.of {
		if int(number) == len(p.example) { // numbers are given in the order of nodes
			p.example = append(p.example, b.cluster.nodes[i])
		}
	}
	return p
}

// coarse reports whether the nodes of a place have the same value of a label. The label is added to the places if it
// has few values.
func (b *board) coarse(label string) bool {
	if slices.Contains(b.places.labels, label) {
		return true
	}
	if len(b.column(label).numbers) > b.cluster.limits.values {
		return false
	}
	more := b.placesBy(append(slices.Clone(b.places.labels), label))
	if len(more.example) > b.cluster.limits.places && len(more.example) > len(b.places.example) {
		return false
	}
	more.version = b.places.version + 1
	b.places = more
	return true
}
