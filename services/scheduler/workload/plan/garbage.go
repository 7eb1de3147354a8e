package plan

import (
	"cmp"
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	// keepEnded is how many pods that have ended are kept for users to inspect.
	keepEnded = 1000
	// lookAgain is how soon a namespace that still has contents is decided on again, should a change be missed.
	lookAgain = 5 * time.Second
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

// Ended returns which of the pods that have ended are too many: the oldest ones.
func Ended(pods []*schedulingv1.Pod) []*schedulingv1.Pod {
	oldest := slices.SortedFunc(slices.Values(pods), func(a, b *schedulingv1.Pod) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		return cmp.Or(x.GetCreationTimestamp().AsTime().Compare(y.GetCreationTimestamp().AsTime()),
			cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()))
	})
	return oldest[:max(0, len(oldest)-keepEnded)]
}
