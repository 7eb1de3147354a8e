package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// defaultScheduler is the name of the scheduler that places pods which name no other.
const defaultScheduler = "default-scheduler"

// Explain says of each node which predicates a pod fails and why, what each priority makes of it, and where placeAll
// would put the pod now with the same turn. A pod that is bound is treated as if it were not: it leaves c for that
// time and is there again afterwards.
func Explain(c *Cluster, p *Profile, pod *schedulingv1.Pod, turn uint64) *schedulingv1.ExplainPodResponse {
	m := pod.GetMetadata()
	if b := c.pods[podKey{m.GetNamespace(), m.GetName()}]; b != nil {
		c.take(b)
		defer c.put(b)
	}
	out := &schedulingv1.ExplainPodResponse{
		BoundTo:       pod.GetSpec().GetNodeName(),
		SchedulerName: cmp.Or(pod.GetSpec().GetSchedulerName(), defaultScheduler),
	}
	if out.BoundTo != "" {
		pod = proto.Clone(pod).(*schedulingv1.Pod)
		pod.Spec.NodeName = ""
	}
	s := newSession(c, p)
	k := newClass(c, p, pod)
	if out.Refused = k.refused; out.Refused != "" {
		out.Message = k.refused
	}
	if at := s.choose(k, turn); at >= 0 && out.Refused == "" {
		out.Best = c.nodes[at].name
	}
	s.prepare(k)
	tally := newTally(p)
	for i, n := range c.nodes {
		v := &schedulingv1.ExplainPodResponse_NodeVerdict{Node: n.name, Fits: slices.Contains(s.fit, int32(i))}
		if v.Fits {
			k.score(n, int32(i), v)
		} else {
			failures := k.judge(n)
			tally.add(failures)
			for _, f := range failures {
				reason, unblock := f.reason()
				v.Failures = append(v.Failures, &schedulingv1.ExplainPodResponse_Failure{
					Predicate: f.predicate, Reason: reason,
					Unblock: unblock,
				})
			}
		}
		out.Nodes = append(out.Nodes, v)
	}
	switch {
	case out.Refused != "":
	case out.Best == "":
		out.Message = tally.message()
	default:
		out.Message = fmt.Sprintf("Successfully assigned %s/%s to %s", m.GetNamespace(), m.GetName(), out.Best)
	}
	slices.SortStableFunc(out.Nodes, func(a, b *schedulingv1.ExplainPodResponse_NodeVerdict) int {
		return cmp.Or(
			first(a.GetNode() == out.GetBest(), b.GetNode() == out.GetBest()), first(a.GetFits(), b.GetFits()),
			cmp.Compare(b.GetTotal(), a.GetTotal()), strings.Compare(a.GetNode(), b.GetNode()),
		)
	})
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

// score writes down what each priority makes of a node that fits.
func (k *class) score(n *node, at int32, v *schedulingv1.ExplainPodResponse_NodeVerdict) {
	for i := range k.profile.priorities {
		p := &k.profile.priorities[i]
		var raw int64
		if p.rank.alone != nil {
			raw = p.rank.alone(k, p, n)
		} else {
			raw = k.compared(p, &k.norms[i], n, at)
		}
		v.Scores = append(v.Scores, &schedulingv1.ExplainPodResponse_Score{
			Priority: p.name, Score: int32(raw), Weight: int32(p.weight), Weighted: int32(raw * p.weight),
		})
		v.Total += int32(raw * p.weight)
	}
}
