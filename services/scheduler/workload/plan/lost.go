package plan

import (
	"maps"
	"slices"
	"time"

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

// LostMemory is, by the name of a lost node, since when it is lost, once its pods were recorded as not ready. A pod
// that says of itself that it is ready after that has an agent that is connected to this service, and is left alone.
type LostMemory map[string]time.Time

// LostView is everything that the readiness of the pods of lost nodes depends on.
type LostView struct {
	Nodes  []*nodev1.Node
	PodsOn func(node string) []*schedulingv1.Pod // called for the nodes that are not in Memory
	Memory LostMemory
}

// LostPlan is what to do about the pods of lost nodes. The zero LostPlan means nothing.
type LostPlan struct {
	NotReady []*schedulingv1.Pod // record NodeNotReady, while CountsOn holds of the pod
	memory   LostMemory          // once all of them are recorded
}

// Done returns the memory after p was carried out, except for some pods: the nodes of those are decided on again.
func (p LostPlan) Done(failed []*schedulingv1.Pod) LostMemory {
	out := maps.Clone(p.memory)
	for _, pod := range failed {
		delete(out, pod.GetSpec().GetNodeName())
	}
	return out
}

// Lost has the ready pods of each node that is lost recorded as not ready, once each time it is lost. Where evictions
// are slower or stopped because most nodes of a zone, or all nodes, are lost, that waits for the NoExecute taint of the
// node: the nodes may be disconnected from the control plane only, and their pods would lose their traffic.
func Lost(v LostView) LostPlan {
	p := LostPlan{memory: LostMemory{}}
	for _, n := range v.Nodes {
		ready := placement.NodeCondition(n, "Ready")
		if ready == nil || ready.GetStatus() == "True" { // one that has said nothing yet is not lost
			continue
		}
		name, since := n.GetMetadata().GetName(), ready.GetLastTransitionTime().AsTime()
		at, known := v.Memory[name]
		recorded := known && at.Equal(since)
		if !recorded && withheld(n) {
			continue
		}
		p.memory[name] = since
		if recorded {
			continue
		}
		for _, pod := range v.PodsOn(name) {
			if CountsOn(pod, pod.GetMetadata().GetUid(), name) {
				p.NotReady = append(p.NotReady, pod)
			}
		}
	}
	return p
}

// withheld reports whether the state of a lost node's zone keeps its pods from being recorded as not ready.
func withheld(n *nodev1.Node) bool {
	e := n.GetStatus().GetEvictions()
	if e.GetZoneState() == "" || e.GetZoneState() != "PartialDisruption" && e.GetNodesPerSecond() > 0 {
		return false
	}
	return !slices.ContainsFunc(n.GetSpec().GetTaints(), func(t *nodev1.Taint) bool {
		key := t.GetKey()
		return t.GetEffect() == placement.NoExecute && (key == placement.NotReadyTaint || key == placement.UnreachableTaint)
	})
}

// CountsOn reports whether a pod is the one of that uid, runs on a node and counts as ready.
func CountsOn(pod *schedulingv1.Pod, uid, node string) bool {
	return pod.GetMetadata().GetUid() == uid && pod.GetSpec().GetNodeName() == node && placement.Active(pod) &&
		placement.IsReady(pod)
}
