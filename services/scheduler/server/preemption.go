package server

import (
	"context"
	"fmt"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// PlanPreemption says which pods would be evicted for one that no node fits.
func (s *Pods) PlanPreemption(ctx context.Context, r *schedulingv1.PlanPreemptionRequest) (
	*schedulingv1.PlanPreemptionResponse, error,
) {
	// It reads what ExplainPod reads.
	explain := &schedulingv1.ExplainPodRequest{
		Namespace: r.GetNamespace(), Name: r.GetName(), Pod: r.GetPod(), Policy: r.GetPolicy(), Nodes: r.GetNodes(),
		Pods: r.GetPods(), Services: r.GetServices(), ReplicationControllers: r.GetReplicationControllers(),
		ReplicaSets: r.GetReplicaSets(), StatefulSets: r.GetStatefulSets(), Volumes: r.GetVolumes(), Claims: r.GetClaims(),
		StorageClasses: r.GetStorageClasses(), MaxVolumes: r.MaxVolumes, Budgets: r.GetBudgets().GetItems(),
	}
	if bad := atMost("budgets.items", len(r.GetBudgets().GetItems()), maxPods); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	if r.GetBudgets() != nil && r.GetNodes() == nil {
		return nil, rpcerr.Invalid(nodesToo)
	}
	in, err := s.explained(ctx, explain)
	if err != nil {
		return nil, err
	}
	out := &schedulingv1.PlanPreemptionResponse{}
	switch e := plan.Explain(in.cluster, in.profile, in.pod, 0); {
	case in.pod.GetSpec().GetNodeName() != "":
		out.Message = fmt.Sprintf("The pod is bound to node %s.", in.pod.GetSpec().GetNodeName())
		return out, nil
	case e.GetRefused() != "":
		out.Message = e.GetRefused()
		return out, nil
	case e.GetBest() != "" && len(e.GetExtenders()) > 0:
		out.Best, out.Message = e.GetBest(), e.GetMessage() // it says that extenders were not asked
		return out, nil
	case e.GetBest() != "":
		out.Best, out.Message = e.GetBest(), fmt.Sprintf("The pod fits on node %s without an eviction.", e.GetBest())
		return out, nil
	}
	p, why := plan.Preempt(in.cluster, in.profile, in.pod)
	if out.Message = why; why == "" {
		out.Message = "The pod may evict no other pod: its preemption policy is Never, or no pod has a lower priority."
	}
	if p == nil {
		return out, nil
	}
	out.NominatedNodeName = p.Node
	for _, v := range p.Victims {
		out.Victims = append(out.Victims, &schedulingv1.PlanPreemptionResponse_Victim{
			Namespace: v.Key.Namespace, Name: v.Key.Name, Priority: v.Priority, ExceededBudget: v.Budget,
		})
	}
	return out, nil
}
