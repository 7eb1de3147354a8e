package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/webhook"
)

// DefaultScheduler is the name of the scheduler that places pods which name no other.
const DefaultScheduler = "default-scheduler"

// Explanation is the evaluation of a pod at one moment. It has nothing of the cluster that changes, so that it is
// written down beside further changes.
type Explanation struct {
	out     *schedulingv1.ExplainPodResponse // without what is below
	profile *Profile
	pod     *schedulingv1.Pod
	inquiry *Inquiry // without further questions; nil if extenders were not asked
	nodes   []evaluated
	scores  []int8 // of the nodes that fit, each as many as there are priorities, in the order of nodes
	preempt string // about the eviction of other pods; empty if the pod may evict none
}

// evaluated is the evaluation of one node.
type evaluated struct {
	name     string
	fits     bool      // and the extenders leave it
	failures []failure // by predicates
}

// Explain says of each node which predicates a pod fails and why, what each priority makes of it, and where placeAll
// would put the pod now with the same turn. A pod that is bound is treated as if it were not: it leaves c for that
// time and is there again afterwards. Of equally good nodes, its own is named as the best.
//
// Extenders are not asked.
func Explain(c *Cluster, p *Profile, pod *schedulingv1.Pod, turn uint64) *schedulingv1.ExplainPodResponse {
	return ExplainAnswered(c, p, pod, turn, nil)
}

// ExplainAnswered is Explain with what the extenders say, in an inquiry without further questions; nil if they were not
// asked.
func ExplainAnswered(c *Cluster, p *Profile, pod *schedulingv1.Pod, turn uint64,
	in *Inquiry,
) *schedulingv1.ExplainPodResponse {
	return evaluate(c, p, pod, turn, in).Response()
}

// evaluate is ExplainAnswered, but what takes long is left to Response.
func evaluate(c *Cluster, p *Profile, pod *schedulingv1.Pod, turn uint64, in *Inquiry) *Explanation {
	out := &schedulingv1.ExplainPodResponse{
		BoundTo: pod.GetSpec().GetNodeName(), SchedulerName: SchedulerOf(pod), NodeCount: int32(len(c.nodes)),
	}
	pod, restore := c.unbound(pod)
	defer restore()
	out.Extenders = in.verdicts(p, pod.GetSpec())
	if out.Refused = c.refusal(p, pod); out.Refused == "" && in != nil && in.failedBy != nil {
		out.Refused = unanswered(in.failedBy, in.failed)
	}
	e := &Explanation{out: out, profile: p, pod: pod, inquiry: in, nodes: make([]evaluated, len(c.nodes))}
	k := c.boardFor(p).classOf(pod)
	chosen := e.choose(k, turn)
	if chosen.at != nowhere && out.Refused == "" {
		out.Best = c.nodes[chosen.at].name
	}
	fitting := chosen.bunches
	for i, n := range c.nodes {
		of := fitting.of[i]
		one := &e.nodes[i]
		one.name = n.name
		if one.fits = of != nowhere && !k.shutOut(&fitting.list[of]); !one.fits {
			one.failures = k.judge(n)
			continue
		}
		for which := range p.priorities {
			e.scores = append(e.scores, int8(k.raw(which, n, &fitting.list[of])))
		}
	}
	if chosen.at == nowhere && out.Refused == "" {
		_, e.preempt = Preempt(c, p, pod)
	}
	return e
}

// choose returns the node that the pod of an explanation would go to. Without the answer of an extender that must
// answer, it is that of all nodes that fit.
func (e *Explanation) choose(k *class, turn uint64) pick {
	fitting := k.catchUp()
	if e.inquiry == nil || e.inquiry.failedBy != nil {
		return k.chooseFrom(fitting, turn)
	}
	return e.inquiry.choose(k, fitting, turn)
}

