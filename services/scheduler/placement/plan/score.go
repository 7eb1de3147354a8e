package plan

import (
	"math"

	"github.com/windlass-dev/windlass/kit/placement"
)

// best is the greatest score that a priority gives.
const best = 10

const (
	minImages = 23 << 20 // images below this many bytes are pulled quickly enough not to count
	maxImages = 1000 << 20
)

// norm is what one priority must know of all nodes that fit before it can judge one of them.
type norm struct {
	flat     bool  // every node gets score
	score    int64 // if flat
	min, max int64
	zones    []int64 // matching pods by zone; nil if no node has one
	maxZone  int64
	total    int64     // matching pods on the nodes that fit
	weights  []float64 // of soft constraints on the spread
	column   *column
	values   []int64 // matching pods by the number of the label's value
}

// reads are the traits of nodes that priorities compare.
type reads int

const (
	readsSelectors reads = 1 << iota // counts[bySelectors]
	readsServices                    // counts[byServices]
	readsFirst                       // counts[byFirst]
	readsAffinity
	readsWanted
	readsDisliked
	readsSpread
)

// Groups whose pods are counted, as indices of traits.counts.
const (
	bySelectors = iota // of all services and controllers of the pod
	byServices         // of its services
	byFirst            // of its first service
)

// prepare reads the nodes that fit, for the priorities that compare them.
func (k *class) prepare(b *bunches) {
	k.telling, k.weights = k.telling[:0], nil
	for i := range k.profile.priorities {
		p := &k.profile.priorities[i]
		if p.rank.alone != nil {
			continue
		}
		if k.norms[i] = p.rank.look(k, p, b); !k.norms[i].flat {
			k.telling = append(k.telling, i)
		}
	}
}

// each calls f with every bunch that has nodes, and a node that is in the same place.
func (k *class) each(b *bunches, f func(one *bunch, example *node)) {
	for i := range b.list {
		if one := &b.list[i]; one.size > 0 && !k.shutOut(one) {
			f(one, k.board.places.example[one.place])
		}
	}
}

// lookSpread returns a look that counts the pods of a group on the nodes that fit and in their zones.
func lookSpread(by int) func(*class, *priority, *bunches) norm {
	return func(k *class, _ *priority, b *bunches) norm {
		if k.groups[by] == nil {
			return norm{flat: true, score: best}
		}
		var m norm
		k.each(b, func(one *bunch, example *node) {
			m.max = max(m.max, int64(one.counts[by]))
			if zone := example.zone; zone > 0 {
				if m.zones == nil {
					m.zones = make([]int64, len(k.cluster.zones)+1)
				}
				m.zones[zone] += int64(one.counts[by]) * int64(one.size)
				m.maxZone = max(m.maxZone, m.zones[zone])
			}
		})
		return m
	}
}

// lookValues counts the pods of the first service that selects the pod, by the value of the priority's label.
func (k *class) lookValues(p *priority, b *bunches) norm {
	column := k.board.column(p.label)
	if len(column.numbers) == 0 {
		return norm{flat: true}
	}
	m := norm{column: column, values: make([]int64, len(column.numbers)+1)}
	k.each(b, func(one *bunch, example *node) {
		count := int64(one.counts[byFirst]) * int64(one.size)
		m.total += count
		m.values[column.values[example.at]] += count
	})
	return m
}

func (k *class) lookAffinity(_ *priority, b *bunches) (m norm) {
	if m.flat = k.topology == nil || len(k.topology.weights) == 0; m.flat {
		return m
	}
	if len(k.topology.coarse) > 0 {
		k.weights = make([]int64, len(k.board.places.example))
		for i, n := range k.board.places.example {
			k.weights[i] = k.topology.weight(n, k.topology.coarse)
		}
	}
	k.each(b, func(one *bunch, _ *node) {
		w := k.weight(one)
		m.min, m.max = min(m.min, w), max(m.max, w)
	})
	m.flat = m.min == m.max
	return m
}

// weight is the sum of the weights of affinity to pods for the nodes of a bunch.
func (k *class) weight(b *bunch) int64 {
	if k.weights == nil {
		return b.affinity
	}
	return b.affinity + k.weights[b.place]
}

func (k *class) lookPreferred(_ *priority, b *bunches) (m norm) {
	if m.flat = len(k.preferences) == 0; m.flat {
		return m
	}
	k.each(b, func(one *bunch, _ *node) { m.max = max(m.max, one.wanted) })
	m.flat = m.max == 0
	return m
}

func (k *class) lookTaints(_ *priority, b *bunches) (m norm) {
	k.each(b, func(one *bunch, _ *node) { m.max = max(m.max, int64(one.disliked)) })
	m.flat, m.score = m.max == 0, best
	return m
}

