package plan

import (
	"fmt"
	"math/bits"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// pick is the node that a class chose, and what it found.
type pick struct {
	bunches *bunches
	at      int // index of the node; nowhere if none fits
	fit     int // nodes that fit
	ties    int // of these, nodes with the highest total
	next    int // index of a node with the next lower total; nowhere if there is none
}

// choice is why a node was chosen. It is small, as each pod that is placed has one.
type choice struct {
	profile    *Profile
	fit, ties  int32
	node, next string  // next has the next lower total; empty if there is none
	scores     []int8  // by priority, of node and then of next
	ranks      []rated // by the extenders that ranked nodes
}

// rated is what an extender made of the nodes of a choice.
type rated struct {
	*Extender
	node, next int8
}

// choiceOf returns why a node was chosen, with what extenders said, nil if none was asked. The class has not changed
// since.
func (k *class) choiceOf(p pick, in *Inquiry) *choice {
	n := len(k.profile.priorities)
	c := &choice{profile: k.profile, fit: int32(p.fit), ties: int32(p.ties), node: k.cluster.nodes[p.at].name}
	if p.next == nowhere {
		c.scores = k.addRaw(make([]int8, 0, n), p.bunches, p.at)
	} else {
		c.next = k.cluster.nodes[p.next].name
		c.scores = k.addRaw(k.addRaw(make([]int8, 0, 2*n), p.bunches, p.at), p.bunches, p.next)
	}
	if in == nil {
		return c
	}
	for i, e := range in.extenders {
		if by := in.scores[i]; by != nil {
			c.ranks = append(c.ranks, rated{e, int8(by[c.node]), int8(by[c.next])})
		}
	}
	return c
}

// addRaw appends what each priority makes of a node that fits.
func (k *class) addRaw(scores []int8, b *bunches, at int) []int8 {
	for i := range k.profile.priorities {
		scores = append(scores, int8(k.raw(i, k.cluster.nodes[at], &b.list[b.of[at]])))
	}
	return scores
}

// first returns the index of the first node of a bunch that has nodes.
func (b *bunch) first() int {
	for w, word := range b.nodes {
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return nowhere
}

// raw is the score, 0 to 10, that the priority of an index gives to a node that fits.
func (k *class) raw(i int, n *node, b *bunch) int64 {
	p := &k.profile.priorities[i]
	if p.rank.alone != nil {
		return p.rank.alone(k, p, n)
	}
	return k.compared(p, &k.norms[i], b)
}

// scored writes down the scores that the priorities of a profile give to a node.
func (p *Profile) scored(node string, scores []int8) *schedulingv1.ExplainPodResponse_NodeVerdict {
	v := &schedulingv1.ExplainPodResponse_NodeVerdict{Node: node, Fits: true}
	for i, raw := range scores {
		one := &p.priorities[i]
		v.Scores = append(v.Scores, &schedulingv1.ExplainPodResponse_Score{
			Priority: one.name, Score: int32(raw), Weight: int32(one.weight), Weighted: int32(raw) * int32(one.weight),
		})
		v.Total += int32(raw) * int32(one.weight)
	}
	return v
}

// mostChoices is how many placements a queue remembers: about 300 bytes each.
const mostChoices = 1 << 16

// choices remembers why pods were placed on their nodes, the last ones.
type choices struct {
	of    map[object.Key]*remembered
	order []object.Key // a ring, in the order of the placements; a key may be gone, or placed again since
	at    int          // where the next one goes, once the ring is full
	most  int
}

// remembered is a choice that was stored.
type remembered struct {
	uid  string
	time time.Time
	at   int // its place in the ring
	*choice
}

func newChoices(most int) choices { return choices{of: map[object.Key]*remembered{}, most: most} }

// add remembers a choice whose binding is stored, and forgets the oldest beyond most.
func (c *choices) add(now time.Time, pod *schedulingv1.Pod, why *choice) {
	if why == nil {
		return
	}
	k, at := object.KeyOf(pod), len(c.order)
	if at < c.most {
		c.order = append(c.order, k)
	} else {
		at = c.at
		if old := c.of[c.order[at]]; old != nil && old.at == at {
			delete(c.of, c.order[at])
		}
		c.order[at] = k
		c.at = (at + 1) % c.most
	}
	c.of[k] = &remembered{uid: pod.GetMetadata().GetUid(), time: now, at: at, choice: why}
}

func (c *choices) remove(k object.Key) { delete(c.of, k) }

// explain says why a bound pod was placed on its node, or that it is not known.
func (c *choices) explain(pod *schedulingv1.Pod) *schedulingv1.ExplainPodResponse_Placement {
	p := c.of[object.KeyOf(pod)]
	if p == nil || p.uid != pod.GetMetadata().GetUid() || p.node != pod.GetSpec().GetNodeName() {
		return &schedulingv1.ExplainPodResponse_Placement{Unknown: fmt.Sprintf(
			"the scheduler that leads now did not choose the node, or has placed %d pods since", c.most)}
	}
	out := &schedulingv1.ExplainPodResponse_Placement{
		PlaceTime: timestamppb.New(p.time), FittingCount: p.fit, BestCount: p.ties,
	}
	n := len(p.profile.priorities)
	out.Chosen = p.profile.scored(p.node, p.scores[:n])
	for _, r := range p.ranks {
		r.rank(out.Chosen, int64(r.node))
	}
	if p.next == "" {
		return out
	}
	out.Next = p.profile.scored(p.next, p.scores[n:])
	for _, r := range p.ranks {
		r.rank(out.Next, int64(r.next))
	}
	return out
}