// Response writes an explanation down. It is called once.
func (e *Explanation) Response() *schedulingv1.ExplainPodResponse {
	out, tally, scores := e.out, newTally(e.profile), e.scores
	most, own := int32(0), false // the highest total, and whether the pod's node has it
	for _, n := range e.nodes {
		v := &schedulingv1.ExplainPodResponse_NodeVerdict{Node: n.name}
		if n.fits {
			v = e.profile.scored(n.name, scores[:len(e.profile.priorities)])
			scores = scores[len(e.profile.priorities):]
			e.inquiry.addScores(v)
			switch {
			case v.GetTotal() > most:
				most, own = v.GetTotal(), n.name == out.GetBoundTo()
			case v.GetTotal() == most:
				own = own || n.name == out.GetBoundTo()
			}
		} else {
			for _, f := range e.count(tally, n) {
				v.Failures = append(v.Failures, f.explain())
			}
		}
		out.Nodes = append(out.Nodes, v)
	}
	if own && out.GetRefused() == "" {
		out.Best = out.GetBoundTo()
	}
	switch m := e.pod.GetMetadata(); {
	case out.GetRefused() != "":
		out.Message = out.GetRefused()
	case out.GetBest() == "":
		out.Message = strings.TrimSpace(tally.message() + " " + e.preempt)
		v := tally.verdict()
		out.Obstacles, out.Changes = v.Obstacles, v.Changes
	case e.inquiry == nil && len(out.GetExtenders()) > 0:
		out.Message = fmt.Sprintf("Node %s is the best without the extenders of the policy, which were not asked",
			out.GetBest())
	default:
		out.Message = fmt.Sprintf("Successfully assigned %s/%s to %s", m.GetNamespace(), m.GetName(), out.GetBest())
	}
	slices.SortStableFunc(out.GetNodes(), func(a, b *schedulingv1.ExplainPodResponse_NodeVerdict) int {
		return cmp.Or(
			first(a.GetNode() == out.GetBest(), b.GetNode() == out.GetBest()), first(a.GetFits(), b.GetFits()),
			cmp.Compare(b.GetTotal(), a.GetTotal()), strings.Compare(a.GetNode(), b.GetNode()),
		)
	})
	return out
}

// count counts a node that does not fit, and returns everything that keeps the pod from it.
func (e *Explanation) count(t *tally, n evaluated) []failure {
	if len(n.failures) > 0 {
		t.add(n.name, n.failures)
		return n.failures
	}
	f, is := e.inquiry.rejection(n.name)
	if !is {
		f = unasked() // when a pod is placed, the extenders are asked again
	}
	t.reject(n.name, f)
	return []failure{f}
}

// unbound takes a pod that is bound off its node, and returns it without a node. restore undoes that.
func (c *Cluster) unbound(pod *schedulingv1.Pod) (_ *schedulingv1.Pod, restore func()) {
	m := pod.GetMetadata()
	restore = func() {}
	if b := c.pods[podKey{m.GetNamespace(), m.GetName()}]; b != nil {
		c.take(b)
		restore = func() { c.put(b) }
	}
	if pod.GetSpec().GetNodeName() != "" {
		pod = proto.Clone(pod).(*schedulingv1.Pod)
		pod.Spec.NodeName = ""
	}
	return pod, restore
}

// verdicts says what the extenders of a pod answered.
func (in *Inquiry) verdicts(p *Profile, spec *schedulingv1.PodSpec) (
	out []*schedulingv1.ExplainPodResponse_ExtenderVerdict,
) {
	for i, e := range p.extendersOf(spec) {
		v := &schedulingv1.ExplainPodResponse_ExtenderVerdict{Url: webhook.Shown(e.URL), Message: "it was not asked"}
		switch {
		case in != nil && in.said[i] != "":
			v.Asked, v.Message = true, in.said[i]
		case in != nil && len(in.left) == 0:
			v.Message = "it was not asked, since no node is left"
		case in != nil && len(in.left) == 1:
			v.Message = "it was not asked to rank, since one node is left"
		}
		out = append(out, v)
	}
	return out
}

// rejection returns the failure of a node that an extender rejected.
func (in *Inquiry) rejection(node string) (failure, bool) {
	if in == nil {
		return failure{}, false
	}
	f, ok := in.rejected[node]
	return f, ok
}

// unasked is the failure of a node that passes the predicates only since the extenders were asked.
func unasked() failure {
	return failure{
		predicate: extenderRule, rule: extenderRule, short: "node(s) fit only since the extenders were asked",
		say: func() (string, string) { return "", "the extenders are asked again" },
	}
}

