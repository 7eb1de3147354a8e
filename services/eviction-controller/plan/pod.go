package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
)

// askScheduler is how soon a scheduler that did not answer is asked again.
const askScheduler = time.Second

// What a drain says of pods that it would not touch, in the words of kubectl drain, which people look for.
const (
	daemonSetFatal    = "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
	unmanagedFatal    = "Pods that declare no controller (use --force to override)"
	localStorageFatal = "Pods with local storage (use --delete-emptydir-data to override)"
)

// How plans speak of an eviction.
const (
	evictPod        = "EvictPod"
	unblockEviction = "what refuses the eviction allows it; it is tried again and again"
)

// Try is what became of an eviction so far.
type Try struct {
	Accepted bool      // the pod is about to be seen on its way out
	Why      string    // why it was refused; empty if it was accepted
	Count    int       // how often it was refused
	Next     time.Time // when it is tried again
	Pod      string    // resourceVersion of the pod at the try
	Budgets  string    // the budgets of the pod at the try, see budgetsOf
}

// PodVerdict is what a drain makes of one pod.
type PodVerdict struct {
	Pod     *schedulingv1.Pod
	Verdict string // Evict, Skip, Wait or Blocked
	Delete  bool   // for Evict: the pod has ended, so its object is deleted and no budget is asked
	Leaves  bool   // the node is not empty before the pod is gone
	Reason  string // for people
	Try     Try    // what was refused so far

	fatal string // which kind of pods it is that the drain would have to be told to touch
}

// Verdicts says what a drain makes of each pod on its node now, ordered by namespace and name.
func Verdicts(v DrainView) []PodVerdict {
	out := make([]PodVerdict, 0, len(v.Pods))
	for _, pod := range v.Pods {
		out = append(out, verdict(v, pod))
	}
	slices.SortFunc(out, func(a, b PodVerdict) int { return cmp.Compare(PodName(a.Pod), PodName(b.Pod)) })
	return out
}

func verdict(v DrainView, pod *schedulingv1.Pod) PodVerdict {
	spec := v.Drain.GetSpec()
	out := PodVerdict{Pod: pod, Verdict: Skip}
	terminating := pod.GetMetadata().GetDeletionTimestamp() != nil
	managed := placement.ControllerOf(pod) != nil
	switch {
	case static(pod):
		out.Reason = "it belongs to the node itself"
	case placement.Terminated(pod) && terminating:
		out.Reason = "it has ended and is being deleted"
	case placement.Terminated(pod):
		return tried(v, PodVerdict{Pod: pod, Verdict: Evict, Delete: true, Leaves: true, Reason: "it has ended"})
	case placement.IsDaemon(pod) && spec.GetIgnoreDaemonSets():
		out.Reason = "a daemon set manages it"
	case terminating && unreachable(v) && spec.GetMachineRef().GetName() != "":
		out.Reason = "it is being deleted, and the machine of its node, which does not answer, is to go as well"
	case terminating:
		out.Verdict, out.Leaves, out.Reason = Wait, true, "it is on its way out"
	case placement.IsDaemon(pod):
		out.Verdict, out.Leaves, out.fatal = Blocked, true, daemonSetFatal
	case !managed && !spec.GetForce():
		out.Verdict, out.Leaves, out.fatal = Blocked, true, unmanagedFatal
	case hasEmptyDir(pod) && !spec.GetDeleteEmptyDirData():
		out.Verdict, out.Leaves, out.fatal = Blocked, true, localStorageFatal
	default:
		return tried(v, PodVerdict{Pod: pod, Verdict: Evict, Leaves: true, Reason: "the node is drained"})
	}
	if out.fatal != "" {
		out.Reason = "cannot delete " + out.fatal
	}
	return out
}

// tried holds an eviction back that was tried a short while ago, unless the pod or one of its budgets changed in between.
func tried(v DrainView, out PodVerdict) PodVerdict {
	t := v.Tries[out.Pod.GetMetadata().GetUid()]
	if !t.Accepted {
		out.Try = t
	}
	switch {
	case !t.Next.After(v.Now):
	case t.Accepted:
		out.Verdict, out.Reason = Wait, "it is on its way out"
	case t.Pod == out.Pod.GetMetadata().GetResourceVersion() && (t.Budgets == budgetsOf(out.Pod, v.Budgets) || !allowed(out.Pod, v.Budgets)):
		out.Verdict, out.Reason = Blocked, t.Why
	}
	return out
}

func unreachable(v DrainView) bool {
	return find(v.Node.GetStatus().GetConditions(), Ready).GetStatus() == "Unknown"
}

