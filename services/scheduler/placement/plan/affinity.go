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
// the labels that the terms name; a node without the label is in no domain. Everything is counted, so that pods may
// leave as well.
type topology struct {
	board      *board
	own        *terms
	key        podKey
	labels     labels.Set
	hardWeight int64

	forbidden map[domain]keepers
	barring   []string         // labels that forbidden had, in order
	near      map[string]int32 // pods that meet all terms, by the joined values of the terms' labels
	met       int32            // pods that meet all terms, wherever they are
	weights   map[domain]int64
	coarse    []string // labels that weights had and that are among the board's places, in order
	fine      []string // the other ones
	moved     moved
}

type domain struct{ key, value string }

// keepers are how often pods keep away from a domain: the pod itself, and those that run.
type keepers struct{ own, theirs int32 }

// moved is where the nodes are for which a topology says something else than before.
type moved struct {
	everywhere bool
	domains    []domain
}

func newTopology(b *board, own *terms, key podKey, have labels.Set) *topology {
	t := &topology{
		board: b, own: own, key: key, labels: have, hardWeight: b.profile.hardWeight,
		forbidden: map[domain]keepers{}, near: map[string]int32{}, weights: map[domain]int64{},
	}
	if own == nil {
		t.own = &terms{}
	}
	var spaces []string // that the terms name
	for _, list := range [][]term{t.own.near, t.own.away, t.own.preferred} {
		for _, o := range list {
			for _, n := range o.namespaces {
				spaces = insert(spaces, n)
			}
		}
	}
	for _, name := range spaces {
		if s := b.cluster.spaces[name]; s != nil {
			for _, other := range s.pods {
				t.see(other, other.node, 1)
			}
		}
	}
	for other := range b.cluster.affine {
		if _, seen := slices.BinarySearch(spaces, other.key.namespace); !seen {
			t.see(other, other.node, 1)
		}
	}
	return t
}

// see takes into account that a pod runs on a node (by is 1), or no longer does (-1).
func (t *topology) see(b *bound, n *node, by int32) {
	if n == nil {
		return
	}
	if b.terms != nil {
		t.meet(b, n, by)
	}
	for _, own := range t.own.away {
		if own.selects(b.key, b.labels) {
			t.forbid(own.key, n, keepers{own: by})
		}
	}
	if len(t.own.near) > 0 && !slices.ContainsFunc(t.own.near, func(o term) bool { return !o.selects(b.key, b.labels) }) {
		t.follow(n, by)
	}
	for _, own := range t.own.preferred {
		if own.selects(b.key, b.labels) {
			t.weigh(own.key, n, own.weight*int64(by))
		}
	}
}

// meet takes into account what a pod that runs says about the newcomer.
func (t *topology) meet(b *bound, n *node, by int32) {
	for _, theirs := range b.terms.away {
		if theirs.selects(t.key, t.labels) {
			t.forbid(theirs.key, n, keepers{theirs: by})
		}
	}
	for _, theirs := range b.terms.near {
		if theirs.selects(t.key, t.labels) {
			t.weigh(theirs.key, n, t.hardWeight*int64(by))
		}
	}
	for _, theirs := range b.terms.preferred {
		if theirs.selects(t.key, t.labels) {
			t.weigh(theirs.key, n, theirs.weight*int64(by))
		}
	}
}

func (t *topology) forbid(key string, n *node, by keepers) {
	value, ok := n.labels[key]
	if !ok {
		return
	}
	d := domain{key, value}
	was := t.forbidden[d]
	is := keepers{was.own + by.own, was.theirs + by.theirs}
	if is == (keepers{}) {
		delete(t.forbidden, d)
	} else {
		t.forbidden[d] = is
		t.barring = insert(t.barring, key)
	}
	if was == (keepers{}) || is == (keepers{}) {
		t.moved.domains = append(t.moved.domains, d)
	}
}

// follow counts a pod that meets all required terms.
func (t *topology) follow(n *node, by int32) {
	met := t.met > 0
	if t.met += by; met != (t.met > 0) {
		t.moved.everywhere = true
	}
	values, ok := t.values(n)
	if !ok {
		return
	}
	was := t.near[values]
	if t.near[values] = was + by; was+by == 0 {
		delete(t.near, values)
	}
	if was == 0 || was+by == 0 {
		key := t.own.near[0].key
		t.moved.domains = append(t.moved.domains, domain{key, n.labels[key]})
	}
}

func (t *topology) weigh(key string, n *node, weight int64) {
	value, ok := n.labels[key]
	if !ok {
		return
	}
	d := domain{key, value}
	if t.weights[d] += weight; t.weights[d] == 0 {
		delete(t.weights, d)
	}
	if slices.Contains(t.coarse, key) {
		return
	}
	if !slices.Contains(t.fine, key) {
		if t.board.coarse(key) {
			t.coarse = insert(t.coarse, key)
			return
		}
		t.fine = insert(t.fine, key)
	}
	t.moved.domains = append(t.moved.domains, d)
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
	if t.met == 0 {
		return !slices.ContainsFunc(t.own.near, func(o term) bool { return !o.selects(t.key, t.labels) })
	}
	values, ok := t.values(n)
	return ok && t.near[values] > 0
}

// idle reports whether all nodes are equal to the topology.
func (t *topology) idle() bool {
	return t == nil || len(t.forbidden) == 0 && len(t.own.near) == 0 && len(t.weights) == 0
}

// barred returns the domain that a node is in and the pod may not be in, and whether it is the pod itself that keeps
// away.
func (t *topology) barred(n *node) (d domain, own, is bool) {
	for _, key := range t.barring {
		if value, ok := n.labels[key]; ok {
			if by, is := t.forbidden[domain{key, value}]; is {
				return domain{key, value}, by.own > 0, true
			}
		}
	}
	return domain{}, false, false
}

// weight returns the sum of the preferences that a node meets, by some labels.
func (t *topology) weight(n *node, keys []string) int64 {
	var sum int64
	for _, key := range keys {
		if v, ok := n.labels[key]; ok {
			sum += t.weights[domain{key, v}]
		}
	}
	return sum
}
