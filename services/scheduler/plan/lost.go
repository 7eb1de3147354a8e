package plan

import (
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// NodeNotReady is the condition Ready of a pod whose node is not ready: what the pod said of itself may be long past,
// and those that count on its work, as disruption budgets and deployments do, must not. Its agent says how it is once
// it is connected again. Source: Kubernetes' node lifecycle.
func NodeNotReady() *schedulingv1.PodCondition {
	reason, message := placement.NodeNotReady, "Node is not ready"
	return &schedulingv1.PodCondition{Type: "Ready", Status: "False", Reason: &reason, Message: &message}
}

// Lost reports whether it is known of a node that it is not ready. One that has said nothing yet is not lost.
func Lost(node *nodev1.Node) bool {
	ready := placement.NodeCondition(node, "Ready")
	return ready != nil && ready.GetStatus() != "True"
}

// Stranded returns the pods that count as ready and run on one of these nodes.
func Stranded(pods []*schedulingv1.Pod, lost map[string]bool) []*schedulingv1.Pod {
	var out []*schedulingv1.Pod
	for _, pod := range pods {
		if lost[pod.GetSpec().GetNodeName()] && placement.Active(pod) && placement.IsReady(pod) {
			out = append(out, pod)
		}
	}
	return out
}
