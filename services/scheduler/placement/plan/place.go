package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Decision is the result for one pod.
type Decision struct {
	Pod  *schedulingv1.Pod
	Node string // where it goes; empty if it stays pending

	// Why it stays pending; empty if it does not.
	Message    string         // of the event FailedScheduling and the condition PodScheduled
	Reasons    map[string]int // number of nodes by reason, such as "Insufficient cpu"
	Predicates map[string]int // number of nodes by the rule that failed, such as PodFitsResources
	Refused    bool           // whatever the nodes are; Message says why
}

// placeAll decides where pods go: those of higher priority first, then the older ones, and returns the decisions in
// that order. Every pod that is placed counts in c for the next one and stays there as if it were bound: take it away
// with RemovePod if its binding cannot be written. Pods that are bound already, have ended or are being deleted must
// not be given. turn decides between nodes that are equally good; it counts the pods that were placed, so that a
// caller who keeps it goes round them.
func placeAll(c *Cluster, p *Profile, pods []*schedulingv1.Pod, turn *uint64) []Decision {
	queue := slices.Clone(pods)
	slices.SortStableFunc(queue, earlier)
	s := newSession(c, p)
	out := make([]Decision, 0, len(queue))
	for _, pod := range queue {
		out = append(out, s.place(pod, turn))
	}
	return out
}

// earlier orders pods as they are placed: by priority, age, namespace and name.
func earlier(a, b *schedulingv1.Pod) int {
	x, y := a.GetMetadata(), b.GetMetadata()
	return cmp.Or(
		cmp.Compare(b.GetSpec().GetPriority(), a.GetSpec().GetPriority()),
		cmp.Compare(x.GetCreationTimestamp().GetSeconds(), y.GetCreationTimestamp().GetSeconds()),
		cmp.Compare(x.GetCreationTimestamp().GetNanos(), y.GetCreationTimestamp().GetNanos()),
		strings.Compare(x.GetNamespace(), y.GetNamespace()),
		strings.Compare(x.GetName(), y.GetName()),
	)
}

// session is one call of placeAll or Explain: the cluster changes by it alone.
type session struct {
	cluster *Cluster
	profile *Profile
	classes map[string]*class
	changes []uint32 // by the index of the node; from 1
	fit     []int32  // indices of the nodes that fit the pod at hand
	nodes   []*node  // those nodes
	totals  []int64  // their scores
	columns map[string]column
}

// column is the values of one label on all nodes: their numbers by the index of the node, from 1; 0 where a node lacks
// the label.
type column struct {
	values []int32
	count  int
}

// maxCells bounds what is remembered of classes and nodes in one call, to some 64 MiB; classes beyond it are computed
// again for each pod.
const maxCells = 4 << 20

func newSession(c *Cluster, p *Profile) *session {
	s := &session{
		cluster: c, profile: p, classes: map[string]*class{}, changes: make([]uint32, len(c.nodes)),
		columns: map[string]column{},
	}
	for i := range s.changes {
		s.changes[i] = 1
	}
	return s
}

func (s *session) place(pod *schedulingv1.Pod, turn *uint64) Decision {
	id := classID(pod)
	k := s.classes[id]
	if k == nil {
		k = newClass(s.cluster, s.profile, pod)
		if len(s.classes)*len(s.changes) < maxCells {
			s.classes[id] = k
		}
	}
	if k.refused != "" {
		return Decision{Pod: pod, Message: k.refused, Refused: true}
	}
	if k.failed != nil {
		d := *k.failed
		d.Pod = pod
		return d
	}
	at := s.choose(k, *turn)
	if at < 0 {
		d := s.failure(k)
		d.Pod = pod
		if k.topology == nil || len(k.topology.own.near) == 0 {
			k.failed = &d
		}
		return d
	}
	*turn++
	n := s.cluster.nodes[at]
	s.changes[at]++
	b := s.cluster.bind(pod, n.name)
	for _, other := range s.classes {
		other.see(b)
	}
	return Decision{Pod: pod, Node: n.name}
}

