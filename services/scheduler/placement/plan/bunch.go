package plan

import (
	"maps"
	"math/bits"
	"slices"
)

// traits are everything that the choice among nodes depends on: two nodes of equal traits get the same score, whatever
// the other nodes are. What no priority of the profile reads is zero.
type traits struct {
	alone    int64    // weighted sum of the priorities that read a node alone
	affinity int64    // weights of affinity to pods, by the labels that have many values
	wanted   int64    // sum of the weights of the preferred terms of node affinity
	disliked int32    // PreferNoSchedule taints that the pod does not bear
	place    int32    // see places
	counts   [3]int32 // pods of each group of the class
	spread   int32    // number of a tuple of the class; see spread
}

// bunch is the nodes of equal traits.
type bunch struct {
	traits
	size  int
	nodes []uint64 // bits, by the index of the node
}

// bunches are the nodes that fit a class, by their traits. Only a few bunches exist, as scores are 0 to best: to choose
// a node they are compared instead of all nodes.
type bunches struct {
	of      []int32 // by the index of the node: its bunch, or nowhere
	list    []bunch // some are empty
	empty   []int32
	numbers map[traits]int32 // of the bunches that are not empty
	fit     int              // nodes in all bunches
}

// nowhere is the bunch of nodes that do not fit.
const nowhere = -1

func newBunches(nodes int) *bunches {
	b := &bunches{of: make([]int32, nodes), numbers: map[traits]int32{}}
	for i := range b.of {
		b.of[i] = nowhere
	}
	return b
}

// put moves a node to the bunch of some traits.
func (b *bunches) put(at int, t traits) {
	was := b.of[at]
	if was != nowhere && b.list[was].traits == t {
		return
	}
	b.remove(at)
	is, ok := b.numbers[t]
	if !ok {
		is = b.add(t)
	}
	b.of[at] = is
	to := &b.list[is]
	to.size++
	to.nodes[at/64] |= 1 << (at % 64)
	b.fit++
}

// add makes a bunch without nodes.
func (b *bunches) add(t traits) int32 {
	var is int32
	if n := len(b.empty); n > 0 {
		is = b.empty[n-1]
		b.empty = b.empty[:n-1]
	} else {
		is = int32(len(b.list))
		b.list = append(b.list, bunch{})
	}
	if x := &b.list[is]; x.nodes == nil {
		x.nodes = make([]uint64, (len(b.of)+63)/64)
	}
	b.list[is].traits = t
	b.numbers[t] = is
	return is
}

// remove notes that a node does not fit.
func (b *bunches) remove(at int) {
	was := b.of[at]
	if was == nowhere {
		return
	}
	from := &b.list[was]
	from.nodes[at/64] &^= 1 << (at % 64)
	if from.size--; from.size == 0 {
		delete(b.numbers, from.traits)
		b.empty = append(b.empty, was)
	}
	b.of[at] = nowhere
	b.fit--
}

// nth returns the index of a node of some bunches, counted from 0 in the order of the nodes.
func (b *bunches) nth(of []int32, n int) int {
	for w := range (len(b.of) + 63) / 64 {
		var word uint64
		for _, i := range of {
			word |= b.list[i].nodes[w]
		}
		if here := bits.OnesCount64(word); n >= here {
			n -= here
			continue
		}
		for ; n > 0; n-- {
			word &= word - 1
		}
		return w*64 + bits.TrailingZeros64(word)
	}
	return nowhere
}

// copyOf returns bunches that can be changed independently.
func (b *bunches) copyOf() *bunches {
	c := &bunches{
		of: slices.Clone(b.of), list: slices.Clone(b.list), empty: slices.Clone(b.empty),
		numbers: maps.Clone(b.numbers), fit: b.fit,
	}
	words := (len(b.of) + 63) / 64
	all := make([]uint64, words*len(b.numbers))
	for i := range c.list {
		to := &c.list[i]
		if to.size == 0 {
			to.nodes = nil
			continue
		}
		copy(all, to.nodes)
		to.nodes, all = all[:words:words], all[words:]
	}
	return c
}