func hasEmptyDir(pod *schedulingv1.Pod) bool {
	return slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool { return v.GetEmptyDir() != nil })
}

// empty has the pods of the node leave, each for itself, and ends once none is left that must.
func (p *DrainPlan) empty(v DrainView) {
	if !v.Known {
		p.wait(v, "waits for the scheduler to say which pods are on the node")
		return
	}
	p.Pods = Verdicts(v)
	p.count(p.Pods)
	p.Status.Blocked = nil
	if why := refusal(p.Pods); why != "" {
		p.finish(v, Failed, why)
		return
	}
	for _, pod := range p.Pods {
		p.consider(pod)
	}
	switch remaining := p.Status.GetRemainingPods(); {
	case remaining > 0:
		p.enter(v, Draining, p.remaining())
		if v.Fresh {
			p.Wake = v.Now.Add(askScheduler) // pods that only the scheduler has seen so far
		}
	case v.Away != "":
		p.wait(v, "waits for the scheduler: "+v.Away)
	case !v.Fresh:
		p.Confirm = true
	case p.Status.GetEvictedPods() == 0:
		p.emptied(v, "no pods are on this node: nothing had to leave")
	default:
		p.emptied(v, fmt.Sprintf("%s left the node", pods(int(p.Status.GetEvictedPods()))))
	}
}

func (p *DrainPlan) wait(v DrainView, message string) {
	p.enter(v, Draining, message)
	p.Wake = v.Now.Add(askScheduler)
}

// refusal returns why a drain cannot be done at all, as kubectl says it; empty if it can.
func refusal(verdicts []PodVerdict) string {
	var parts []string
	for _, fatal := range []string{daemonSetFatal, localStorageFatal, unmanagedFatal} {
		var names []string
		for _, pod := range verdicts {
			if pod.fatal == fatal {
				names = append(names, PodName(pod.Pod))
			}
		}
		if len(names) > 0 {
			parts = append(parts, fmt.Sprintf("cannot delete %s: %s", fatal, strings.Join(names, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}

// count brings the numbers of the status in step: what no longer remains has left.
func (p *DrainPlan) count(verdicts []PodVerdict) {
	var now int32
	for _, pod := range verdicts {
		if pod.Leaves {
			now++
		}
	}
	s := p.Status
	s.EvictedPods = proto.Int32(s.GetEvictedPods() + max(s.GetRemainingPods()-now, 0))
	s.RemainingPods = proto.Int32(now)
}

// consider adds what happens to one pod. What was refused stays in the status until there is another answer.
func (p *DrainPlan) consider(pod PodVerdict) {
	ref := resource.Reference(pod.Pod)
	action := evictPod
	if pod.Delete {
		action = "DeletePod"
	}
	t := pod.Try
	if t.Count > 0 {
		p.Status.Blocked = append(p.Status.Blocked, fmt.Sprintf("%s: %s; tried %s, again at %s",
			PodName(pod.Pod), t.Why, times(t.Count), t.Next.UTC().Format("15:04:05Z")))
	}
	switch pod.Verdict {
	case Evict:
		p.Actions = append(p.Actions, &metav1.PlannedAction{Action: action, Object: ref, Reason: pod.Reason})
	case Blocked:
		p.HeldBack = append(p.HeldBack, &metav1.HeldBack{
			Action: action, Object: ref, Reason: t.Why, Unblock: unblockEviction,
		})
		if p.Wake.IsZero() || t.Next.Before(p.Wake) {
			p.Wake = t.Next
		}
	}
}

// remaining says in one line what the drain waits for.
func (p *DrainPlan) remaining() string {
	n, blocked := int(p.Status.GetRemainingPods()), len(p.Status.GetBlocked())
	if blocked == 0 {
		return fmt.Sprintf("waits for %s to leave", pods(n))
	}
	i := slices.IndexFunc(p.Pods, func(v PodVerdict) bool { return v.Try.Count > 0 })
	return fmt.Sprintf("waits for %s to leave, %d of them blocked: %s", pods(n), blocked, p.Pods[i].Try.Why)
}

func pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// Again returns what is remembered of an eviction that was refused once more, in the situation v.
func (t Try) Again(v DrainView, pod *schedulingv1.Pod, why string, retry time.Duration) Try {
	return Try{
		Why: why, Count: t.Count + 1, Next: v.Now.Add(retry),
		Pod: pod.GetMetadata().GetResourceVersion(), Budgets: budgetsOf(pod, v.Budgets),
	}
}
