package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/disruption"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Messages about pods that a drain refuses to evict, with the text of kubectl drain, which users search for.
const (
	daemonSetFatal    = "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
	unmanagedFatal    = "Pods that declare no controller (use --force to override)"
	localStorageFatal = "Pods with local storage (use --delete-emptydir-data to override)"
)

// unblockEviction is what releases a refused eviction.
const unblockEviction = "the eviction is allowed; it is retried periodically"

// PodVerdict is the decision of a drain about one pod.
type PodVerdict struct {
	Pod     *schedulingv1.Pod
	Verdict string // Evict, Skip, Wait or Blocked
	Delete  bool   // for Evict: the pod has terminated, so its object is deleted without regard to budgets
	Leaves  bool   // the drain waits until the pod is gone
	Reason  string // for people
	Try     Try    // the last refusal

	next  time.Time // when the verdict may change even if no object does
	fatal string    // the message for this pod, if the drain needs an option to evict it
}

// verdicts returns the decision of a drain about each pod on its node, ordered by namespace and name.
func verdicts(v DrainView) []PodVerdict {
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
		out.Reason = "it is a static pod"
	case placement.Terminated(pod) && terminating:
		out.Reason = "it has terminated and is being deleted"
	case placement.Terminated(pod):
		return tried(v, PodVerdict{Pod: pod, Verdict: Evict, Delete: true, Leaves: true, Reason: "it has terminated"})
	case placement.IsDaemon(pod) && spec.GetIgnoreDaemonSets():
		out.Reason = "a daemon set manages it"
	case terminating:
		return terminates(v, out)
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

// tried holds back an eviction that was tried a short while ago, unless the pod or one of its budgets changed since,
// and every eviction shortly after this process was suspended: its view may be outdated.
func tried(v DrainView, out PodVerdict) PodVerdict {
	t := v.Tries[out.Pod.GetMetadata().GetUid()]
	if !t.Accepted {
		out.Try = t
	}
	switch {
	case v.Settled.After(v.Now):
		out.Verdict, out.Reason, out.next = Wait, "this service was suspended until a moment ago", v.Settled
	case !t.Next.After(v.Now):
	case t.Accepted:
		out.Verdict, out.Reason, out.next = Wait, "it is terminating", t.Next
	case t.Pod == out.Pod.GetMetadata().GetResourceVersion() && (t.Budgets == budgetsOf(out.Pod, v.Budgets) ||
		!allowed(out.Pod, v.Budgets)):
		out.Verdict, out.Reason, out.next = Blocked, t.Why, t.Next
	}
	return out
}

// terminates has the drain wait for a pod that is being deleted, as long as that may be reported.
func terminates(v DrainView, out PodVerdict) PodVerdict {
	until, limited := waits(v).Until(out.Pod.GetMetadata().GetDeletionTimestamp())
	if limited && !until.After(v.Now) {
		out.Reason = "it is being deleted, and the machine of its node, which is unreachable, is to be deleted as well"
		return out
	}
	out.Verdict, out.Leaves, out.Reason, out.next = Wait, true, "it is terminating", until
	return out
}

// waits returns what a drain waits for: a limit applies only if the machine of the node is deleted, since the pods of a
// node that returns would still run. The provider is not asked.
func waits(v DrainView) disruption.Waits {
	if v.Drain.GetSpec().GetMachineRef().GetName() == "" {
		return disruption.WaitsOf("", disruption.InstanceUnknown)
	}
	return disruption.WaitsOf(disruption.Ready(v.Node), disruption.InstanceUnknown)
}

func hasEmptyDir(pod *schedulingv1.Pod) bool {
	return slices.ContainsFunc(pod.GetSpec().GetVolumes(), func(v *schedulingv1.Volume) bool {
		return v.GetEmptyDir() != nil
	})
}

// evict evicts the pods of the node independently of each other, and ends the drain once none is left that must leave.
func (p *draining) evict(v DrainView) {
	if !v.Known {
		p.wait(v, v.Now, "waits for the list of pods from the scheduler")
		return
	}
	before := proto.CloneOf(p.status)
	p.verdicts = verdicts(v)
	p.count(p.verdicts)
	p.status.Blocked, p.status.BlockedPods = nil, nil
	if why := refusal(p.verdicts); why != "" {
		p.finish(v, Failed, why)
		return
	}
	for _, pod := range p.verdicts {
		p.consider(v, pod)
	}
	untriedFirst(p.Ask, v.Tries)
	listed := v.Listed.Code
	if (listed == Away || listed == Refused) && !v.Now.Before(v.Listed.At.Add(AskScheduler)) {
		listed = NotAsked
	}
	switch {
	case p.status.GetRemainingPods() > 0:
		p.enter(v, Draining, p.remaining())
		if listed == Granted { // pods that have not reached this service's watch yet
			p.Ask, p.Wake = nil, v.Now.Add(AskScheduler)
		}
	case listed == Away || listed == Refused:
		p.status = before // missing pods count as gone only once the scheduler confirms it
		p.wait(v, v.Listed.At, "waits for the scheduler: "+v.Listed.Why)
	case listed == NotAsked:
		p.status = before
		p.Ask = append(p.Ask, Question{
			Verb: ListPods, Object: nodeReference(v), Reason: "no pod is left according to the watch", Drain: uidOf(v.Drain),
			Revision: v.Node.GetMetadata().GetResourceVersion(),
		})
	case p.status.GetEvictedPods() == 0:
		p.emptied(v, "no pods had to leave the node")
	default:
		p.emptied(v, fmt.Sprintf("%s left the node", pods(int(p.status.GetEvictedPods()))))
	}
}

// untriedFirst moves questions about pods that were not tried yet to the front, then those tried longest ago: otherwise
// pods that are refused repeatedly could keep others from being tried.
func untriedFirst(questions []Question, tries map[string]Try) {
	slices.SortStableFunc(questions, func(a, b Question) int {
		return tries[a.Pod.GetMetadata().GetUid()].Next.Compare(tries[b.Pod.GetMetadata().GetUid()].Next)
	})
}

// wait has the drain wait for the scheduler, which is asked again AskScheduler after asked.
func (p *draining) wait(v DrainView, asked time.Time, message string) {
	p.enter(v, Draining, message)
	p.Wake = asked.Add(AskScheduler)
}

// refusal returns why a drain cannot run at all, with the text of kubectl; empty if it can.
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

// count updates the numbers of the status: pods that no longer remain count as evicted.
func (p *draining) count(verdicts []PodVerdict) {
	var now int32
	for _, pod := range verdicts {
		if pod.Leaves {
			now++
		}
	}
	s := p.status
	s.EvictedPods = proto.Int32(s.GetEvictedPods() + max(s.GetRemainingPods()-now, 0))
	s.RemainingPods = proto.Int32(now)
}

// consider adds the decision about one pod. A refusal stays in the status until there is another answer.
func (p *draining) consider(v DrainView, pod PodVerdict) {
	q := Question{
		Verb: EvictPod, Object: object.Reference(pod.Pod), Reason: pod.Reason, Pod: pod.Pod,
		Drain: uidOf(v.Drain),
	}
	if pod.Delete {
		q.Verb = DeletePod
	} else {
		q.Grace, q.Force = v.Drain.GetSpec().GracePeriodSeconds, v.Drain.GetSpec().GetForce()
		if w := waits(v); w.Grace != nil {
			q.Grace = w.Grace
		}
	}
	t := pod.Try
	p.block(v, pod)
	if t.Count > 0 {
		p.status.Blocked = append(p.status.Blocked, fmt.Sprintf("%s: %s; tried %s, again at %s",
			PodName(pod.Pod), t.Why, times(t.Count), t.Next.UTC().Format("15:04:05Z")))
	}
	p.wake(pod.next)
	switch {
	case pod.Verdict == Evict:
		p.Ask = append(p.Ask, q)
	case pod.Verdict == Blocked:
		p.hold(&metav1.HeldBack{
			Action: q.Verb, Object: q.Object, Reason: t.Why, SinceTime: object.Timestamp(t.Since),
			Unblock: unblockEviction,
		})
	case v.Settled.After(v.Now) && pod.next.Equal(v.Settled):
		p.hold(&metav1.HeldBack{Action: q.Verb, Object: q.Object, Reason: pod.Reason})
	}
}

// block lists a pod whose eviction is refused, with the budgets that refuse it and since when. An entry stays until
// there is another answer, also if another process took over.
func (p *draining) block(v DrainView, pod PodVerdict) {
	m, t := pod.Pod.GetMetadata(), pod.Try
	stored := v.Drain.GetStatus().GetBlockedPods()
	i := slices.IndexFunc(stored, func(b *nodev1.BlockedPod) bool { return b.GetUid() == m.GetUid() })
	switch {
	case t.Count > 0:
		b := &nodev1.BlockedPod{
			Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(), Reason: t.Why,
			Budgets: refusing(pod.Pod, v.Budgets), SinceTime: &timestamppb.Timestamp{Seconds: t.Since.Unix()},
		}
		if i >= 0 {
			b.SinceTime = stored[i].GetSinceTime()
		}
		p.status.BlockedPods = append(p.status.BlockedPods, b)
	case i >= 0 && pod.Verdict == Evict:
		p.status.BlockedPods = append(p.status.BlockedPods, stored[i])
	}
}

// remaining returns what the drain waits for, in one line.
func (p *draining) remaining() string {
	n, blocked := int(p.status.GetRemainingPods()), len(p.status.GetBlocked())
	if blocked == 0 {
		return fmt.Sprintf("waits for %s to leave", pods(n))
	}
	i := slices.IndexFunc(p.verdicts, func(v PodVerdict) bool { return v.Try.Count > 0 })
	return fmt.Sprintf("waits for %s to leave, %d of them blocked: %s", pods(n), blocked, p.verdicts[i].Try.Why)
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
