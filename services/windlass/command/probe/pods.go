package probe

import (
	"context"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Pods returns the number of ready pods and of desired pods: those of deployments and daemon sets, and those without a
// controller.
func (o *Cluster) Pods(ctx context.Context) (ready, wanted int32, err error) {
	deployments, err := schedulingv1.NewDeploymentServiceClient(o.Client.Conn()).ListDeployments(ctx,
		&schedulingv1.ListDeploymentsRequest{})
	if err != nil {
		return 0, 0, err
	}
	for _, d := range deployments.GetItems() {
		want := int32(1)
		if d.GetSpec().Replicas != nil {
			want = d.GetSpec().GetReplicas()
		}
		wanted += want
		ready += min(want, d.GetStatus().GetAvailableReplicas())
	}
	sets, err := schedulingv1.NewDaemonSetServiceClient(o.Client.Conn()).ListDaemonSets(ctx,
		&schedulingv1.ListDaemonSetsRequest{})
	if err != nil {
		return 0, 0, err
	}
	for _, d := range sets.GetItems() {
		wanted += max(1, d.GetStatus().GetDesiredNumberScheduled())
		ready += min(d.GetStatus().GetDesiredNumberScheduled(), d.GetStatus().GetNumberReady())
	}
	pods, err := schedulingv1.NewPodServiceClient(o.Client.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{})
	if err != nil {
		return 0, 0, err
	}
	for _, p := range pods.GetItems() {
		if len(p.GetMetadata().GetOwnerReferences()) > 0 {
			continue // counted with its owner
		}
		wanted++
		if phase := p.GetStatus().GetPhase(); phase == "Running" || phase == "Succeeded" {
			ready++
		}
	}
	return ready, wanted, nil
}
