package plan

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/webhook"
)

// What an extender is asked.
const (
	FilterNodes = "filter"     // which of Question.Nodes the pod may be on
	RankNodes   = "prioritize" // how good each of Question.Nodes is for the pod
)

// extenderRule is the rule that a node failed which an extender rejected.
const extenderRule = "Extender"

// mostRejections is how many different reasons of extenders one message counts.
const mostRejections = 5

// Question is what an extender must answer before a pod is decided on. Its messages must not be modified.
type Question struct {
	*Extender
	Verb  string
	Pod   *schedulingv1.Pod
	Nodes []*nodev1.Node

	of *Inquiry
}

// Answer is what came of a question: what the extender said, as it said it, or Err.
type Answer struct {
	Question
	Err    string            // why there is no answer; empty if there is one
	Nodes  []string          // of FilterNodes: the nodes that are left
	Failed map[string]string // of FilterNodes: the reason by node, of some of those that are not left
	Scores []NodeScore       // of RankNodes
}

// NodeScore is the score of an extender for a node.
type NodeScore struct {
	Node  string
	Score float64 // as it was sent; a whole number from 0 to 10 is right
}

// Inquiry is what extenders say about one pod. They filter the nodes that pass the predicates one after the other, and
// then rank what is left. Ask returns what they must answer next, and Take takes the answers in. Source: Kubernetes'
// scheduler.
type Inquiry struct {
	pod       *schedulingv1.Pod
	extenders []*Extender // those that the pod concerns
	said      []string    // by extender, for Explain: its answers in one line; empty if it was not asked
	open      int         // questions that are not answered
	step      int         // number of the next extender that may filter
	ranked    bool        // whether the extenders were asked to rank
	left      []*nodev1.Node
	rejected  map[string]failure
	scores    []map[string]int64 // by extender: raw score by node

	failedBy *Extender // that must answer and did not
	failed   string    // why
}

// NewInquiry begins to ask the extenders of a profile about a pod; nil if none is responsible for it. A pod that is
// bound is treated as if it were not.
func NewInquiry(c *Cluster, p *Profile, pod *schedulingv1.Pod) *Inquiry {
	extenders := p.extendersOf(pod.GetSpec())
	if len(extenders) == 0 {
		return nil
	}
	pod, restore := c.unbound(pod)
	defer restore()
	k := c.boardFor(p).classOf(pod)
	return newInquiry(extenders, pod, k.fitting(k.catchUp()))
}

func newInquiry(extenders []*Extender, pod *schedulingv1.Pod, fitting []*nodev1.Node) *Inquiry {
	return &Inquiry{
		pod: pod, extenders: extenders, left: fitting, rejected: map[string]failure{},
		said: make([]string, len(extenders)), scores: make([]map[string]int64, len(extenders)),
	}
}

// fitting returns the nodes of bunches that pass all predicates.
func (k *class) fitting(b *bunches) (out []*nodev1.Node) {
	for i, n := range k.cluster.nodes {
		if of := b.of[i]; of != nowhere && !k.shutOut(&b.list[of]) {
			out = append(out, n.msg)
		}
	}
	return out
}

// Ask returns the next questions; none while some are not answered, and at the end.
func (in *Inquiry) Ask() []Question {
	if in.open > 0 || in.failedBy != nil || len(in.left) == 0 {
		return nil
	}
	for in.step < len(in.extenders) {
		e := in.extenders[in.step]
		in.step++
		if e.Filter != "" {
			return in.ask([]*Extender{e}, FilterNodes)
		}
	}
	if in.ranked || len(in.left) == 1 { // of one node, the scores make no difference
		return nil
	}
	in.ranked = true
	var rank []*Extender
	for _, e := range in.extenders {
		if e.Prioritize != "" {
			rank = append(rank, e)
		}
	}
	return in.ask(rank, RankNodes)
}

