package plan

import (
	"maps"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// classOf returns the class of a pod. It may be used until the next call of a method of the cluster.
func (b *board) classOf(pod *schedulingv1.Pod) *class {
	s := b.shapeOf(pod)
	m := pod.GetMetadata()
	var id idWriter
	id.text(m.GetNamespace())
	id.pairs(m.GetLabels())
	id.message(pod.GetSpec().GetAffinity().GetPodAffinity())
	id.message(pod.GetSpec().GetAffinity().GetPodAntiAffinity())
	for _, c := range pod.GetSpec().GetTopologySpreadConstraints() {
		id.message(c)
	}
	id.text(s.id)
	if k, ok := b.classes.get(string(id)); ok {
		if _, kept := b.since(k.upTo); kept && k.shape == s {
			return k
		}
	}
	k := newClass(s, pod)
	k.id = string(id)
	b.classes.set(string(id), k)
	return k
}

func newClass(s *shape, pod *schedulingv1.Pod) *class {
	b, m, k := s.board, pod.GetMetadata(), &class{}
	*k = *s.bare
	k.board, k.shape, k.upTo = b, s, b.now()
	k.key, k.labels = podKey{m.GetNamespace(), m.GetName()}, m.GetLabels()
	k.members = &members{}
	k.norms = make([]norm, len(b.profile.priorities))
	k.selectors = b.cluster.selecting(k.key.namespace, k.labels)
	for _, one := range k.selectors {
		if one.kind == kindService {
			k.services = append(k.services, one)
		}
	}
	k.regroup()
	if len(k.services) > 0 {
		k.peer = k.findPeer()
	}
	k.pins = k.pin()
	k.terms = newTerms(pod)
	if k.terms != nil || len(b.cluster.affine) > 0 {
		k.topology = newTopology(b, k.terms, k.key, k.labels)
	}
	k.spread = newSpread(k, pod.GetSpec().GetTopologySpreadConstraints())
	return k
}

// regroup finds the groups that the priorities count.
func (k *class) regroup() {
	c := k.cluster
	k.groups, k.grouped, k.stale = [3]*group{}, c.dropped, true
	for i, keys := range [][]selectorKey{k.selectors, k.services, k.services[:min(1, len(k.services))]} {
		if k.profile.reads&(readsSelectors<<i) != 0 {
			k.groups[i] = c.group(k.key.namespace, keys)
		}
	}
}

// plain reports whether the class judges all nodes as its shape does.
func (k *class) plain() bool {
	return k.groups == [3]*group{} && len(k.pins) == 0 && k.topology.idle() && k.spread.plain()
}

// catchUp takes in what changed, and returns the bunches in force.
func (k *class) catchUp() *bunches {
	changes, _ := k.board.since(k.upTo)
	if k.see(changes) {
		k.topology = newTopology(k.board, k.terms, k.key, k.labels)
	}
	if k.grouped != k.cluster.dropped {
		k.regroup()
	}
	if pins := k.pin(); !maps.Equal(pins, k.pins) {
		k.pins, k.stale, k.failed = pins, true, nil
	}
	if k.spread != nil {
		k.spread.settle()
	}
	k.shape.catchUp() // after the topology and the spread, which may add to the places
	if k.plain() {
		k.bunches = nil
	} else {
		k.refine(changes)
	}
	if k.topology != nil {
		k.topology.moved = moved{domains: k.topology.moved.domains[:0]}
	}
	if k.spread != nil {
		k.shut()
		k.spread.moved, k.spread.shifted = k.spread.moved[:0], false
	}
	k.upTo, k.placed, k.stale = k.board.now(), k.board.places.version, false
	if k.bunches == nil {
		return k.shape.bunches
	}
	return k.bunches
}

// see takes into account which pods came and left. It reports whether the class needs a topology and has none.
func (k *class) see(changes []change) (needsTopology bool) {
	for _, ch := range changes {
		if k.spread != nil {
			k.spread.see(k, ch)
		}
		switch {
		case ch.pod == nil || len(k.services) == 0:
		case ch.by < 0 && k.peer == ch.pod:
			k.peer = k.findPeer()
		case ch.by > 0 && k.follows(ch.pod) && (k.peer == nil || ch.pod.key.name < k.peer.key.name):
			k.peer = ch.pod
		}
		switch {
		case ch.pod == nil:
		case k.topology != nil:
			k.topology.see(ch.pod, ch.node, ch.by)
		default:
			needsTopology = needsTopology || ch.pod.terms != nil
		}
	}
	return needsTopology
}

// refine brings the class's own bunches up to date with those of its shape. Changes are those that are new to it.
func (k *class) refine(changes []change) {
	b, t := k.board, k.topology
	many := len(b.cluster.nodes)/8 + 64 // to judge so many nodes takes longer than to begin with those of the shape
	if k.bunches == nil || k.stale || k.placed != b.places.version || len(changes) > many ||
		t != nil && t.moved.everywhere {
		k.begin()
		return
	}
	for _, ch := range changes {
		k.sort(ch.node)
	}
	if t != nil {
		k.sortAll(t.moved.domains)
	}
	if k.spread != nil {
		k.sortAll(k.spread.moved)
	}
}

// shut finds the places that no pod of the class may be in.
func (k *class) shut() {
	if s := k.spread; !s.shifted && k.placed == k.board.places.version && k.closed != nil {
		return
	}
	k.closed = make([]bool, len(k.board.places.example))
	for place, n := range k.board.places.example {
		k.closed[place] = !k.holds(n, coarse)
	}
}

// shutOut reports whether no pod of the class may be on the nodes of a bunch, though they fit otherwise.
func (k *class) shutOut(b *bunch) bool { return k.closed != nil && k.closed[b.place] }

// begin makes the class's own bunches: those of the shape, but for the nodes that the class judges otherwise.
func (k *class) begin() {
	c, t := k.cluster, k.topology
	k.bunches = k.shape.bunches.copyOf()
	if k.spread != nil {
		k.spread.reset()
	}
	if len(k.pins) > 0 || t != nil && len(t.own.near) > 0 || !k.spread.plain() {
		for _, n := range c.nodes {
			k.sort(n)
		}
		return
	}
	for _, g := range k.groups {
		if g == nil {
			continue
		}
		for slot, count := range g.counts {
			if count != 0 {
				k.sort(c.slots[slot])
			}
		}
	}
	if t == nil {
		return
	}
	for d := range t.forbidden {
		k.sortAll([]domain{d})
	}
	for d := range t.weights {
		if slices.Contains(t.fine, d.key) {
			k.sortAll([]domain{d})
		}
	}
}

func (k *class) sortAll(domains []domain) {
	for _, d := range domains {
		for _, at := range k.board.in(d) {
			k.sort(k.cluster.nodes[at])
		}
	}
}

// sort finds the bunch of a node, from that of the shape.
func (k *class) sort(n *node) {
	of := k.shape.bunches.of[n.at]
	if of == nowhere || !k.holds(n, others) {
		k.bunches.remove(n.at)
		return
	}
	is := k.shape.bunches.list[of].traits
	for i, g := range k.groups {
		is.counts[i] = int32(g.on(n))
	}
	if k.topology != nil && k.profile.reads&readsAffinity != 0 {
		is.affinity = k.topology.weight(n, k.topology.fine)
	}
	if k.spread != nil {
		is.spread = k.spread.tuple(n)
	}
	k.bunches.put(n.at, is)
}

// choose returns the node that a pod of the class goes to. turn decides between nodes that are equally good.
func (k *class) choose(turn uint64) pick { return k.chooseFrom(k.catchUp(), turn) }

// chooseFrom is choose among the nodes of some bunches.
func (k *class) chooseFrom(b *bunches, turn uint64) pick {
	p := pick{bunches: b, at: nowhere, next: nowhere}
	if b.fit == 0 {
		return p
	}
	k.prepare(b)
	below := int32(nowhere) // a bunch with the next lower total
	var most, next int64
	var ties uint64
	var tied []int32
	for i := range b.list {
		one := &b.list[i]
		if one.size == 0 || k.shutOut(one) {
			continue
		}
		total := one.alone + k.compare(one)
		p.fit += one.size
		switch {
		case ties == 0 || total > most:
			if ties > 0 {
				next, below = most, tied[0]
			}
			most, ties, tied = total, uint64(one.size), append(tied[:0], int32(i))
		case total == most:
			ties, tied = ties+uint64(one.size), append(tied, int32(i))
		case below == nowhere || total > next:
			next, below = total, int32(i)
		}
	}
	if ties == 0 {
		return p
	}
	p.ties, p.at = int(ties), b.nth(tied, int(turn%ties))
	if below != nowhere {
		p.next = b.list[below].first()
	}
	return p
}
