// Package disruption decides whether a pod may be evicted (a voluntary disruption). It does no I/O and reads no clock.
package disruption

import (
	"fmt"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Verdict says what an eviction comes to.
type Verdict int

const (
	// Delete means that the pod may go and no budget pays for it.
	Delete Verdict = iota
	// Spend means that the pod may go once the budget has paid for it, by Spent.
	Spend
	// Refuse means that the budget forbids it now.
	Refuse
	// Ambiguous means that more than one budget selects the pod; it cannot be evicted then.
	Ambiguous
)

// maxDisrupted bounds the pods that a budget remembers, so that it stays small enough to be stored. Source: Kubernetes'
// eviction.
const maxDisrupted = 2000

// Free reports whether a pod may go without asking any budget: it does no work, or is on its way out already.
func Free(pod *schedulingv1.Pod) bool {
	phase := pod.GetStatus().GetPhase()
	return pod.GetMetadata().GetDeletionTimestamp() != nil || placement.Terminated(pod) || phase == "Pending" ||
		phase == ""
}

// Evict decides on a pod; budgets are all that select it. why is the reason of a refusal. Source: Kubernetes' eviction.
func Evict(pod *schedulingv1.Pod, budgets []*schedulingv1.PodDisruptionBudget) (v Verdict, why string) {
	switch {
	case Free(pod) || len(budgets) == 0:
		return Delete, ""
	case len(budgets) > 1:
		return Ambiguous, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
	}
	b := budgets[0]
	s := b.GetStatus()
	if !placement.IsReady(pod) {
		always := b.GetSpec().GetUnhealthyPodEvictionPolicy() == "AlwaysAllow"
		if always || s.GetDesiredHealthy() > 0 && s.GetCurrentHealthy() >= s.GetDesiredHealthy() {
			return Delete, ""
		}
	}
	name := b.GetMetadata().GetName()
	paid := s.GetDisruptedPods()[pod.GetMetadata().GetName()]
	if paid != nil && paid.AsTime().After(pod.GetMetadata().GetCreationTimestamp().AsTime()) {
		return Delete, "" // for this pod, not for one of that name that went before it
	}
	switch {
	case s.GetObservedGeneration() < b.GetMetadata().GetGeneration():
		return Refuse,
			fmt.Sprintf(
				"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget %s is still being processed by the server.", name)
	case len(s.GetDisruptedPods()) >= maxDisrupted:
		return Refuse,
			fmt.Sprintf(
				"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget %s waits for %d evicted pods to go.", name, len(s.GetDisruptedPods()))
	case s.GetDisruptionsAllowed() <= 0:
		return Refuse,
			fmt.Sprintf(
				"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget %s needs %d healthy pods and has %d currently",
				name, s.GetDesiredHealthy(), s.GetCurrentHealthy())
	}
	return Spend, ""
}

// Spent has a budget pay for a pod.
func Spent(b *schedulingv1.PodDisruptionBudget, pod string, now time.Time) {
	s := b.Status
	s.DisruptionsAllowed = proto.Int32(s.GetDisruptionsAllowed() - 1)
	if s.DisruptedPods == nil {
		s.DisruptedPods = map[string]*timestamppb.Timestamp{}
	}
	s.DisruptedPods[pod] = &timestamppb.Timestamp{Seconds: now.Unix()}
}
