package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

const (
	// mostReasons is how many reasons a message and a verdict list: nodes may have a taint each.
	mostReasons = 16
	// mostChanges is how many changes a verdict lists.
	mostChanges = 8
	// mostExamples is how many nodes it names for each of them.
	mostExamples = 3
)

// Verdict is why no node fits a pod. Its size is bounded whatever the number of nodes is; it is shared and never
// modified.
type Verdict struct {
	Obstacles []*schedulingv1.ExplainPodResponse_Obstacle // the most frequent first
	Changes   []*schedulingv1.ExplainPodResponse_Change   // each by itself has nodes fit
}

// tally counts why nodes are out. Unless the policy says otherwise only the first predicate that a node fails counts,
// as the predicates after it are not checked when a pod is placed.
type tally struct {
	all     bool
	nodes   int
	reasons map[string]*counted
	rules   map[string]int
	changes map[string]*remedy // by what distinguishes them

	detailed map[string]bool // reasons of extenders
}

// counted is a number of nodes.
type counted struct {
	nodes    int
	examples []string
}

func (c *counted) add(node string) {
	if c.nodes++; len(c.examples) < mostExamples {
		c.examples = append(c.examples, node)
	}
}

// remedy is a change by which nodes would fit.
type remedy struct {
	counted
	best  string    // of the nodes
	lacks float64   // what best is short of, relative to what the pod asks for
	of    []failure // of best
}

func newTally(p *Profile) *tally {
	return &tally{all: p.all, reasons: map[string]*counted{}, rules: map[string]int{}, changes: map[string]*remedy{}}
}

// add counts a node with everything that keeps the pod from it.
func (t *tally) add(node string, failures []failure) {
	t.nodes++
	for i, f := range failures {
		if !t.all && f.predicate != failures[0].predicate {
			break
		}
		before := failures[:i]
		if !slices.ContainsFunc(before, func(o failure) bool { return o.short == f.short }) {
			c := t.reasons[f.short]
			if c == nil {
				c = &counted{}
				t.reasons[f.short] = c
			}
			c.add(node)
		}
		if !slices.ContainsFunc(before, func(o failure) bool { return o.rule == f.rule }) {
			t.rules[f.rule]++
		}
	}
	t.want(node, failures)
}

// remedies are the rules that one change has a node pass, if the rule has nothing else against it.
var remedies = []string{
	"CheckNodeCondition", "CheckNodeUnschedulable", "MatchNodeSelector", "PodFitsResources", "PodToleratesNodeTaints",
	"CheckNodeMemoryPressure", "CheckNodePIDPressure", "CheckNodeDiskPressure",
}

// want counts a node to the change that would have it fit, if one would.
func (t *tally) want(node string, failures []failure) {
	if len(failures) == 0 {
		return
	}
	lead := failures[0]
	if !slices.Contains(remedies, lead.rule) {
		return
	}
	key, lacks := lead.short, 0.0
	for _, f := range failures {
		if f.rule != lead.rule || f.behind {
			return
		}
		switch {
		case f.resource != "":
			key = f.rule
			lacks += float64(f.asked-f.free) / float64(max(f.asked, 1))
		case f.taint != nil && !sameTaint(f.taint, lead.taint):
			return
		case f.taint != nil:
			key = taintText(f.taint)
		case f.short != lead.short:
			return
		}
	}
	w := t.changes[key]
	if w == nil {
		w = &remedy{lacks: math.Inf(1)}
		t.changes[key] = w
	}
	if w.add(node); lacks < w.lacks {
		w.best, w.lacks, w.of = node, lacks, failures
	}
}

// decision returns the decision that leaves a pod pending for these reasons.
func (t *tally) decision() Decision {
	return Decision{Message: t.message(), Reasons: t.counts(), Predicates: t.rules, Verdict: t.verdict()}
}

// counts returns the number of nodes by reason.
func (t *tally) counts() map[string]int {
	out := make(map[string]int, len(t.reasons))
	for reason, c := range t.reasons {
		out[reason] = c.nodes
	}
	return out
}

// frequent returns the reasons, the most frequent first.
func (t *tally) frequent() []string {
	return slices.SortedFunc(maps.Keys(t.reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.reasons[b].nodes, t.reasons[a].nodes), strings.Compare(a, b))
	})
}

// message is the text of the event, with both wordings that documents show: the reasons, and the names of the
// predicates.
func (t *tally) message() string {
	if t.nodes == 0 {
		return "no nodes available to schedule pods"
	}
	frequent := t.frequent()
	var reasons, rules []string
	for _, reason := range frequent[:min(len(frequent), mostReasons)] {
		reasons = append(reasons, fmt.Sprintf("%d %s", t.reasons[reason].nodes, reason))
	}
	slices.Sort(reasons)
	if more := len(frequent) - mostReasons; more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d further reasons", more))
	}
	for _, rule := range slices.Sorted(maps.Keys(t.rules)) {
		rules = append(rules, fmt.Sprintf("%s (%d)", rule, t.rules[rule]))
	}
	return fmt.Sprintf(
		"0/%d nodes are available: %s. No nodes are available that match all of the following predicates: %s.",
		t.nodes, strings.Join(reasons, ", "), strings.Join(rules, ", "))
}

// verdict returns the result for people.
func (t *tally) verdict() (v Verdict) {
	frequent := t.frequent()
	for _, reason := range frequent[:min(len(frequent), mostReasons)] {
		c := t.reasons[reason]
		v.Obstacles = append(v.Obstacles, &schedulingv1.ExplainPodResponse_Obstacle{
			Reason: reason, NodeCount: int32(c.nodes), Examples: c.examples,
		})
	}
	if more := len(frequent) - mostReasons; more > 0 {
		v.Obstacles = append(v.Obstacles, &schedulingv1.ExplainPodResponse_Obstacle{NodeCount: int32(more)})
	}
	keys := slices.SortedFunc(maps.Keys(t.changes), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.changes[b].nodes, t.changes[a].nodes), strings.Compare(a, b))
	})
	for _, key := range keys[:min(len(keys), mostChanges)] {
		w := t.changes[key]
		v.Changes = append(v.Changes, &schedulingv1.ExplainPodResponse_Change{
			Change: w.say(), NodeCount: int32(w.nodes), Examples: w.examples,
		})
	}
	return v
}

// say is the change in one sentence. Of resources it is what would have to be free on the node that lacks the least.
func (w *remedy) say() string {
	lead := w.of[0]
	switch {
	case lead.taint != nil:
		return "tolerate the taint " + taintText(lead.taint)
	case lead.resource != "":
		var short []string
		for _, f := range w.of {
			// Two predicates may report the same.
			if text := fmt.Sprintf("%s %s", format(f.resource, f.asked-f.free), f.resource); !slices.Contains(short, text) {
				short = append(short, text)
			}
		}
		return fmt.Sprintf("free %s on %s, which lacks the least", strings.Join(short, " and "), w.best)
	}
	var said []string
	for _, f := range w.of {
		_, unblock := f.reason()
		said = append(said, unblock)
	}
	if lead.rule == "MatchNodeSelector" && w.nodes > 1 {
		return strings.Join(said, ", ") + ", as on " + w.best
	}
	return strings.Join(said, ", ")
}

func taintText(t *nodev1.Taint) string {
	if t.GetValue() == "" {
		return t.GetKey() + ":" + t.GetEffect()
	}
	return t.GetKey() + "=" + t.GetValue() + ":" + t.GetEffect()
}
