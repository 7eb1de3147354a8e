package plan

import (
	"fmt"
	"slices"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
)

// guarding returns the budgets of a pod, in the order of the list.
func guarding(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) []*schedulingv1.PodDisruptionBudget {
	var out []*schedulingv1.PodDisruptionBudget
	for _, b := range budgets {
		if b.GetMetadata().GetNamespace() == pod.GetMetadata().GetNamespace() && placement.BudgetSelects(b, pod.GetMetadata().GetLabels()) {
			out = append(out, b)
		}
	}
	return out
}

// budgetsOf returns which budgets guard a pod, each at its revision: while it stays the same nothing changed about them.
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

// Foresee returns the plan as it will be once the scheduler has answered about each pod, for people who ask before anything is done: an
// eviction that a budget refuses is held back instead. Of a drain that is not at its pods yet it says what becomes of them.
func (p DrainPlan) Foresee(v DrainView) DrainPlan {
	atPods := p.Pods != nil && p.Status.GetPhase() == Draining
	if p.Pods == nil {
		p.Pods = Verdicts(v)
	}
	tried := p.Pods
	p.Pods = foresee(tried, v.Budgets)
	for i, pod := range p.Pods {
		if !atPods || pod.Verdict == tried[i].Verdict {
			continue
		}
		ref := resource.Reference(pod.Pod)
		p.Actions = slices.DeleteFunc(slices.Clone(p.Actions), func(a *metav1.PlannedAction) bool { return proto.Equal(a.GetObject(), ref) })
		p.HeldBack = append(p.HeldBack, &metav1.HeldBack{Action: evictPod, Object: ref, Reason: pod.Reason, Unblock: unblockEviction})
	}
	return p
}

// foresee returns verdicts with the budgets taken into account as the scheduler would, in the order of the pods: whoever comes first
// takes what a budget has left. A budget without a status says nothing: the scheduler has not looked at it yet.
func foresee(verdicts []PodVerdict, budgets []*schedulingv1.PodDisruptionBudget) []PodVerdict {
	out := slices.Clone(verdicts)
	used := map[string]int32{}
	for i := range out {
		if out[i].Verdict != Evict || out[i].Delete || idle(out[i].Pod) {
			continue
		}
		mine := guarding(out[i].Pod, budgets)
		if len(mine) > 1 {
			out[i].Verdict, out[i].Reason = Blocked, fmt.Sprintf("more than one budget guards it: %s and %s", budgetName(mine[0]), budgetName(mine[1]))
			continue
		}
		for _, b := range mine {
			s := b.GetStatus()
			left := s.GetDisruptionsAllowed() - used[budgetName(b)]
			switch {
			case spares(b, out[i].Pod):
			case s == nil || left > 0:
				used[budgetName(b)]++
			default:
				out[i].Verdict = Blocked
				out[i].Reason = fmt.Sprintf("budget %s allows %d more disruptions: %d pods are healthy, %d must be, %d are expected",
					budgetName(b), max(left, 0), s.GetCurrentHealthy(), s.GetDesiredHealthy(), s.GetExpectedPods())
			}
		}
	}
	return out
}

// idle reports whether a pod does no work yet, so that no budget is asked about it. Source: Kubernetes' eviction.
func idle(pod *schedulingv1.Pod) bool {
	phase := pod.GetStatus().GetPhase()
	return phase == "" || phase == "Pending"
}

// spares reports whether a budget lets a pod go without paying for it, since it is not ready. Source: Kubernetes' eviction.
func spares(b *schedulingv1.PodDisruptionBudget, pod *schedulingv1.Pod) bool {
	s := b.GetStatus()
	return !placement.IsReady(pod) && (b.GetSpec().GetUnhealthyPodEvictionPolicy() == "AlwaysAllow" ||
		s.GetDesiredHealthy() > 0 && s.GetCurrentHealthy() >= s.GetDesiredHealthy())
}

func budgetName(b *schedulingv1.PodDisruptionBudget) string {
	return b.GetMetadata().GetNamespace() + "/" + b.GetMetadata().GetName()
}
