package plan

import (
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// youngLife is the life on its node below which the end of a pod slows down the next one of its owner. Evictions that
// repeat at longer intervals are no load.
const youngLife = time.Minute

// YoungDeaths counts how often in a row pods of one owner were deleted soon after they were bound, by something else
// than their owner: such as by a taint of the node that the owner's pods are placed on again and again. The zero
// YoungDeaths means none.
type YoungDeaths struct {
	Rounds int       // pods that replace each other; pods that existed at the same time count once
	Last   time.Time // when the last one was deleted
}

// DiedYoung reports whether a pod that was there as was, and now is as is, is deleted soon after it was bound. is is
// nil if its record is gone. An eviction or a preemption does not count: it follows a request, and its node takes no
// new pods, or other ones. A deletion for a taint counts: its owner's pods may be placed on that node again and again.
func DiedYoung(was, is *schedulingv1.Pod, now time.Time) bool {
	bound := placement.BoundBy(was)
	switch {
	case was == nil || object.Deleting(was) || is != nil && !object.Deleting(is):
		return false
	case bound.IsZero() || placement.Terminated(was):
		return false
	case disrupted(was), disrupted(is):
		return false
	}
	return now.Sub(bound) < youngLife
}

// disrupted reports whether a pod goes for another reason than a taint of its node.
func disrupted(pod *schedulingv1.Pod) bool {
	c := placement.PodCondition(pod, placement.DisruptionTarget)
	return c.GetStatus() == "True" && c.GetReason() != placement.EvictedByTaint
}

// After returns the count after one more pod died young.
func (d YoungDeaths) After(pod *schedulingv1.Pod, now time.Time) YoungDeaths {
	switch {
	case d.Expired(now):
		d.Rounds = 1
	case created(pod).After(d.Last):
		d.Rounds++
	}
	d.Last = now
	return d
}

// Expired reports whether the count says nothing any more.
func (d YoungDeaths) Expired(now time.Time) bool {
	return d.Rounds == 0 || now.Sub(d.Last) >= rejectedSpan
}

// diedYoung explains why an owner waits with its next pod.
const diedYoung = ", but the last one was deleted soon after it was bound: the next one comes after a pause, which " +
	"doubles each time"

// pauseEnds returns what releases an action that waits for a time.
func pauseEnds(at time.Time) string { return "the pause ends at " + at.UTC().Format(time.RFC3339) }

// until returns until when the owner makes no pod; zero if it need not wait.
func (d YoungDeaths) until(now time.Time) time.Time {
	if d.Expired(now) {
		return time.Time{}
	}
	return d.Last.Add(doubled(firstRestraint, d.Rounds-1, mostRestraint))
}
