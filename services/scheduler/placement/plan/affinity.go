package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// term is a term of affinity to pods, ready to be compared with many of them.
type term struct {
	namespaces []string
	selector   labels.Selector
	key        string // label of nodes: those with the same value are near each other
	weight     int64  // of a preferred term, negative for anti-affinity
}

func (t term) selects(key podKey, have labels.Set) bool {
	return slices.Contains(t.namespaces, key.namespace) && t.selector.Matches(have)
}

// terms is everything that a pod says about other pods.
type terms struct{ near, away, preferred []term }

// newTerms reads a pod's affinity to pods; nil if there is none. A selector that cannot be read selects nothing.
func newTerms(pod *schedulingv1.Pod) *terms {
	affinity := pod.GetSpec().GetAffinity()
	near, away := affinity.GetPodAffinity(), affinity.GetPodAntiAffinity()
	if near == nil && away == nil {
		return nil
	}
	var out terms
	namespace := pod.GetMetadata().GetNamespace()
	for _, t := range near.GetRequiredDuringSchedulingIgnoredDuringExecution() {
		out.near = append(out.near, newTerm(t, namespace, 0))
	}
	for _, t := range away.GetRequiredDuringSchedulingIgnoredDuringExecution() {
		out.away = append(out.away, newTerm(t, namespace, 0))
	}
	for _, t := range near.GetPreferredDuringSchedulingIgnoredDuringExecution() {
		out.preferred = append(out.preferred, newTerm(t.GetPodAffinityTerm(), namespace, int64(t.GetWeight())))
	}
	for _, t := range away.GetPreferredDuringSchedulingIgnoredDuringExecution() {
		out.preferred = append(out.preferred, newTerm(t.GetPodAffinityTerm(), namespace, -int64(t.GetWeight())))
	}
	return &out
}

func newTerm(t *schedulingv1.PodAffinityTerm, namespace string, weight int64) term {
	out := term{
		namespaces: t.GetNamespaces(), selector: placement.PodSelector(t.GetLabelSelector()),
		key: t.GetTopologyKey(), weight: weight,
	}
	if len(out.namespaces) == 0 {
		out.namespaces = []string{namespace}
	}
	return out
}

// topology is where a pod may not be, must be and had better be, for the sake of the pods that run. Values are those of
// the labels that the terms name; a node without the label is in no domain.
type topology struct {
	own        *terms
	key        podKey
	labels     labels.Set
	hardWeight int64

	forbidden map[domain]bool // true if the pod itself keeps away, false if one that runs does
	barring   []string        // the labels in forbidden, in order
	near      map[string]bool // joined values of the terms' labels where one pod meets all terms
	met       bool            // a pod meets all terms, wherever it is
	weights   map[domain]int64
	weighed   []string // the labels in weights, in order
}

type domain struct{ key, value string }

func newTopology(c *Cluster, own *terms, key podKey, have labels.Set, hardWeight int64) *topology {
	t := &topology{
		own: own, key: key, labels: have, hardWeight: hardWeight,
		forbidden: map[domain]bool{}, near: map[string]bool{}, weights: map[domain]int64{},
	}
	if own == nil {
		t.own = &terms{}
		for b := range c.affine {
			t.see(b)
		}
		return t
	}
	for _, b := range c.pods {
		t.see(b)
	}
	return t
}

// see takes a pod that runs into account.
func (t *topology) see(b *bound) {
	if b.node == nil {
		return
	}
	if b.terms != nil {
		t.meet(b)
	}
	for _, own := range t.own.away {
		if own.selects(b.key, b.labels) {
			t.forbid(own.key, b.node, true)
		}
	}
	if len(t.own.near) > 0 && !slices.ContainsFunc(t.own.near, func(o term) bool { return !o.selects(b.key, b.labels) }) {
		t.met = true
		if values, ok := t.values(b.node); ok {
			t.near[values] = true
		}
	}
	for _, own := range t.own.preferred {
		if own.selects(b.key, b.labels) {
			t.weigh(own.key, b.node, own.weight)
		}
	}
}

// meet takes into account what a pod that runs says about the newcomer.
func (t *topology) meet(b *bound) {
	for _, theirs := range b.terms.away {
		if theirs.selects(t.key, t.labels) {
			t.forbid(theirs.key, b.node, false)
		}
	}
	for _, theirs := range b.terms.near {
		if theirs.selects(t.key, t.labels) {
			t.weigh(theirs.key, b.node, t.hardWeight)
		}
	}
	for _, theirs := range b.terms.preferred {
		if theirs.selects(t.key, t.labels) {
			t.weigh(theirs.key, b.node, theirs.weight)
		}
	}
}

func (t *topology) forbid(key string, n *node, own bool) {
	if value, ok := n.labels[key]; ok {
		d := domain{key, value}
		t.forbidden[d] = t.forbidden[d] || own
		t.barring = insert(t.barring, key)
	}
}

func (t *topology) weigh(key string, n *node, weight int64) {
	value, ok := n.labels[key]
	if !ok {
		return
	}
	t.weights[domain{key, value}] += weight
	t.weighed = insert(t.weighed, key)
}

// insert adds a value to a sorted list that does not have it.
func insert(list []string, value string) []string {
	at, found := slices.BinarySearch(list, value)
	if found {
		return list
	}
	return slices.Insert(list, at, value)
}

// values joins the values that a node has for the labels of the required terms; false if it lacks one.
func (t *topology) values(n *node) (string, bool) {
	if len(t.own.near) == 1 {
		v, ok := n.labels[t.own.near[0].key]
		return v, ok
	}
	var b strings.Builder
	for _, own := range t.own.near {
		v, ok := n.labels[own.key]
		if !ok {
			return "", false
		}
		b.WriteString(v)
		b.WriteByte(0)
	}
	return b.String(), true
}

// meets reports whether a node satisfies the required affinity to pods. The first pod of a group, one that meets its
// own terms while no other does, may go anywhere.
func (t *topology) meets(n *node) bool {
	if len(t.own.near) == 0 {
		return true
	}
	if !t.met {
		return !slices.ContainsFunc(t.own.near, func(o term) bool { return !o.selects(t.key, t.labels) })
	}
	values, ok := t.values(n)
	return ok && t.near[values]
}

// binding reports whether any node may be out for the sake of pods that run.
func (t *topology) binding() bool { return t != nil && (len(t.forbidden) > 0 || len(t.own.near) > 0) }

// barred returns the domain that a node is in and the pod may not be in, and whether it is the pod itself that keeps
// away.
func (t *topology) barred(n *node) (d domain, own, is bool) {
	for _, key := range t.barring {
		if value, ok := n.labels[key]; ok {
			if own, is = t.forbidden[domain{key, value}]; is {
				return domain{key, value}, own, true
			}
		}
	}
	return domain{}, false, false
}

// weight returns the sum of the preferences that a node meets.
func (t *topology) weight(n *node) int64 {
	var sum int64
	for _, key := range t.weighed {
		if v, ok := n.labels[key]; ok {
			sum += t.weights[domain{key, v}]
		}
	}
	return sum
}
