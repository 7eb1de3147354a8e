package plan

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// oracle places one pod by the rules as they are written: it checks and scores every node, and counts all pods each
// time.
type oracle struct {
	*class
	fit    []*node
	totals []int64
}

// consult returns the name of the node that a pod should go to; empty if no node fits. The cluster is not changed.
func consult(c *Cluster, p *Profile, pod *schedulingv1.Pod, turn uint64) string {
	if c.refusal(p, pod) != "" {
		return ""
	}
	kept := c.boards
	c.boards = nil
	o := oracle{class: c.boardFor(p).classOf(pod)}
	c.boards = kept
	o.owner = replicasOf(pod) // even where no node is to be avoided by its pods
	for _, n := range c.nodes {
		if o.holds(n, fixed|usage) && o.served(n) && o.apart(n) && o.near(n) && o.even(n) {
			o.fit = append(o.fit, n)
		}
	}
	o.rank()
	var best []string
	for i, n := range o.fit {
		if o.totals[i] == slices.Max(o.totals) {
			best = append(best, n.name)
		}
	}
	if len(best) == 0 {
		return ""
	}
	return best[turn%uint64(len(best))]
}

// replicasOf returns the replication controller or replica set of a pod as kind/uid.
func replicasOf(pod *schedulingv1.Pod) string {
	for _, r := range pod.GetMetadata().GetOwnerReferences() {
		if r.GetController() && (r.GetKind() == "ReplicationController" || r.GetKind() == "ReplicaSet") {
			return r.GetKind() + "/" + r.GetUid()
		}
	}
	return ""
}

// holds checks all of some parts.
func (o *oracle) holds(n *node, what part) bool {
	for one := fixed; one <= others; one <<= 1 {
		if what&one != 0 && !o.class.holds(n, one) {
			return false
		}
	}
	return true
}

// running calls f with every pod that runs on a known node.
func (o *oracle) running(f func(b *bound)) {
	for _, b := range o.cluster.pods {
		if b.node != nil {
			f(b)
		}
	}
}

func (o *oracle) checks(name string) bool {
	return slices.ContainsFunc(o.profile.predicates, func(p predicate) bool {
		return slices.Contains(p.filter.names, name)
	})
}

func (o *oracle) served(n *node) bool {
	var peer *bound
	o.running(func(b *bound) {
		if len(o.services) > 0 && b.key.namespace == o.key.namespace && includes(b.labels, o.labels) &&
			(peer == nil || b.key.name < peer.key.name) {
			peer = b
		}
	})
	for _, p := range o.profile.predicates {
		if p.filter.argument != "serviceAffinity" {
			continue
		}
		for _, l := range p.labels {
			want, pinned := o.spec.GetNodeSelector()[l]
			if !pinned && peer != nil {
				want, pinned = peer.node.labels[l]
			}
			if have, ok := n.labels[l]; pinned && (!ok || have != want) {
				return false
			}
		}
	}
	return true
}

func together(a, b *node, key string) bool {
	x, ok := a.labels[key]
	y, also := b.labels[key]
	return ok && also && x == y
}

func (o *oracle) apart(n *node) bool {
	ok := true
	o.running(func(b *bound) {
		if o.terms != nil {
			for _, t := range o.terms.away {
				ok = ok && !(t.selects(b.key, b.labels) && together(n, b.node, t.key))
			}
		}
		if b.terms != nil {
			for _, t := range b.terms.away {
				ok = ok && !(t.selects(o.key, o.labels) && together(n, b.node, t.key))
			}
		}
	})
	return ok || !o.checks("MatchInterPodAffinity")
}

func (o *oracle) near(n *node) bool {
	if o.terms == nil || len(o.terms.near) == 0 || !o.checks("MatchInterPodAffinity") {
		return true
	}
	any, here := false, false
	o.running(func(b *bound) {
		all, close := true, true
		for _, t := range o.terms.near {
			all = all && t.selects(b.key, b.labels)
			close = close && together(n, b.node, t.key)
		}
		any, here = any || all, here || all && close
	})
	itself := !slices.ContainsFunc(o.terms.near, func(t term) bool { return !t.selects(o.key, o.labels) })
	return here || !any && itself
}

func (o *oracle) weight(n *node) (sum int64) {
	o.running(func(b *bound) {
		if o.terms != nil {
			for _, t := range o.terms.preferred {
				if t.selects(b.key, b.labels) && together(n, b.node, t.key) {
					sum += t.weight
				}
			}
		}
		if b.terms == nil {
			return
		}
		for _, t := range b.terms.near {
			if t.selects(o.key, o.labels) && together(n, b.node, t.key) {
				sum += o.profile.hardWeight
			}
		}
		for _, t := range b.terms.preferred {
			if t.selects(o.key, o.labels) && together(n, b.node, t.key) {
				sum += t.weight
			}
		}
	})
	return sum
}

