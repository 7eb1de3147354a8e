package plan

import (
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
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

// budgetsOf returns the names and resource versions of the budgets of a pod; it changes if any of them changes.
func budgetsOf(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) string {
	var parts []string
	for _, b := range guarding(pod, budgets) {
		parts = append(parts, b.GetMetadata().GetName()+"@"+b.GetMetadata().GetResourceVersion())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// refusing returns the names of the budgets that refuse the eviction of a pod, in order.
func refusing(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) []string {
	mine := guarding(pod, budgets)
	if v, _ := disruption.Evict(pod, mine); v != disruption.Refuse && v != disruption.Ambiguous {
		return nil
	}
	var out []string
	for _, b := range mine {
		out = append(out, b.GetMetadata().GetName())
	}
	slices.Sort(out)
	return out
}

// allowed reports whether every budget of a pod allows its eviction.
func allowed(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) bool {
	return !slices.ContainsFunc(guarding(pod, budgets), func(b *schedulingv1.PodDisruptionBudget) bool {
		return b.GetStatus().GetDisruptionsAllowed() <= 0
	})
}

// Foresee returns what Drain returns, with the scheduler's answers predicted, and the verdict on each pod, for
// PlanDrain: an eviction that a budget would refuse is held back. The verdicts are predicted also for a drain that does
// not evict pods yet.
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
		p.hold(&metav1.HeldBack{Action: EvictPod, Object: ref, Reason: pod.Reason, Unblock: unblockEviction})
	}
	return p.Plan, foreseen
}

// foresee returns verdicts with the budgets applied as the scheduler does, in the order of the pods: the first pods use
// what a budget has left. A budget without a status is ignored: the scheduler has not reconciled it yet.
func foresee(verdicts []PodVerdict, budgets []*schedulingv1.PodDisruptionBudget, now time.Time) []PodVerdict {
	budgets = slices.DeleteFunc(slices.Clone(budgets), func(b *schedulingv1.PodDisruptionBudget) bool {
		return b.GetStatus() == nil
	})
	for i, b := range budgets {
		budgets[i] = proto.CloneOf(b) // they are modified
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
