package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// enoughCandidates is how many nodes are compared at most, if no victim of theirs has an exhausted budget. In a
	// greater cluster it is a tenth of the nodes. Source: Kubernetes' minCandidateNodesAbsolute and
	// minCandidateNodesPercentage.
	enoughCandidates = 100
	// mostPreempting is how many pods of one decision may preempt others; those beyond it are placed again at once.
	mostPreempting = 50
	// mostNamed is how many victims a message names.
	mostNamed = 5
)

// Preemption is which pods must leave a node so that a pod fits there.
type Preemption struct {
	Node    string // that the pod is nominated for
	Victims []Victim
}

// Victim is a pod of lower priority that is evicted for another.
type Victim struct {
	Key      object.Key
	UID      string
	Priority int32
	Budget   string // whose limit its eviction exceeds; empty if there is none

	bound *bound
}

// candidate is a node with what must leave it.
type candidate struct {
	Preemption
	violations int
}

// guard is a disruption budget. To read its selector takes twenty times as long as to match one pod.
type guard struct {
	status   *schedulingv1.PodDisruptionBudgetStatus
	selector labels.Selector
}

// AddBudget adds a disruption budget, or replaces the one of that name.
func (c *Cluster) AddBudget(b *schedulingv1.PodDisruptionBudget) {
	c.budgets[object.KeyOf(b)] = guard{b.GetStatus(), placement.PodSelector(b.GetSpec().GetSelector())}
}

// RemoveBudget takes a disruption budget away.
func (c *Cluster) RemoveBudget(k object.Key) { delete(c.budgets, k) }

// reserve counts a pod on the node that it is nominated for, so that what its victims leave is not given to others.
func (c *Cluster) reserve(pod *schedulingv1.Pod, node string) {
	b := newBound(pod, node)
	b.nominated = true
	c.RemovePod(b.key.namespace, b.key.name)
	c.put(b)
}

// withdraw takes the reservation of a pod away, and returns a function that restores it.
func (c *Cluster) withdraw(pod *schedulingv1.Pod) (restore func()) {
	m := pod.GetMetadata()
	b := c.pods[podKey{m.GetNamespace(), m.GetName()}]
	if b == nil || !b.nominated {
		return func() {}
	}
	c.take(b)
	return func() { c.put(b) }
}

// preempts reports whether a pod may have others evicted, and some pod has a lower priority.
func (c *Cluster) preempts(pod *schedulingv1.Pod) bool {
	if pod.GetSpec().GetPreemptionPolicy() == preemptNever {
		return false
	}
	for priority := range c.ranks {
		if priority < pod.GetSpec().GetPriority() {
			return true
		}
	}
	return false
}

// preempt returns the best way to have a pod fit that fits nowhere, nil if no eviction of pods of lower priority helps.
// Pods that are being deleted are not victims: they leave anyway. The cluster is as before when it returns.
func (c *Cluster) preempt(p *Profile, pod *schedulingv1.Pod) *Preemption {
	if !c.preempts(pod) {
		return nil
	}
	defer c.withdraw(pod)()
	b := c.boardFor(p)
	k := b.classOf(pod)
	k.catchUp()
	kept := c.boards
	c.boards = nil // what is taken away comes back, which no class needs to take in
	defer func() {
		c.boards = kept
		if k.topology != nil || k.spread != nil || len(k.services) > 0 {
			b.classes.drop(func(o *class) bool { return o == k }) // it has seen what no other class has
		}
	}()
	var best *candidate
	free := 0
	for _, n := range c.nodes {
		if free >= max(enoughCandidates, len(c.nodes)/10) {
			break
		}
		if !k.holds(n, fixed) {
			continue
		}
		one := k.without(n, pod.GetSpec().GetPriority())
		if one == nil {
			continue
		}
		if one.violations == 0 {
			free++
		}
		if best == nil || one.compare(best) < 0 {
			best = one
		}
	}
	if best == nil {
		return nil
	}
	return &best.Preemption
}

// compare orders candidates, the better first. Source: Kubernetes' pickOneNodeForPreemption.
func (a *candidate) compare(b *candidate) int {
	highest := func(c *candidate) int64 {
		if len(c.Victims) == 0 {
			return math.MinInt64
		}
		return int64(c.Victims[0].Priority)
	}
	sum := func(c *candidate) (sum int64) {
		for _, v := range c.Victims {
			sum += int64(v.Priority) + math.MaxInt32 + 1
		}
		return sum
	}
	earliest := func(c *candidate) (at int64) {
		for _, v := range c.Victims {
			if v.Priority == c.Victims[0].Priority && (at == 0 || v.bound.started < at) {
				at = v.bound.started
			}
		}
		return at
	}
	return cmp.Or(
		cmp.Compare(a.violations, b.violations), cmp.Compare(highest(a), highest(b)), cmp.Compare(sum(a), sum(b)),
		cmp.Compare(len(a.Victims), len(b.Victims)), cmp.Compare(earliest(b), earliest(a)),
	)
}