// choose returns the index of the node that a pod of the class goes to, -1 if none fits. The nodes that fit and their
// scores stay in s.
func (s *session) choose(k *class, turn uint64) int {
	s.filter(k)
	if len(s.fit) <= 1 {
		if len(s.fit) == 0 {
			return -1
		}
		return int(s.fit[0])
	}
	most, ties := s.rank(k)
	skip := turn % ties
	for i, at := range s.fit {
		if s.totals[i] != most {
			continue
		}
		if skip == 0 {
			return int(at)
		}
		skip--
	}
	return -1
}

// filter finds the nodes that fit.
func (s *session) filter(k *class) {
	s.fit, s.nodes = s.fit[:0], s.nodes[:0]
	k.pin()
	moving := len(k.pins) > 0 || k.topology.binding()
	for i := range k.cells {
		c := &k.cells[i]
		if !c.known {
			c.known, c.open = true, k.passes(s.cluster.nodes[i], fixed, nil)
		}
		if !c.open {
			continue
		}
		n := s.cluster.nodes[i]
		if c.counted != s.changes[i] {
			c.counted, c.roomy, c.score = s.changes[i], k.passes(n, usage, nil), k.alone(n)
		}
		if !c.roomy || moving && !k.passes(n, others, nil) {
			continue
		}
		s.fit = append(s.fit, int32(i))
		s.nodes = append(s.nodes, n)
	}
}

// rank scores the nodes that fit and returns the greatest score and how many have it.
func (s *session) rank(k *class) (most int64, ties uint64) {
	s.prepare(k)
	s.totals = s.totals[:0]
	for i, at := range s.fit {
		total := k.cells[at].score + k.compare(s.nodes[i], at)
		s.totals = append(s.totals, total)
		switch {
		case i == 0 || total > most:
			most, ties = total, 1
		case total == most:
			ties++
		}
	}
	return most, ties
}

// column numbers the values of a label.
func (s *session) column(label string) column {
	if c, ok := s.columns[label]; ok {
		return c
	}
	c, numbers := column{values: make([]int32, len(s.cluster.nodes))}, map[string]int32{}
	for i, n := range s.cluster.nodes {
		value, ok := n.labels[label]
		if !ok {
			continue
		}
		if numbers[value] == 0 {
			numbers[value] = int32(len(numbers) + 1)
		}
		c.values[i] = numbers[value]
	}
	c.count = len(numbers)
	s.columns[label] = c
	return c
}

// judge returns everything that keeps the pods of a class from a node.
func (k *class) judge(n *node) []failure {
	var r report
	k.passes(n, fixed|usage|others, &r)
	return r.failures
}

// failure says why no node fits.
func (s *session) failure(k *class) Decision {
	tally := newTally(s.profile)
	for _, n := range s.cluster.nodes {
		tally.add(k.judge(n))
	}
	return Decision{Message: tally.message(), Reasons: tally.reasons, Predicates: tally.rules}
}

// tally counts why nodes are out. Unless the policy says otherwise only the first predicate that a node fails counts,
// as the predicates after it are not checked when a pod is placed.
type tally struct {
	all            bool
	nodes          int
	reasons, rules map[string]int
}

func newTally(p *Profile) *tally {
	return &tally{all: p.all, reasons: map[string]int{}, rules: map[string]int{}}
}

func (t *tally) add(failures []failure) {
	t.nodes++
	for i, f := range failures {
		if !t.all && f.predicate != failures[0].predicate {
			break
		}
		before := failures[:i]
		if !slices.ContainsFunc(before, func(o failure) bool { return o.short == f.short }) {
			t.reasons[f.short]++
		}
		if !slices.ContainsFunc(before, func(o failure) bool { return o.rule == f.rule }) {
			t.rules[f.rule]++
		}
	}
}

// message is the text of the event, with both wordings that documents show: the reasons, and the names of the
// predicates.
func (t *tally) message() string {
	if t.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	var reasons, rules []string
	for reason, n := range t.reasons {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(reasons)
	for _, rule := range slices.Sorted(maps.Keys(t.rules)) {
		rules = append(rules, fmt.Sprintf("%s (%d)", rule, t.rules[rule]))
	}
	return fmt.Sprintf(
		"0/%d nodes are available: %s. No nodes are available that match all of the following predicates: %s.",
		t.nodes, strings.Join(reasons, ", "), strings.Join(rules, ", "))
}