// count returns how many pods that any of some selectors of the namespace select run on a node; ok is whether there are
// selectors.
func (o *oracle) count(n *node, keys []selectorKey) (count int64, ok bool) {
	o.running(func(b *bound) {
		if b.node == n && !b.leaving && b.key.namespace == o.key.namespace && slices.ContainsFunc(keys,
			func(k selectorKey) bool { return o.cluster.spaces[o.key.namespace].selectors[k].Matches(b.labels) }) {
			count++
		}
	})
	return count, len(keys) > 0
}

func (o *oracle) rank() {
	o.totals = make([]int64, len(o.fit))
	for i := range o.profile.priorities {
		p := &o.profile.priorities[i]
		for at, score := range o.scores(p) {
			o.totals[at] += p.weight * score
		}
	}
}

// scores returns what a priority gives the nodes that fit.
func (o *oracle) scores(p *priority) []int64 {
	out := make([]int64, len(o.fit))
	if p.rank.alone != nil {
		for i, n := range o.fit {
			out[i] = p.rank.alone(o.class, p, n)
		}
		return out
	}
	name := ""
	if len(p.rank.names) > 0 {
		name = p.rank.names[0]
	}
	switch name {
	case "SelectorSpreadPriority":
		o.spread(out, o.selectors)
	case "ServiceSpreadingPriority":
		o.spread(out, o.services)
	case "InterPodAffinityPriority":
		o.share(out, o.weight)
	case "NodeAffinityPriority":
		o.share(out, o.class.weightOf)
	case "TaintTolerationPriority":
		o.share(out, o.disliked)
		for i := range out {
			out[i] = best - out[i]
		}
	case "EvenPodsSpreadPriority":
		o.crowds(out)
	case "":
		o.values(out, p.label)
	default:
		panic(name)
	}
	return out
}

// rules returns the constraints on the spread of one kind.
func (o *oracle) rules(kind string) (out []spreadRule) {
	for _, in := range o.spec.GetTopologySpreadConstraints() {
		if c, _ := readSpreadRule("", in); c.WhenUnsatisfiable == kind {
			out = append(out, c)
		}
	}
	return out
}

// matching counts the pods on a node that a constraint selects.
func (o *oracle) matching(c spreadRule, n *node) (count int) {
	selector := c.selectorFor(o.labels)
	o.running(func(b *bound) {
		if b.node == n && !b.leaving && b.key.namespace == o.key.namespace && !selector.Empty() &&
			selector.Matches(b.labels) {
			count++
		}
	})
	return count
}

// counts reports whether a node counts for a constraint, which is one of some.
func (o *oracle) counts(c spreadRule, all []spreadRule, n *node) bool {
	return !slices.ContainsFunc(all, func(r spreadRule) bool { return !has(n, r.TopologyKey) }) &&
		(c.NodeAffinityPolicy == ignore || o.matcher.Matches(n.msg)) &&
		(c.NodeTaintsPolicy != honor || placement.Untolerated(o.spec.GetTolerations(), n.hard, "NoSchedule",
			"NoExecute") == nil)
}

func has(n *node, label string) bool {
	_, ok := n.labels[label]
	return ok
}

func (o *oracle) even(n *node) bool {
	all := o.rules(doNotSchedule)
	for _, c := range all {
		domains := map[string]int{}
		for _, other := range o.cluster.nodes {
			if o.counts(c, all, other) {
				domains[other.labels[c.TopologyKey]] += o.matching(c, other)
			}
		}
		least := 0
		if c.MinDomains == nil || len(domains) >= int(*c.MinDomains) {
			for _, count := range domains {
				least = count
			}
			for _, count := range domains {
				least = min(least, count)
			}
		}
		itself := 0
		if c.selectorFor(o.labels).Matches(o.labels) {
			itself = 1
		}
		if !has(n, c.TopologyKey) || domains[n.labels[c.TopologyKey]]+itself-least > int(c.MaxSkew) {
			return false
		}
	}
	return true
}

func (o *oracle) crowds(out []int64) {
	all := o.rules(scheduleAnyway)
	if len(all) == 0 {
		return
	}
	ranked := func(n *node) bool {
		return !slices.ContainsFunc(all, func(r spreadRule) bool { return !has(n, r.TopologyKey) })
	}
	sums := make([]float64, len(o.fit))
	for _, c := range all {
		values, nodes := map[string]int{}, 0
		for _, n := range o.fit {
			if ranked(n) {
				values[n.labels[c.TopologyKey]] = 0
				nodes++
			}
		}
		size := len(values)
		if c.TopologyKey == hostnameLabel {
			size = nodes
		}
		for _, n := range o.cluster.nodes {
			if _, ok := values[n.labels[c.TopologyKey]]; ok && o.counts(c, all, n) {
				values[n.labels[c.TopologyKey]] += o.matching(c, n)
			}
		}
		for i, n := range o.fit {
			count := values[n.labels[c.TopologyKey]]
			if c.TopologyKey == hostnameLabel {
				count = o.matching(c, n)
			}
			sums[i] += float64(count)*math.Log(float64(size+2)) + float64(c.MaxSkew-1)
		}
	}
	least, most := int64(math.MaxInt64), int64(0)
	for i, n := range o.fit {
		if ranked(n) {
			least, most = min(least, int64(math.Round(sums[i]))), max(most, int64(math.Round(sums[i])))
		}
	}
	for i, n := range o.fit {
		switch {
		case !ranked(n):
		case most == 0:
			out[i] = best
		default:
			out[i] = best * (most + least - int64(math.Round(sums[i]))) / most
		}
	}
}