func (in *Inquiry) ask(extenders []*Extender, verb string) (out []Question) {
	for _, e := range extenders {
		out = append(out, Question{Extender: e, Verb: verb, Pod: in.pod, Nodes: in.left, of: in})
	}
	in.open = len(out)
	return out
}

// Take takes in an answer, and returns why it is none; empty if it is one. An extender that does not filter as it must
// ends the inquiry unless it is ignorable. One that does not rank is left out. Source: Kubernetes' scheduler.
func (in *Inquiry) Take(a Answer) (fault string) {
	in.open--
	at := slices.Index(in.extenders, a.Extender)
	fault = brief(a.Err)
	switch {
	case fault != "":
	case a.Verb == FilterNodes:
		fault = in.filter(a)
	default:
		in.scores[at], fault = scoresOf(a)
	}
	switch {
	case fault == "" && a.Verb == FilterNodes:
		in.say(at, fmt.Sprintf("it leaves %d of %d nodes", len(in.left), len(a.Question.Nodes)))
	case fault == "":
		in.say(at, fmt.Sprintf("it ranks %d nodes", len(in.scores[at])))
	case a.Verb == RankNodes:
		in.say(at, "its ranking is left out: "+fault)
	case a.Ignorable:
		in.say(at, "its filter is left out, since it is ignorable: "+fault)
	default:
		in.say(at, fault)
		in.failedBy, in.failed = a.Extender, fault
	}
	return fault
}

func (in *Inquiry) say(at int, text string) {
	if in.said[at] != "" {
		text = in.said[at] + "; " + text
	}
	in.said[at] = text
}

// filter leaves the nodes of an answer, or returns why it is none.
func (in *Inquiry) filter(a Answer) string {
	left := map[string]bool{}
	for _, name := range a.Nodes {
		if left[name] {
			return fmt.Sprintf("it names node %q twice", brief(name))
		}
		left[name] = true
	}
	var kept []*nodev1.Node
	for _, n := range in.left {
		name := n.GetMetadata().GetName()
		if left[name] {
			kept = append(kept, n)
			delete(left, name)
			continue
		}
		in.rejected[name] = rejection(a.Extender, brief(a.Failed[name]))
	}
	if len(left) > 0 {
		for _, n := range in.left {
			delete(in.rejected, n.GetMetadata().GetName())
		}
		return fmt.Sprintf("it names node %q, which it was not asked about", brief(slices.Sorted(maps.Keys(left))[0]))
	}
	in.left = kept
	return ""
}

func rejection(e *Extender, reason string) failure {
	f := failure{predicate: extenderRule, rule: extenderRule, short: "node(s) were rejected by the extender " + e.URL}
	f.say = func() (string, string) {
		return reason, "the extender changes its answer, or the pod asks for something else"
	}
	if reason != "" {
		f.detailed = f.short + " (" + reason + ")"
	}
	return f
}

// scoresOf returns the scores of an answer by node, or why it is none.
func scoresOf(a Answer) (map[string]int64, string) {
	known := map[string]bool{}
	for _, n := range a.Question.Nodes {
		known[n.GetMetadata().GetName()] = true
	}
	out := map[string]int64{}
	for _, s := range a.Scores {
		switch _, twice := out[s.Node]; {
		case !known[s.Node]:
			return nil, fmt.Sprintf("it ranks node %q, which it was not asked about", brief(s.Node))
		case twice:
			return nil, fmt.Sprintf("it ranks node %q twice", brief(s.Node))
		case !(s.Score >= 0 && s.Score <= best) || math.Trunc(s.Score) != s.Score: // also NaN
			return nil, fmt.Sprintf("it gives node %q a score of %g, which must be a whole number from 0 to %d", brief(s.Node),
				s.Score, best)
		}
		out[s.Node] = int64(s.Score)
	}
	return out, ""
}

