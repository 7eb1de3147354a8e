package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// foreignGrace is how long a pod may wait for another scheduler before the pod says that no such scheduler was seen. A
// scheduler that runs binds sooner, and its binding must not meet a pod that changed for this.
const foreignGrace = 10 * time.Second

// NotSeen is the reason of the condition PodScheduled, and part of the message, of a pod that names a scheduler which
// has bound no pod.
const NotSeen = "SchedulerNotSeen"

// SchedulerOf returns the name of the scheduler that places a pod.
func SchedulerOf(pod *schedulingv1.Pod) string {
	return cmp.Or(pod.GetSpec().GetSchedulerName(), DefaultScheduler)
}

// AwaitsScheduler says what a pod waits for that names another scheduler. seen reports whether that scheduler has bound
// a pod which is still there.
func AwaitsScheduler(name string, seen bool) string {
	if seen {
		return fmt.Sprintf("waits for the scheduler %q, which has bound other pods; there is no Policy of that name", name)
	}
	return fmt.Sprintf("waits for the scheduler %q, and no scheduler of that name has been seen: it has bound no pod, "+
		"and there is no Policy of that name", name)
}

// BoundBy reports whether a scheduler has bound a pod, rather than that it was created for its node.
func BoundBy(pod *schedulingv1.Pod, scheduler string) bool {
	return pod.GetSpec().GetNodeName() != "" && SchedulerOf(pod) == scheduler &&
		placement.PodCondition(pod, PodScheduled).GetStatus() == "True"
}

// foreign knows the pods that name other schedulers.
type foreign struct {
	bound   map[object.Key]string            // the scheduler of pods that are bound
	counts  map[string]int                   // of them, by scheduler
	waiting map[object.Key]*schedulingv1.Pod // unbound, and nothing was said of their scheduler
	due     time.Time                        // no pod of waiting has waited long enough before; zero if there is none
}

func newForeign() foreign {
	return foreign{
		bound: map[object.Key]string{}, counts: map[string]int{}, waiting: map[object.Key]*schedulingv1.Pod{},
	}
}

// add takes in a pod that was created or changed. ours are the schedulers of this process.
func (f *foreign) add(pod *schedulingv1.Pod, ours Profiles) {
	k := object.KeyOf(pod)
	f.remove(k)
	switch name := SchedulerOf(pod); {
	case ours[name] != nil:
	case BoundBy(pod, name):
		f.bound[k] = name
		f.counts[name]++
	case placeable(pod) && placement.PodCondition(pod, PodScheduled) == nil:
		f.waiting[k] = pod
		if at := waitedLong(pod); f.due.IsZero() || at.Before(f.due) {
			f.due = at
		}
	}
}

func (f *foreign) remove(k object.Key) {
	delete(f.waiting, k)
	name, ok := f.bound[k]
	if !ok {
		return
	}
	delete(f.bound, k)
	if f.counts[name]--; f.counts[name] == 0 {
		delete(f.counts, name)
	}
}

// unseen returns the pods that have waited long enough for a scheduler that was not seen, and when to ask again; zero
// if nothing has to change first.
func (f *foreign) unseen(now time.Time) (out []Decision, again time.Time) {
	if f.due.IsZero() || now.Before(f.due) {
		return nil, f.due
	}
	f.due = time.Time{}
	for k, pod := range f.waiting {
		at := waitedLong(pod)
		switch {
		case now.Before(at):
			if f.due.IsZero() || at.Before(f.due) {
				f.due = at
			}
		default:
			delete(f.waiting, k)
			if name := SchedulerOf(pod); f.counts[name] == 0 {
				out = append(out, Decision{Pod: pod, Message: AwaitsScheduler(name, false), Refused: true})
			}
		}
	}
	slices.SortFunc(out, func(a, b Decision) int { return earlier(a.Pod, b.Pod) })
	return out, f.due
}

func waitedLong(pod *schedulingv1.Pod) time.Time {
	return pod.GetMetadata().GetCreationTimestamp().AsTime().Add(foreignGrace)
}