// share gives 0 to 10 by where a value is between the least and the greatest, of which 0 is always one.
func (o *oracle) share(out []int64, of func(*node) int64) {
	var least, most int64
	for _, n := range o.fit {
		least, most = min(least, of(n)), max(most, of(n))
	}
	for i, n := range o.fit {
		if most > least {
			out[i] = best * (of(n) - least) / (most - least)
		}
	}
}

func (o *oracle) spread(out []int64, keys []selectorKey) {
	var m norm
	zones := map[int32]int64{}
	for _, n := range o.fit {
		count, _ := o.count(n, keys)
		m.max = max(m.max, count)
		if n.zone > 0 {
			zones[n.zone] += count
			m.maxZone = max(m.maxZone, zones[n.zone])
		}
	}
	if len(zones) > 0 {
		m.zones = make([]int64, len(o.cluster.zones)+1)
		for zone, count := range zones {
			m.zones[zone] = count
		}
	}
	for i, n := range o.fit {
		count, ok := o.count(n, keys)
		if out[i] = best; ok {
			out[i] = m.spread(count, n.zone)
		}
	}
}

func (o *oracle) values(out []int64, label string) {
	total, by := int64(0), map[string]int64{}
	for _, n := range o.fit {
		count, _ := o.count(n, o.services[:min(1, len(o.services))])
		total += count
		if v, ok := n.labels[label]; ok {
			by[v] += count
		}
	}
	for i, n := range o.fit {
		switch v, ok := n.labels[label]; {
		case !ok:
		case total == 0:
			out[i] = best
		default:
			out[i] = best * (total - by[v]) / total
		}
	}
}

// TestBunchesDecideAsTheRulesDo changes a cluster in every way, and compares each decision in between with that of the
// rules. Limits are drawn too, so that what is kept is dropped at any time.
func TestBunchesDecideAsTheRulesDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		c, profile := s.cluster(), Policy(s.policy)
		c.limits = limits{
			log: rapid.SampledFrom([]int{2, 8, 1 << 10}).Draw(t, "log"), kept: rapid.SampledFrom([]int{0, 300, 1 << 20}).Draw(t,
				"kept"), values: rapid.SampledFrom([]int{0, 1, 64}).Draw(t, "values"), places: 12,
		}
		var turn uint64
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			disturb(t, c, s)
			pods := rapid.SliceOfN(rapid.SampledFrom(s.pods), 1, 3).Draw(t, "next")
			for _, p := range pods {
				c.RemovePod("default", p.GetMetadata().GetName()) // it may be placed already
				if !rapid.Bool().Draw(t, "alone") {
					continue
				}
				want := consult(c, profile, p, turn)
				if d := placeAll(c, profile, []*schedulingv1.Pod{p}, &turn)[0]; d.Node != want {
					t.Fatalf("%v goes to %q, want %q", p, d.Node, want)
				}
			}
		}
	})
}

// disturb changes something about a cluster.
func disturb(t *rapid.T, c *Cluster, s scene) {
	at := rapid.IntRange(0, 9).Draw(t, "at")
	name := fmt.Sprint("node-", at)
	switch rapid.SampledFrom([]string{
		"nothing", "node", "node goes", "state", "pod", "pod goes", "pod leaves", "service", "service goes", "avoid",
	}).Draw(t, "change") {
	case "node":
		c.AddNode(drawNode(t, at))
	case "node goes":
		c.RemoveNode(name)
	case "state": // the labels remain
		if n := c.byName[name]; n != nil {
			now := proto.CloneOf(n.msg)
			now.Spec = drawNode(t, at).Spec
			now.Status = drawNode(t, at).Status
			c.AddNode(now)
		}
	case "avoid":
		if n := c.byName[name]; n != nil {
			now := proto.CloneOf(n.msg)
			now.Metadata.Annotations = map[string]string{avoidAnnotation: avoidsU1}
			c.AddNode(now)
		}
	case "pod":
		p := drawPod(t, fmt.Sprint("bound-", at))
		p.Spec.NodeName = fmt.Sprint("node-", rapid.IntRange(0, 9).Draw(t, "on"))
		c.AddPod(p)
	case "pod goes":
		c.RemovePod("default", fmt.Sprint("bound-", at))
	case "pod leaves":
		if at < len(s.bound) {
			p := proto.CloneOf(s.bound[at])
			p.Metadata.DeletionTimestamp = timestamppb.New(start)
			c.AddPod(p)
		}
	case "service":
		c.AddService(&schedulingv1.Service{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", at%2)},
			Spec: &schedulingv1.ServiceSpec{
				Selector: map[string]string{"app": rapid.SampledFrom([]string{"web", "db"}).Draw(t, "selects")},
			},
		})
	case "service goes":
		c.RemoveSelector(kindService, "default", fmt.Sprint("s", at%2))
	}
}
