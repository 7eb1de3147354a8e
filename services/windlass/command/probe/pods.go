package probe

import (
	"context"
	"fmt"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Pods returns the number of ready pods and of desired pods: those of deployments and daemon sets, and those without a
// controller. waits says what one of those that do not run waits for; it is empty if none says so.
func (o *Cluster) Pods(ctx context.Context) (ready, wanted int32, waits string, err error) {
	deployments, err := schedulingv1.NewDeploymentServiceClient(o.Client.Conn()).ListDeployments(ctx,
		&schedulingv1.ListDeploymentsRequest{})
	if err != nil {
		return 0, 0, "", err
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
		return 0, 0, "", err
	}
	for _, d := range sets.GetItems() {
		wanted += max(1, d.GetStatus().GetDesiredNumberScheduled())
		ready += min(d.GetStatus().GetDesiredNumberScheduled(), d.GetStatus().GetNumberReady())
	}
	pods, err := schedulingv1.NewPodServiceClient(o.Client.Conn()).ListPods(ctx, &schedulingv1.ListPodsRequest{})
	if err != nil {
		return 0, 0, "", err
	}
	for _, p := range pods.GetItems() {
		if waits == "" {
			waits = podWaits(p)
		}
		if len(p.GetMetadata().GetOwnerReferences()) > 0 {
			continue // counted with its owner
		}
		wanted++
		if phase := p.GetStatus().GetPhase(); phase == "Running" || phase == "Succeeded" {
			ready++
		}
	}
	return ready, wanted, waits, nil
}

// podWaits says what a pod waits for that is not placed or of which a container waits; empty if it says none.
func podWaits(p *schedulingv1.Pod) string {
	name := p.GetMetadata().GetName()
	for _, c := range p.GetStatus().GetConditions() {
		if c.GetType() == "PodScheduled" && c.GetStatus() == "False" && c.GetMessage() != "" {
			return fmt.Sprintf("pod %s: %s", name, c.GetMessage())
		}
	}
	for _, c := range p.GetStatus().GetContainerStatuses() {
		w := c.GetState().GetWaiting()
		if w.GetMessage() == "" {
			continue
		}
		text := fmt.Sprintf("pod %s: %s: %s", name, w.GetReason(), w.GetMessage())
		if last := c.GetLastState().GetTerminated(); last != nil {
			text += fmt.Sprintf("; it ended with exit code %d: windlass logs %s -c %s --previous", last.GetExitCode(), name,
				c.GetName())
		}
		return text
	}
	return ""
}

// Pressures says which nodes are short of what, by their conditions of that kind: what each waits for is in the
// condition's message.
func Pressures(nodes []*nodev1.Node) (out []string) {
	for _, n := range nodes {
		for _, c := range n.GetStatus().GetConditions() {
			if strings.HasSuffix(c.GetType(), "Pressure") && c.GetStatus() == "True" {
				out = append(out, fmt.Sprintf("%s has %s: %s", n.GetMetadata().GetName(), c.GetType(), c.GetMessage()))
			}
		}
	}
	return out
}