// score is the weighted sum of the scores of extenders for a node.
func (in *Inquiry) score(node string) (sum int64) {
	if in == nil {
		return 0
	}
	for i, e := range in.extenders {
		sum += e.Weight * in.scores[i][node]
	}
	return sum
}

// among returns the nodes of bunches that the extenders leave.
func (in *Inquiry) among(k *class, b *bunches) *bunches {
	left := map[string]bool{}
	for _, n := range in.left {
		left[n.GetMetadata().GetName()] = true
	}
	out := b.copyOf()
	for i, n := range k.cluster.nodes {
		if !left[n.name] {
			out.remove(i)
		}
	}
	return out
}

// choose returns the node that the pod of the inquiry goes to, of those that pass all predicates now and that the
// extenders leave.
func (in *Inquiry) choose(k *class, b *bunches, turn uint64) pick {
	b = in.among(k, b)
	if !in.ranked {
		return k.chooseFrom(b, turn)
	}
	k.prepare(b)
	p := pick{bunches: b, at: nowhere, next: nowhere}
	var most, next int64
	var tied []int
	for i, n := range k.cluster.nodes {
		of := b.of[i]
		if of == nowhere || k.shutOut(&b.list[of]) {
			continue
		}
		one := &b.list[of]
		total := one.alone + k.compare(one) + in.score(n.name)
		p.fit++
		switch {
		case len(tied) == 0 || total > most:
			if len(tied) > 0 {
				next, p.next = most, tied[0]
			}
			most, tied = total, append(tied[:0], i)
		case total == most:
			tied = append(tied, i)
		case p.next == nowhere || total > next:
			next, p.next = total, i
		}
	}
	if p.ties = len(tied); p.ties > 0 {
		p.at = tied[turn%uint64(p.ties)]
	}
	return p
}

// placeAnswered decides where the pod of an inquiry goes that has no further question. again means that the extenders
// must be asked once more: nodes fit that they were not asked about, and those that they leave do not any more.
func (b *board) placeAnswered(in *Inquiry, turn *uint64) (d Decision, again bool) {
	if in.failedBy != nil {
		return Decision{Pod: in.pod, Message: unanswered(in.failedBy, in.failed), Refused: true, Extended: true}, false
	}
	if why := b.cluster.refusal(b.profile, in.pod); why != "" { // by its claims, since it was asked about
		return Decision{Pod: in.pod, Message: why, Refused: true}, false
	}
	restore := b.cluster.withdraw(in.pod)
	k := b.classOf(in.pod)
	all := k.catchUp()
	if p := in.choose(k, all, *turn); p.at != nowhere {
		*turn++
		if d = k.settleOn(p, in, in.pod); d.Node == "" {
			restore()
		}
		return d, false
	}
	defer restore()
	tally := newTally(b.profile)
	rejected := false
	for i, n := range b.cluster.nodes {
		if of := all.of[i]; of == nowhere || k.shutOut(&all.list[of]) {
			tally.add(n.name, k.judge(n))
			continue
		}
		f, is := in.rejected[n.name]
		if !is {
			return Decision{}, true
		}
		rejected = true
		tally.reject(n.name, f)
	}
	d = tally.decision()
	d.Pod, d.Extended = in.pod, rejected
	return d, false
}

// reject counts a node that an extender rejected, by the extender's reason unless there are too many.
func (t *tally) reject(node string, f failure) {
	if f.detailed != "" {
		if t.detailed == nil {
			t.detailed = map[string]bool{}
		}
		if t.detailed[f.detailed] || len(t.detailed) < mostRejections {
			t.detailed[f.detailed] = true
			f.short = f.detailed
		}
	}
	t.add(node, []failure{f})
}

// unanswered says that an extender must answer and did not.
func unanswered(e *Extender, why string) string {
	return fmt.Sprintf("The extender %s decides on this pod and did not answer: %s.", webhook.Shown(e.URL),
		strings.TrimSuffix(why, "."))
}
