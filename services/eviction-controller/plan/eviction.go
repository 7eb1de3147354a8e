package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// verdicts on a pod.
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
	Hearing
	Tries   map[string]Try // what became of evictions so far, by the uid of the pod
	Settled time.Time      // until when nothing is evicted, since this process stood still; zero if it did not
}

// Eviction is what becomes of one pod because of taints.
type Eviction struct {
	Pod     *schedulingv1.Pod
	Node    string
	Verdict string    // Evict, Wait or Keep
	At      time.Time // when it is evicted; zero means never
	Reason  string    // for people

	since time.Time // when the taint was set that decides
}

// Evictions decides which pods are deleted now because of the NoExecute taints of their node.
func Evictions(v EvictionView) Plan {
	var p Plan
	if !NoExecutes(v.Node) {
		return p
	}
	p.disruption(&v.Hearing)
	for _, e := range Deadlines(v) {
		switch e.Verdict {
		case Evict:
			p.Ask = append(p.Ask, Question{Verb: DeletePod, Object: object.Reference(e.Pod), Reason: e.Reason, Pod: e.Pod})
		case Wait:
			p.wake(e.At)
			p.hold(Held{
				Action: DeletePod, Object: object.Reference(e.Pod), Reason: e.Reason, Since: e.since,
				Unblock: "the taint is removed, or its time comes",
			})
		}
	}
	untriedFirst(p.Ask, v.Tries)
	return p
}

// Deadlines says of each pod of a node whether it leaves. A pod leaves at the earliest time that a NoExecute taint
// gives it: at once where it does not tolerate the taint, tolerationSeconds after the taint was set where the first
// toleration that matches says so. The times come from what is stored, so each change counts from the moment it is made
// and a restart changes nothing. The pods come back by the time of their eviction, then by name.
func Deadlines(v EvictionView) []Eviction {
	disrupted := new(Plan).disruption(&v.Hearing)
	until := doubt(v.Now, v.Agent, v.Grace, disrupted)
	var out []Eviction
	for _, pod := range v.Pods {
		out = append(out, eviction(v, until, pod))
	}
	return InOrder(out)
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
	return slices.ContainsFunc(node.GetSpec().GetTaints(), func(t *nodev1.Taint) bool {
		return t.GetEffect() == placement.NoExecute
	})
}

func eviction(v EvictionView, doubt time.Time, pod *schedulingv1.Pod) Eviction {
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
		e.decide(v, doubt)
	}
	return e
}

// decide takes the earliest time that a NoExecute taint gives a pod.
func (e *Eviction) decide(v EvictionView, doubt time.Time) {
	e.Reason = "it tolerates every NoExecute taint for ever"
	for _, t := range v.Node.GetSpec().GetTaints() {
		if t.GetEffect() != placement.NoExecute {
			continue
		}
		at, why, leaves := deadline(v.Now, doubt, e.Pod, t)
		if leaves && (e.At.IsZero() || at.Before(e.At)) {
			e.At, e.Reason, e.since = at, why, timeOf(t.GetTimeAdded())
		}
	}
	switch {
	case e.At.IsZero():
	case e.At.After(v.Now):
		e.Verdict = Wait
	default:
		e.due(v)
	}
}

// due evicts a pod whose time has come, unless that was tried a short while ago or this process stood still.
func (e *Eviction) due(v EvictionView) {
	t := v.Tries[e.Pod.GetMetadata().GetUid()]
	switch {
	case v.Settled.After(v.Now):
		e.Verdict, e.At = Wait, v.Settled
		e.Reason += ", and this service stood still until a moment ago"
	case t.Next.After(v.Now) && t.Accepted:
		e.Verdict, e.At, e.Reason = Wait, t.Next, "it is on its way out"
	case t.Next.After(v.Now) && t.Verb == DeletePod:
		e.Verdict, e.At, e.Reason = Wait, t.Next, t.Why
	default:
		e.Verdict = Evict
	}
}

// deadline returns when a pod leaves for one taint, and why; leaves is false if it may stay for ever.
func deadline(now, doubt time.Time, pod *schedulingv1.Pod, t *nodev1.Taint) (at time.Time, why string, leaves bool) {
	if at = now; t.GetTimeAdded() != nil {
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
	if markOf(t).silence() && at.Before(doubt) {
		at = doubt
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
