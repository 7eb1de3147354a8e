package controller

import (
	"sync"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// sweepDeaths is how often counts that have expired are removed.
const sweepDeaths = time.Minute

// deaths counts, only in memory, the pods of each owner that were deleted soon after they were bound. A new leader
// begins without counts: at worst an owner makes one pod too early. The zero deaths is ready to use; it is safe for
// concurrent use.
type deaths struct {
	mu     sync.Mutex
	counts map[string]map[string]plan.YoungDeaths // by the uid of the owner and, for daemon sets, the node
	own    map[string]bool                        // uids of pods that their owner deletes
	swept  time.Time
}

func (d *deaths) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts, d.own = map[string]map[string]plan.YoungDeaths{}, map[string]bool{}
}

// except has the deletion of a pod not counted, since its owner requests it.
func (d *deaths) except(pod *schedulingv1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own == nil {
		d.own = map[string]bool{}
	}
	d.own[pod.GetMetadata().GetUid()] = true
}

// forget drops what is recorded about a pod that is gone, or that its owner could not delete.
func (d *deaths) forget(pod *schedulingv1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.own, pod.GetMetadata().GetUid())
}

// add counts a pod.
func (d *deaths) add(pod *schedulingv1.Pod, now time.Time) {
	owner := placement.ControllerOf(pod)
	d.mu.Lock()
	defer d.mu.Unlock()
	if owner == nil || d.own[pod.GetMetadata().GetUid()] {
		return
	}
	if d.counts == nil {
		d.counts = map[string]map[string]plan.YoungDeaths{}
	}
	if now.Sub(d.swept) >= sweepDeaths {
		d.sweep(now)
	}
	counts, node := d.counts[owner.GetUid()], ""
	if counts == nil {
		counts = map[string]plan.YoungDeaths{}
		d.counts[owner.GetUid()] = counts
	}
	if placement.IsDaemon(pod) {
		node = plan.TargetNode(pod)
	}
	counts[node] = counts[node].After(pod, now)
}

func (d *deaths) sweep(now time.Time) {
	d.swept = now
	for uid, counts := range d.counts {
		for node, c := range counts {
			if c.Expired(now) {
				delete(counts, node)
			}
		}
		if len(counts) == 0 {
			delete(d.counts, uid)
		}
	}
}

// of returns the count of an owner that is no daemon set.
func (d *deaths) of(owner object.Object, now time.Time) plan.YoungDeaths {
	return d.byNode(owner, now)[""]
}

// byNode returns the counts of a daemon set, by node; nil if there are none.
func (d *deaths) byNode(owner object.Object, now time.Time) map[string]plan.YoungDeaths {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out map[string]plan.YoungDeaths
	for node, c := range d.counts[owner.GetMetadata().GetUid()] {
		if c.Expired(now) {
			continue
		}
		if out == nil {
			out = map[string]plan.YoungDeaths{}
		}
		out[node] = c
	}
	return out
}
