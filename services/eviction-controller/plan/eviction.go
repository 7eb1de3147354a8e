package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Verdicts on a pod.
const (
	Evict   = "Evict"   // now
	Wait    = "Wait"    // later, or it is terminating
	Keep    = "Keep"    // never, unless something changes
	Skip    = "Skip"    // a drain ignores it
	Blocked = "Blocked" // a drain would evict it but may not
)

// EvictionView is everything that a decision about evictions for the NoExecute taints of a node depends on.
type EvictionView struct {
	Now  time.Time // UTC
	Node *nodev1.Node
	Pods []*schedulingv1.Pod // of the node, in any order
	Reachability
	Tries   map[string]Try // evictions that were requested, by the uid of the pod
	Settled time.Time      // until when nothing is evicted because this process was suspended; zero if it was not
	Clock   Clock
	Seen    map[string]time.Duration // uptimes at which pods were observed to be bound, by their uids
}

// Eviction is the decision about one pod because of taints.
type Eviction struct {
	Pod     *schedulingv1.Pod
	Node    string
	Verdict string    // Evict, Wait or Keep
	At      time.Time // when it is evicted; zero means never
	Reason  string    // for people

	since *timestamppb.Timestamp // when the deciding taint was set
	due   time.Time              // At, as if there were no doubt about the node's agent
	held  bool                   // At is later than due because of that doubt
}

// Evictions returns which pods are deleted now because of the NoExecute taints of their node.
func Evictions(v EvictionView) Plan {
	var p Plan
	if !NoExecutes(v.Node) {
		return p
	}
	p.disruption(&v.Reachability)
	for _, e := range Deadlines(v) {
		switch e.Verdict {
		case Evict:
			p.Ask = append(p.Ask, Question{Verb: DeletePod, Object: object.Reference(e.Pod), Reason: e.Reason, Pod: e.Pod})
		case Wait:
			p.wake(e.At)
			p.hold(&metav1.HeldBack{
				Action: DeletePod, Object: object.Reference(e.Pod), Reason: e.Reason, SinceTime: e.since,
				Unblock: "the taint is removed, or the time comes",
			})
		}
	}
	untriedFirst(p.Ask, v.Tries)
	return p
}

// Deadlines returns for each pod of a node whether and when it is evicted. A pod is evicted at the earliest time that a
// NoExecute taint gives: immediately if it does not tolerate the taint, else tolerationSeconds of the first matching
// toleration after the later of the taint and the pod's binding. The times depend only on stored objects, so a restart
// does not change them. The result is ordered by the time of the eviction, then by name.
func Deadlines(v EvictionView) []Eviction {
	disrupted := new(Plan).disruption(&v.Reachability)
	d := doubts{doubt(v.Now, v.Agent, v.Grace, disrupted), "the node's agent may still send a heartbeat"}
	if d.until.IsZero() {
		if _, stopped := v.Census.health(Zone(v.Node)).pace(0); stopped {
			d = doubts{v.Now.Add(v.Grace / 2), "evictions are stopped since most nodes of its zone are lost"}
		}
	}
	var out []Eviction
	for _, pod := range v.Pods {
		out = append(out, eviction(v, d, pod))
	}
	return InOrder(out)
}

// doubts is until when no pod is evicted for the silence of a node's agent, and why. The zero doubts is none.
type doubts struct {
	until time.Time
	why   string
}

// nextDeadline returns the earliest time, after now, at which a pod of a node is to be evicted; zero if there is none.
// stopped is whether pods are not evicted for the silence of agents.
func nextDeadline(v EvictionView, stopped bool) time.Time {
	var d doubts
	if stopped {
		d.until = forever
	}
	var first time.Time
	for _, pod := range v.Pods {
		e := eviction(v, d, pod)
		if e.Verdict == Wait && !e.held && e.due.After(v.Now) && (first.IsZero() || e.due.Before(first)) {
			first = e.due
		}
	}
	return first
}

// forever is later than all times of evictions.
var forever = time.Unix(1<<40, 0)

// InOrder sorts evictions by their time, then by name; those without a time come last.
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

func eviction(v EvictionView, doubt doubts, pod *schedulingv1.Pod) Eviction {
	e := Eviction{Pod: pod, Node: v.Node.GetMetadata().GetName(), Verdict: Keep}
	switch {
	case pod.GetMetadata().GetDeletionTimestamp() != nil:
		e.Reason = "it is already being deleted"
	case placement.Terminated(pod):
		e.Reason = "it has terminated"
	case static(pod):
		e.Reason = "it is a static pod"
	case !NoExecutes(v.Node):
		e.Reason = "the node has no NoExecute taint"
	default:
		e.decide(v, doubt)
	}
	return e
}