// compare is the weighted score of the nodes of a bunch by the priorities that distinguish nodes; see prepare.
func (k *class) compare(b *bunch) (sum int64) {
	for _, i := range k.telling {
		p := &k.profile.priorities[i]
		sum += p.weight * p.rank.compare(k, &k.norms[i], b)
	}
	return sum
}

// compared is the raw score, 0 to 10, of the nodes of a bunch by a priority that compares nodes.
func (k *class) compared(p *priority, m *norm, b *bunch) int64 {
	if m.flat {
		return m.score
	}
	return p.rank.compare(k, m, b)
}

func compareSpread(by int) func(*class, *norm, *bunch) int64 {
	return func(k *class, m *norm, b *bunch) int64 {
		return m.spread(int64(b.counts[by]), k.board.places.example[b.place].zone)
	}
}

func (k *class) compareValues(m *norm, b *bunch) int64 {
	value := m.column.values[k.board.places.example[b.place].at]
	switch {
	case value == 0:
		return 0
	case m.total == 0:
		return best
	}
	return best * (m.total - m.values[value]) / m.total
}

func (k *class) compareAffinity(m *norm, b *bunch) int64 {
	return best * (k.weight(b) - m.min) / (m.max - m.min)
}

func (k *class) comparePreferred(m *norm, b *bunch) int64 { return best * b.wanted / m.max }

func (k *class) compareTaints(m *norm, b *bunch) int64 {
	return best - best*int64(b.disliked)/m.max
}

// spread gives more to nodes and zones with fewer pods of the kind; a zone counts two thirds where there are any. What
// has no pods to compare with gets all.
func (m *norm) spread(count int64, zone int32) int64 {
	free, all := m.max-count, m.max
	if all == 0 {
		free, all = 1, 1
	}
	if m.zones == nil || zone == 0 {
		return best * free / all
	}
	zoneFree, zoneAll := m.maxZone-m.zones[zone], m.maxZone
	if zoneAll == 0 {
		zoneFree, zoneAll = 1, 1
	}
	return best * (free*zoneAll + 2*zoneFree*all) / (3 * all * zoneAll)
}

// weightOf is the sum of the weights of the preferred terms that a node matches.
func (k *class) weightOf(n *node) (sum int64) {
	for i := range k.preferences {
		if k.preferences[i].term.Matches(n.msg) {
			sum += k.preferences[i].weight
		}
	}
	return sum
}

// disliked is the number of PreferNoSchedule taints that the pod does not bear.
func (k *class) disliked(n *node) (count int64) {
	for _, t := range n.mild {
		if !placement.Tolerates(k.spec.GetTolerations(), t) {
			count++
		}
	}
	return count
}

// alone is the weighted score of a node by the priorities that depend on it alone.
func (k *class) alone(n *node) (sum int64) {
	for i := range k.profile.priorities {
		if p := &k.profile.priorities[i]; p.rank.alone != nil {
			sum += p.weight * p.rank.alone(k, p, n)
		}
	}
	return sum
}

func (k *class) leastRequested(_ *priority, n *node) int64 {
	return (left(n.cpu+k.cpu, n.has.MilliCPU) + left(n.memory+k.memory, n.has.Memory)) / 2
}

func (k *class) mostRequested(_ *priority, n *node) int64 {
	return (taken(n.cpu+k.cpu, n.has.MilliCPU) + taken(n.memory+k.memory, n.has.Memory)) / 2
}

func (k *class) balanced(_ *priority, n *node) int64 {
	c, m := fraction(n.cpu+k.cpu, n.has.MilliCPU), fraction(n.memory+k.memory, n.has.Memory)
	if c >= 1 || m >= 1 {
		return 0
	}
	return int64((1 - math.Abs(c-m)) * best)
}

func (k *class) notAvoided(_ *priority, n *node) int64 {
	if k.owner != "" && n.avoid[k.owner] {
		return 0
	}
	return best
}

func (k *class) preferred(p *priority, n *node) int64 {
	if _, ok := n.labels[p.label]; ok == p.presence {
		return best
	}
	return 0
}

func left(used, has int64) int64 {
	if has == 0 || used > has {
		return 0
	}
	return (has - used) * best / has
}

func taken(used, has int64) int64 {
	if has == 0 || used > has {
		return 0
	}
	return used * best / has
}

func fraction(used, has int64) float64 {
	if has == 0 {
		return 1
	}
	return float64(used) / float64(has)
}

// imagesOn gives more for more bytes of the pod's images that the node already has.
func (k *class) imagesOn(_ *priority, n *node) int64 {
	var sum int64
	for _, name := range k.images {
		sum += n.images[name]
	}
	switch {
	case sum < minImages:
		return 0
	case sum >= maxImages:
		return best
	}
	return best*(sum-minImages)/(maxImages-minImages) + 1
}
