package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// Verdicts on a pod.
const (
	Evict   = "Evict"   // now
	Wait    = "Wait"    // later, or it is on its way out
	Keep    = "Keep"    // as things stand it is never evicted
	Skip    = "Skip"    // a drain leaves it alone
	Blocked = "Blocked" // a drain would evict it, and may not
)

// EvictionView is everything that decides which pods leave a node because of its NoExecute taints.
type EvictionView struct {
	Now  time.Time // UTC
	Node *nodev1.Node
	Pods []*schedulingv1.Pod // of the node, in any order
	// Doubt is until when nobody is evicted for the silence of the node's agent, because it is not sure that it could be heard. Zero
	// means that there is no doubt.
	Doubt time.Time
}

// Eviction is what becomes of one pod because of taints.
type Eviction struct {
	Pod     *schedulingv1.Pod
	Node    string
	Verdict string    // Evict, Wait or Keep
	At      time.Time // when it is evicted; zero means never
	Reason  string    // for people
}

// Evictions decides about each pod of a node. A pod leaves at the earliest time that a NoExecute taint gives it: at once where it does
// not tolerate the taint, tolerationSeconds after the taint was set where the first toleration that matches says so. The times come
// from what is stored, so each change counts from the moment it is made and a restart changes nothing. The pods come back by the
// time of their eviction, then by name; wake is when to decide again even if nothing changes, zero means never.
func Evictions(v EvictionView) (out []Eviction, wake time.Time) {
	for _, pod := range v.Pods {
		e := eviction(v, pod)
		if e.Verdict == Wait && (wake.IsZero() || e.At.Before(wake)) {
			wake = e.At
		}
		out = append(out, e)
	}
	return InOrder(out), wake
}

// InOrder sorts evictions by their time, those that never come last, and then by name.
func InOrder(list []Eviction) []Eviction {
	slices.SortFunc(list, func(a, b Eviction) int {
		if a.At.IsZero() != b.At.IsZero() {
			if a.At.IsZero() {
				return 1
			}
			return -1
		}
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(PodName(a.Pod), PodName(b.Pod)))
	})
	return list
}

// NoExecutes reports whether a node has a taint that may evict pods.
func NoExecutes(node *nodev1.Node) bool {
	return slices.ContainsFunc(node.GetSpec().GetTaints(), func(t *nodev1.Taint) bool { return t.GetEffect() == placement.NoExecute })
}

func eviction(v EvictionView, pod *schedulingv1.Pod) Eviction {
	e := Eviction{Pod: pod, Node: v.Node.GetMetadata().GetName(), Verdict: Keep}
	switch {
	case pod.GetMetadata().GetDeletionTimestamp() != nil:
		e.Reason = "it is being deleted already"
	case placement.Terminated(pod):
		e.Reason = "it has ended"
	case static(pod):
		e.Reason = "it belongs to the node itself"
	case !NoExecutes(v.Node):
		e.Reason = "the node has no NoExecute taint"
	default:
		e.decide(v)
	}
	return e
}

// decide takes the earliest time that a NoExecute taint gives a pod.
func (e *Eviction) decide(v EvictionView) {
	e.Reason = "it tolerates every NoExecute taint for ever"
	for _, t := range v.Node.GetSpec().GetTaints() {
		if t.GetEffect() != placement.NoExecute {
			continue
		}
		at, why, leaves := deadline(v, e.Pod, t)
		if leaves && (e.At.IsZero() || at.Before(e.At)) {
			e.At, e.Reason = at, why
		}
	}
	switch {
	case e.At.IsZero():
	case e.At.After(v.Now):
		e.Verdict = Wait
	default:
		e.Verdict = Evict
	}
}

// deadline returns when a pod leaves for one taint, and why; leaves is false if it may stay for ever.
func deadline(v EvictionView, pod *schedulingv1.Pod, t *nodev1.Taint) (at time.Time, why string, leaves bool) {
	if at = v.Now; t.GetTimeAdded() != nil {
		at = t.GetTimeAdded().AsTime()
	}
	toleration := placement.FirstTolerating(pod.GetSpec().GetTolerations(), t)
	switch {
	case toleration == nil:
		why = fmt.Sprintf("it does not tolerate the taint %s", TaintText(t))
	case toleration.TolerationSeconds == nil:
		return time.Time{}, "", false
	default:
		s := max(toleration.GetTolerationSeconds(), 0)
		at = at.Add(time.Duration(s) * time.Second)
		why = fmt.Sprintf("it tolerates the taint %s for %d s", TaintText(t), s)
	}
	if markOf(t).silence() && at.Before(v.Doubt) {
		at = v.Doubt
		why += ", and it is not sure yet that the node's agent could be heard"
	}
	return at, why, true
}

// static reports whether a pod is one that the node's agent runs by itself: deleting the object would not end it.
func static(pod *schedulingv1.Pod) bool {
	_, ok := pod.GetMetadata().GetAnnotations()["kubernetes.io/config.mirror"]
	return ok
}

// TaintText returns a taint as commands write it: key=value:effect.
func TaintText(t *nodev1.Taint) string {
	if t.GetValue() == "" {
		return t.GetKey() + ":" + t.GetEffect()
	}
	return t.GetKey() + "=" + t.GetValue() + ":" + t.GetEffect()
}

// PodName returns a pod's namespace and name as one word.
func PodName(pod *schedulingv1.Pod) string {
	return pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
}