// decide uses the earliest time that a NoExecute taint gives a pod.
func (e *Eviction) decide(v EvictionView, doubt doubts) {
	e.Reason = "it tolerates every NoExecute taint indefinitely"
	for _, t := range v.Node.GetSpec().GetTaints() {
		if t.GetEffect() != placement.NoExecute {
			continue
		}
		due, why, leaves := deadline(added(v.Now, v.Node, t, v.Clock), e.Pod, t)
		at, held := v.afterSpan(due, e.Pod, t), markOf(t).silence() && due.Before(doubt.until)
		if held = held && at.Before(doubt.until); held {
			at, why = doubt.until, why+", and "+doubt.why
		}
		if leaves && (e.At.IsZero() || at.Before(e.At)) {
			e.At, e.Reason, e.since, e.due, e.held = at, why, t.GetTimeAdded(), due, held
		}
	}
	switch {
	case e.At.IsZero():
	case e.At.After(v.Now):
		e.Verdict = Wait
	default:
		e.evict(v)
	}
}

// evict evicts a pod whose time has come, unless that was tried a short while ago or this process was suspended.
func (e *Eviction) evict(v EvictionView) {
	t := v.Tries[e.Pod.GetMetadata().GetUid()]
	switch {
	case v.Settled.After(v.Now):
		e.Verdict, e.At = Wait, v.Settled
		e.Reason += ", and this service was suspended until a moment ago"
	case t.Next.After(v.Now) && t.Accepted:
		e.Verdict, e.At, e.Reason = Wait, t.Next, "it is terminating"
	case t.Next.After(v.Now) && t.Verb == DeletePod:
		e.Verdict, e.At, e.Reason = Wait, t.Next, t.Why
	default:
		e.Verdict = Evict
	}
}

// deadline returns when a pod is evicted for one taint that was set at a time, and why; leaves is false if it tolerates
// the taint indefinitely. The seconds of a toleration count from the later of the taint and the binding: otherwise a
// pod that is bound later would be evicted at once, replaced, and so on without end.
func deadline(set time.Time, pod *schedulingv1.Pod, t *nodev1.Taint) (at time.Time, why string, leaves bool) {
	at, from := set, ""
	toleration := placement.FirstTolerating(pod.GetSpec().GetTolerations(), t)
	switch {
	case toleration == nil:
		why = fmt.Sprintf("it does not tolerate the taint %s", TaintText(t))
	case toleration.TolerationSeconds == nil:
		return time.Time{}, "", false
	default:
		if bound := placement.BoundBy(pod); bound.After(at) {
			at, from = bound, " from its binding"
		}
		s := max(toleration.GetTolerationSeconds(), 0)
		at = at.Add(time.Duration(s) * time.Second)
		why = fmt.Sprintf("it tolerates the taint %s for %d s%s", TaintText(t), s, from)
	}
	return at, why, true
}

// afterSpan returns when a pod is evicted that is due at a time by the wall clock: not before the seconds of its
// toleration have passed by the clock of the view, too, since the wall clock may have been set, or may differ from
// those of other hosts.
func (v EvictionView) afterSpan(due time.Time, pod *schedulingv1.Pod, t *nodev1.Taint) time.Time {
	toleration := placement.FirstTolerating(pod.GetSpec().GetTolerations(), t)
	if v.Clock.Boot == "" || toleration.GetTolerationSeconds() <= 0 {
		return due
	}
	span := time.Duration(toleration.GetTolerationSeconds()) * time.Second
	if left := span - v.borne(pod, t); left > 0 && v.Now.Add(left).After(due) {
		return v.Now.Add(left)
	}
	return due
}

// static reports whether a pod is a static pod, which the node's agent runs itself: deleting the object would not stop
// it.
func static(pod *schedulingv1.Pod) bool {
	_, ok := pod.GetMetadata().GetAnnotations()["kubernetes.io/config.mirror"]
	return ok
}

// TaintText returns a taint in the format of commands: key=value:effect.
func TaintText(t *nodev1.Taint) string {
	if t.GetValue() == "" {
		return t.GetKey() + ":" + t.GetEffect()
	}
	return t.GetKey() + "=" + t.GetValue() + ":" + t.GetEffect()
}

// PodName returns a pod's "namespace/name".
func PodName(pod *schedulingv1.Pod) string {
	return pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
}