// without returns which pods of lower priority must leave a node for a pod of the class, nil if it does not fit without
// all of them either.
func (k *class) without(n *node, priority int32) *candidate {
	var lower, gone []*bound
	for b := range n.pods {
		switch {
		case b.leaving || b.nominated && b.priority < priority:
			gone = append(gone, b)
		case b.priority < priority:
			lower = append(lower, b)
		}
	}
	if len(lower)+len(gone) == 0 || !k.asksNothing && !k.mayFit(n, lower, gone) {
		return nil
	}
	slices.SortFunc(lower, moreImportant)
	for _, b := range slices.Concat(lower, gone) {
		k.leave(b)
	}
	defer func() {
		for _, b := range slices.Concat(lower, gone) {
			k.come(b, n)
		}
	}()
	if !k.fitsOn(n) {
		return nil
	}
	exceeded := k.cluster.exceeded(lower)
	slices.SortStableFunc(lower, func(a, b *bound) int { return first(exceeded[a] != "", exceeded[b] != "") })
	out := &candidate{Preemption: Preemption{Node: n.name}}
	for _, b := range lower {
		k.come(b, n)
		if k.fitsOn(n) {
			continue
		}
		k.leave(b)
		if exceeded[b] != "" {
			out.violations++
		}
		out.Victims = append(out.Victims, Victim{
			Key: object.Key{Namespace: b.key.namespace, Name: b.key.name}, UID: b.uid, Priority: b.priority,
			Budget: exceeded[b], bound: b,
		})
	}
	slices.SortFunc(out.Victims, func(a, b Victim) int { return moreImportant(a.bound, b.bound) })
	return out
}

// mayFit reports whether there is enough CPU and memory on a node without some pods. It is quick, and rules out most
// nodes.
func (k *class) mayFit(n *node, without ...[]*bound) bool {
	cpu, memory := n.used.MilliCPU+k.requests.MilliCPU, n.used.Memory+k.requests.Memory
	for _, list := range without {
		for _, b := range list {
			cpu, memory = cpu-b.requests.MilliCPU, memory-b.requests.Memory
		}
	}
	return cpu <= n.has.MilliCPU && memory <= n.has.Memory
}

// moreImportant orders pods by what it costs to evict them, the most expensive first.
func moreImportant(a, b *bound) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.started, b.started),
		strings.Compare(a.key.namespace, b.key.namespace), strings.Compare(a.key.name, b.key.name))
}

// leave takes a pod off its node for the class alone.
func (k *class) leave(b *bound) {
	if n := b.node; n != nil {
		k.cluster.detach(b)
		k.see([]change{{n, b, -1}})
	}
}

// come puts a pod on a node again.
func (k *class) come(b *bound, n *node) {
	if b.node == nil {
		k.cluster.attach(b, n)
		k.see([]change{{n, b, 1}})
	}
}

// fitsOn reports whether a pod of the class fits on a node whose own state it passes.
func (k *class) fitsOn(n *node) bool {
	if k.spread != nil {
		k.spread.settle()
	}
	k.pins = k.pin()
	return k.holds(n, usage) && k.holds(n, others) && k.holds(n, coarse)
}

// exceeded returns which of some pods, the most important first, may not be evicted because others of them use up a
// budget, or nothing is left of it, with the budget's name.
func (c *Cluster) exceeded(pods []*bound) map[*bound]string {
	out := map[*bound]string{}
	for key, g := range c.budgets {
		left := g.status.GetDisruptionsAllowed()
		for _, b := range pods {
			if b.key.namespace != key.Namespace || !g.selector.Matches(labels.Set(b.labels)) {
				continue
			}
			if _, already := g.status.GetDisruptedPods()[b.key.name]; already {
				continue
			}
			if left--; left < 0 && (out[b] == "" || key.Name < out[b]) {
				out[b] = key.Name
			}
		}
	}
	return out
}

// message says what a preemption does, or that none helps.
func (p *Preemption) message() string {
	if p == nil {
		return "Preemption: no node fits after the eviction of pods of lower priority."
	}
	var names []string
	for _, v := range p.Victims {
		if len(names) == mostNamed {
			names = append(names, fmt.Sprintf("and %d more", len(p.Victims)-mostNamed))
			break
		}
		name := fmt.Sprintf("%s (priority %d)", v.Key, v.Priority)
		if v.Budget != "" {
			name = fmt.Sprintf("%s (priority %d, against the budget %s)", v.Key, v.Priority, v.Budget)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return fmt.Sprintf("Preemption: the pod awaits that pods leave node %s.", p.Node)
	}
	return fmt.Sprintf("Preemption: the pod gets room on node %s by the eviction of %s.", p.Node,
		strings.Join(names, ", "))
}

// Preempt returns how a pod that fits nowhere could get room, nil if no eviction helps, and a sentence about it; the
// sentence is empty if the pod cannot preempt others.
func Preempt(c *Cluster, p *Profile, pod *schedulingv1.Pod) (*Preemption, string) {
	if !c.preempts(pod) {
		return nil, ""
	}
	if e := p.filtersNodes(pod.GetSpec()); e != nil {
		return nil, unhelped(e)
	}
	out := c.preempt(p, pod)
	return out, out.message()
}

// unhelped says why a pod evicts no others: the extender may reject the node that they left.
func unhelped(e *Extender) string {
	return fmt.Sprintf("Preemption: none, since the extender %s decides on the pod's nodes.", e.URL)
}
