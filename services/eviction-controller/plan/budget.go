package plan

import (
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

// guarding returns the budgets of a pod, in the order of the list.
func guarding(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) []*schedulingv1.PodDisruptionBudget {
	var out []*schedulingv1.PodDisruptionBudget
	for _, b := range budgets {
		if b.GetMetadata().GetNamespace() == pod.GetMetadata().GetNamespace() &&
			placement.BudgetSelects(b, pod.GetMetadata().GetLabels()) {
			out = append(out, b)
		}
	}
	return out
}

// budgetsOf returns which budgets guard a pod, each at its revision: while it stays the same nothing changed about
// them.
func budgetsOf(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) string {
	var parts []string
	for _, b := range guarding(pod, budgets) {
		parts = append(parts, b.GetMetadata().GetName()+"@"+b.GetMetadata().GetResourceVersion())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// allowed reports whether no budget of a pod says that it may not be evicted.
func allowed(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) bool {
	return !slices.ContainsFunc(guarding(pod, budgets), func(b *schedulingv1.PodDisruptionBudget) bool {
		return b.GetStatus().GetDisruptionsAllowed() <= 0
	})
}

// Foresee returns what Drain returns, as it will be once the scheduler has answered about each pod, and what becomes of
// each pod, for people who ask before anything is done: an eviction that a budget refuses is held back instead. Of a
// drain that is not at its pods yet it says what becomes of them.
func Foresee(v DrainView) (Plan, []PodVerdict) {
	p := drain(v)
	if p.verdicts == nil {
		return p.Plan, foresee(verdicts(v), v.Budgets, v.Now)
	}
	foreseen := foresee(p.verdicts, v.Budgets, v.Now)
	if p.status.GetPhase() != Draining {
		return p.Plan, foreseen
	}
	for i, pod := range foreseen {
		if pod.Verdict == p.verdicts[i].Verdict {
			continue
		}
		ref := object.Reference(pod.Pod)
		p.Ask = slices.DeleteFunc(p.Ask, func(q Question) bool { return proto.Equal(q.Object, ref) })
		p.hold(Held{Action: EvictPod, Object: ref, Reason: pod.Reason, Unblock: unblockEviction})
	}
	return p.Plan, foreseen
}

// foresee returns verdicts with the budgets taken into account as the scheduler would, in the order of the pods:
// whoever comes first takes what a budget has left. A budget without a status says nothing: the scheduler has not
// looked at it yet.
func foresee(verdicts []PodVerdict, budgets []*schedulingv1.PodDisruptionBudget, now time.Time) []PodVerdict {
	budgets = slices.DeleteFunc(slices.Clone(budgets), func(b *schedulingv1.PodDisruptionBudget) bool {
		return b.GetStatus() == nil
	})
	for i, b := range budgets {
		budgets[i] = proto.CloneOf(b) // they are drawn on
	}
	out := slices.Clone(verdicts)
	for i, pod := range out {
		if pod.Verdict != Evict || pod.Delete {
			continue
		}
		mine := guarding(pod.Pod, budgets)
		switch v, why := disruption.Evict(pod.Pod, mine); v {
		case disruption.Delete:
		case disruption.Spend:
			disruption.Spent(mine[0], pod.Pod.GetMetadata().GetName(), now)
		default:
			out[i].Verdict, out[i].Reason = Blocked, why
		}
	}
	return out
}
