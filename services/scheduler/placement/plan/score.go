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
	group    *group
	zones    []int64 // matching pods by zone; nil if no node has one
	maxZone  int64
	total    int64 // matching pods on the nodes that fit
	column   column
	values   []int64 // matching pods by the number of the label's value
}

// prepare reads the nodes that fit, for the priorities that compare them.
func (s *session) prepare(k *class) {
	k.telling = k.telling[:0]
	for i := range k.profile.priorities {
		p := &k.profile.priorities[i]
		if p.rank.alone != nil {
			continue
		}
		if k.norms[i] = p.rank.look(s, k, p); !k.norms[i].flat {
			k.telling = append(k.telling, i)
		}
	}
}

func (s *session) lookSelectors(k *class, _ *priority) norm {
	return s.lookSpread(k, k.cluster.group(k.key.namespace, k.selectors))
}

func (s *session) lookServices(k *class, _ *priority) norm {
	return s.lookSpread(k, k.cluster.group(k.key.namespace, k.services))
}

// lookSpread counts the pods of a group on the nodes that fit and in their zones; nil is no group.
func (s *session) lookSpread(k *class, g *group) norm {
	if g == nil {
		return norm{flat: true, score: best}
	}
	m := norm{group: g}
	for _, n := range s.nodes {
		count := g.on(n)
		m.max = max(m.max, count)
		if n.zone > 0 {
			if m.zones == nil {
				m.zones = make([]int64, len(k.cluster.zones)+1)
			}
			m.zones[n.zone] += count
			m.maxZone = max(m.maxZone, m.zones[n.zone])
		}
	}
	return m
}

// lookValues counts the pods of the first service that selects the pod, by the value of the priority's label.
func (s *session) lookValues(k *class, p *priority) norm {
	m := norm{
		group:  k.cluster.group(k.key.namespace, k.services[:min(1, len(k.services))]),
		column: s.column(p.label),
	}
	if m.flat = m.column.count == 0; m.flat {
		return m
	}
	m.values = make([]int64, m.column.count+1)
	for i, n := range s.nodes {
		count := m.group.on(n)
		m.total += count
		m.values[m.column.values[s.fit[i]]] += count
	}
	return m
}

func (s *session) lookAffinity(k *class, _ *priority) (m norm) {
	if m.flat = k.topology == nil || len(k.topology.weights) == 0; m.flat {
		return m
	}
	for _, n := range s.nodes {
		w := k.topology.weight(n)
		m.min, m.max = min(m.min, w), max(m.max, w)
	}
	m.flat = m.min == m.max
	return m
}

func (s *session) lookPreferred(k *class, _ *priority) (m norm) {
	if m.flat = len(k.preferences) == 0; m.flat {
		return m
	}
	for _, n := range s.nodes {
		m.max = max(m.max, k.weightOf(n))
	}
	m.flat = m.max == 0
	return m
}

func (s *session) lookTaints(k *class, _ *priority) (m norm) {
	for _, n := range s.nodes {
		m.max = max(m.max, k.disliked(n))
	}
	m.flat, m.score = m.max == 0, best
	return m
}

// compare is the weighted score of a node by the priorities that distinguish nodes; see prepare.
func (k *class) compare(n *node, at int32) (sum int64) {
	for _, i := range k.telling {
		p := &k.profile.priorities[i]
		sum += p.weight * k.compared(p, &k.norms[i], n, at)
	}
	return sum
}

// compared is the raw score, 0 to 10, of a node by a priority that compares nodes; at is its index.
func (k *class) compared(p *priority, m *norm, n *node, at int32) int64 {
	if m.flat {
		return m.score
	}
	return p.rank.compare(k, m, n, at)
}

func (k *class) compareSpread(m *norm, n *node, _ int32) int64 {
	return m.spread(m.group.on(n), n.zone)
}

func (k *class) compareValues(m *norm, _ *node, at int32) int64 {
	value := m.column.values[at]
	switch {
	case value == 0:
		return 0
	case m.total == 0:
		return best
	}
	return best * (m.total - m.values[value]) / m.total
}

func (k *class) compareAffinity(m *norm, n *node, _ int32) int64 {
	return best * (k.topology.weight(n) - m.min) / (m.max - m.min)
}

func (k *class) comparePreferred(m *norm, n *node, _ int32) int64 {
	return best * k.weightOf(n) / m.max
}

func (k *class) compareTaints(m *norm, n *node, _ int32) int64 {
	return best - best*k.disliked(n)/m.max
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
