package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// keepEnded is how many pods that have ended are kept for users to inspect.
	keepEnded = 1000
	// lookAgain is how soon a namespace that still has contents is decided on again, should a change be missed.
	lookAgain = 5 * time.Second
	// podScheduled is the condition of a pod that a scheduler has tried, or has bound to its node.
	podScheduled = "PodScheduled"
	// Terminating is the phase of a namespace that is being deleted.
	Terminating = "Terminating"
)

// NamespaceFinalizer keeps a namespace until its contents are gone.
const NamespaceFinalizer = "kubernetes"

// NamespaceView is everything that the deletion of a namespace depends on.
type NamespaceView struct {
	Now       time.Time
	Namespace *schedulingv1.Namespace // nil if there is none of the name
	Contents  []object.Object         // of the kinds that have namespaces, owners first
}

// NamespacePlan is what to do about a namespace. The zero NamespacePlan means nothing.
type NamespacePlan struct {
	Terminate bool            // write the phase Terminating
	Delete    []object.Object // in this order
	Reason    string          // of the deletions
	Release   bool            // remove NamespaceFinalizer
	Wake      time.Time       // when to decide again even if nothing changes; zero means never
}

// Namespace empties a namespace that is being deleted, and lets it go once it is empty. Objects that were created while
// their namespace was removed are deleted, too.
func Namespace(v NamespaceView) NamespacePlan {
	var p NamespacePlan
	switch m := v.Namespace.GetMetadata(); {
	case v.Namespace == nil:
		p.Reason = "its namespace is gone"
	case object.Deleting(v.Namespace) && slices.Contains(m.GetFinalizers(), NamespaceFinalizer):
		p.Reason = "its namespace is being deleted"
		p.Terminate = v.Namespace.GetStatus().GetPhase() != Terminating
		p.Release = len(v.Contents) == 0
	default:
		return NamespacePlan{}
	}
	for _, o := range v.Contents {
		if !object.Deleting(o) {
			p.Delete = append(p.Delete, o)
		}
	}
	if len(v.Contents) > 0 {
		p.Wake = v.Now.Add(lookAgain)
	}
	return p
}

// EndedView is everything that decides which of the pods that have ended are deleted.
type EndedView struct {
	Now  time.Time
	Pods []*schedulingv1.Pod // that have ended
	// JobOf returns the job that manages a pod, nil if none does or it is gone. It is called for pods that are too many.
	JobOf func(*schedulingv1.Pod) *schedulingv1.Job
}

// EndedPlan is what to do about pods that have ended. The zero EndedPlan means nothing.
type EndedPlan struct {
	Delete []*schedulingv1.Pod
	Wake   time.Time // when to decide again even if nothing changes; zero means never
}

// Ended deletes pods that have ended beyond those that are kept: those that ended first. A pod that its job has not
// counted yet stays, or its work would be done again.
func Ended(v EndedView) EndedPlan {
	var p EndedPlan
	if len(v.Pods) <= keepEnded {
		return p
	}
	first := slices.SortedFunc(slices.Values(v.Pods), func(a, b *schedulingv1.Pod) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		return cmp.Or(endOf(a).Compare(endOf(b)), cmp.Compare(x.GetNamespace(), y.GetNamespace()),
			cmp.Compare(x.GetName(), y.GetName()))
	})
	counted := map[*schedulingv1.Job][]string{} // the uids of pods that are, in order
	for _, pod := range first[:len(first)-keepEnded] {
		if job := v.JobOf(pod); job != nil {
			uids, ok := counted[job]
			if !ok {
				uids = strings.Split(job.GetMetadata().GetAnnotations()[countedPods], ",")
				counted[job] = uids
			}
			if !has(uids, pod.GetMetadata().GetUid()) {
				p.Wake = v.Now.Add(lookAgain)
				continue
			}
		}
		p.Delete = append(p.Delete, pod)
	}
	return p
}

// nodeGrace is how long a pod may name a node that does not exist, from its creation: the node may join yet.
const nodeGrace = 40 * time.Second

// NoNode is the reason of the events of a pod that names a node which does not exist.
const NoNode = "NodeNotFound"

// StrandedPlan is what to do about a pod whose node does not exist.
type StrandedPlan struct {
	Delete bool
	Tell   Event     // of the pod
	Wake   time.Time // when to decide again even if nothing changes; zero means never
}

// Stranded decides on a pod whose node does not exist. One that was bound to it, or has run there, goes at once, since
// no agent will end it. One that was created for the node waits for it.
func Stranded(pod *schedulingv1.Pod, now time.Time) StrandedPlan {
	node := pod.GetSpec().GetNodeName()
	gone := StrandedPlan{
		Delete: true, Tell: Event{"Warning", NoNode, fmt.Sprintf("Node %q does not exist: the pod is deleted",
			node)},
	}
	if placement.PodCondition(pod, podScheduled) != nil || pod.GetStatus().GetStartTime() != nil {
		return gone
	}
	until := created(pod).Add(nodeGrace)
	if !now.Before(until) {
		return gone
	}
	return StrandedPlan{Wake: until, Tell: Event{"Warning", NoNode, fmt.Sprintf(
		"Node %q does not exist: the pod is deleted at %s if it does not join before", node,
		until.UTC().Format(time.RFC3339))}}
}