// addScores writes down what extenders make of a node.
func (in *Inquiry) addScores(v *schedulingv1.ExplainPodResponse_NodeVerdict) {
	if in == nil {
		return
	}
	for i, e := range in.extenders {
		if in.scores[i] == nil {
			continue
		}
		e.rank(v, in.scores[i][v.GetNode()])
	}
}

// rank adds what an extender makes of a node.
func (e *Extender) rank(v *schedulingv1.ExplainPodResponse_NodeVerdict, raw int64) {
	v.Scores = append(v.Scores, &schedulingv1.ExplainPodResponse_Score{
		Priority: webhook.Shown(e.URL), Score: int32(raw), Weight: int32(e.Weight), Weighted: int32(raw * e.Weight),
	})
	v.Total += int32(raw * e.Weight)
}

// explain writes down a failure.
func (f failure) explain() *schedulingv1.ExplainPodResponse_Failure {
	out := &schedulingv1.ExplainPodResponse_Failure{Predicate: f.predicate, Part: f.rule, Resource: f.resource}
	out.Reason, out.Unblock = f.reason()
	if f.resource != "" {
		out.Asked, out.Free = format(f.resource, f.asked), format(f.resource, f.free)
	}
	return out
}

// first orders what is so before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Explain evaluates a pod among the pods that this queue has placed, be their bindings stored yet or not: the next
// decision would place it on the node that is named best. A pod without a policy of its scheduler is refused. supposed
// is a policy to use in place of the live one, nil for none. in is what the extenders said, by Inquire; nil if they
// were not asked. What they said by a policy that was replaced since does not count.
func (q *Queue) Explain(supposed *Profile, pod *schedulingv1.Pod, in *Inquiry) *Explanation {
	var e *Explanation
	q.apart(supposed, pod, func(p *Profile) {
		if in != nil && !slices.Equal(in.extenders, p.extendersOf(pod.GetSpec())) {
			in = nil
		}
		e = evaluate(q.Cluster, p, pod, q.turn, in)
	})
	if name := SchedulerOf(pod); q.AwaitsOther(pod) {
		e.out.Best, e.out.Refused = "", AwaitsScheduler(name, q.foreign.counts[name] > 0)
	}
	switch s := q.stuck[object.KeyOf(pod)]; {
	case supposed != nil: // what is kept is of the live policy
	case pod.GetSpec().GetNodeName() != "":
		e.out.Placement = q.choices.explain(pod)
	case s != nil && asksTheSame(s.pod, pod):
		e.out.Pending = q.pending(s)
	}
	return e
}

// Inquire begins to ask the extenders about a pod, for Explain; nil if none is responsible for it, or another scheduler
// places it. What comes of it may be used after the queue has changed.
func (q *Queue) Inquire(supposed *Profile, pod *schedulingv1.Pod) (in *Inquiry) {
	if q.AwaitsOther(pod) {
		return nil
	}
	q.apart(supposed, pod, func(p *Profile) { in = NewInquiry(q.Cluster, p, pod) })
	return in
}

// apart calls f with the policy of a pod, or with a supposed one: then f leaves no trace in the boards of the policies
// in force.
func (q *Queue) apart(supposed *Profile, pod *schedulingv1.Pod, f func(*Profile)) {
	if supposed == nil {
		f(q.Of(pod))
		return
	}
	m := pod.GetMetadata()
	if b := q.pods[podKey{m.GetNamespace(), m.GetName()}]; b != nil {
		q.take(b) // which the boards in force must see come and go
		defer q.put(b)
	}
	kept := q.boards
	q.boards = nil
	defer func() { q.boards = kept }()
	f(supposed)
}

// pending is what is known of a pod that no node fitted.
func (q *Queue) pending(s *stuckPod) *schedulingv1.ExplainPodResponse_Pending {
	out := &schedulingv1.ExplainPodResponse_Pending{
		SinceTime: timestamppb.New(s.since), LastTryTime: timestamppb.New(s.tried), Tries: int32(s.tries),
		WaitsFor: s.wakes.String(), Message: s.message, Obstacles: s.verdict.Obstacles, Changes: s.verdict.Changes,
	}
	if _, due := q.due[object.KeyOf(s.pod)]; due {
		out.NextTryTime = timestamppb.New(later(s.after, q.paused))
	}
	return out
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
