// Package placement holds the rules of pods and nodes that more than one service must read alike: which taints a pod
// bears, which nodes it asks for, how much it needs and how much a node has. It promises to be pure: values in, values
// out, no clock, no I/O. What is chosen among the nodes that a pod fits is the scheduler's part, when a pod must leave
// is the eviction controller's.
package placement

import (
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Phases of a pod.
const (
	Pending   = "Pending"
	Running   = "Running"
	Succeeded = "Succeeded"
	Failed    = "Failed"
)

// NodeNotReady is the reason of a pod's condition Ready that the pod's agent did not say, since its node is not ready.
const NodeNotReady = "NodeNotReady"

// Labels of a node that say where it is: the present spelling, then the one that documents still use.
const (
	RegionLabel    = "topology.kubernetes.io/region"
	ZoneLabel      = "topology.kubernetes.io/zone"
	OldRegionLabel = "failure-domain.beta.kubernetes.io/region"
	OldZoneLabel   = "failure-domain.beta.kubernetes.io/zone"
)

// Terminated reports whether a pod has run to its end, well or badly: it holds nothing of its node any more.
func Terminated(pod *schedulingv1.Pod) bool {
	p := pod.GetStatus().GetPhase()
	return p == Succeeded || p == Failed
}

// Active reports whether a pod counts for its owner: it has not ended and is not on its way out.
func Active(pod *schedulingv1.Pod) bool {
	return !Terminated(pod) && pod.GetMetadata().GetDeletionTimestamp() == nil
}

// Assigned reports whether a pod uses what its node has: it is bound and has not ended. A pod that is being deleted
// still does.
func Assigned(pod *schedulingv1.Pod) bool {
	return pod.GetSpec().GetNodeName() != "" && !Terminated(pod)
}

// IsReady reports whether a pod's condition Ready is True.
func IsReady(pod *schedulingv1.Pod) bool {
	return PodCondition(pod, "Ready").GetStatus() == "True"
}

// PodScheduled is the condition of a pod that reports whether it is bound to a node.
const PodScheduled = "PodScheduled"

// DisruptionTarget is the condition of a pod that is evicted, preempted or deleted for a taint. Its reason says which.
const DisruptionTarget = "DisruptionTarget"

// EvictedByTaint is the reason of DisruptionTarget of a pod that does not tolerate a NoExecute taint of its node.
// Source: Kubernetes.
const EvictedByTaint = "DeletionByTaintManager"

// BoundBy returns the time by which a pod was bound to its node; zero if it has no node, or the time is not known. A
// pod that names its node from the start is bound when it is created. The times in pods are rounded down to
// seconds, so it is up to a second later than the binding, and never earlier.
func BoundBy(pod *schedulingv1.Pod) time.Time {
	at := pod.GetMetadata().GetCreationTimestamp()
	if c := PodCondition(pod, PodScheduled); c.GetStatus() == "True" && c.GetLastTransitionTime() != nil {
		at = c.GetLastTransitionTime()
	}
	if pod.GetSpec().GetNodeName() == "" || at == nil {
		return time.Time{}
	}
	return at.AsTime().Truncate(time.Second).Add(time.Second)
}

// PodCondition returns the condition of a type, or nil.
func PodCondition(pod *schedulingv1.Pod, typ string) *schedulingv1.PodCondition {
	for _, c := range pod.GetStatus().GetConditions() {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// NodeCondition returns the condition of a type, or nil.
func NodeCondition(node *nodev1.Node, typ string) *nodev1.NodeCondition {
	for _, c := range node.GetStatus().GetConditions() {
		if c.GetType() == typ {
			return c
		}
	}
	return nil
}

// ControllerOf returns the reference of the owner that manages a pod, or nil.
func ControllerOf(pod *schedulingv1.Pod) *metav1.OwnerReference {
	for _, o := range pod.GetMetadata().GetOwnerReferences() {
		if o.GetController() {
			return o
		}
	}
	return nil
}

// IsDaemon reports whether a daemon set manages a pod.
func IsDaemon(pod *schedulingv1.Pod) bool { return ControllerOf(pod).GetKind() == "DaemonSet" }

// Domain returns the region and the zone of a node, from either spelling of their labels; empty if there is none.
func Domain(node *nodev1.Node) (region, zone string) {
	labels := node.GetMetadata().GetLabels()
	if region = labels[RegionLabel]; region == "" {
		region = labels[OldRegionLabel]
	}
	if zone = labels[ZoneLabel]; zone == "" {
		zone = labels[OldZoneLabel]
	}
	return region, zone
}
