package controller

import (
	"sync"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// departed keeps, only in memory, the last state of the pods of jobs that ended and were removed before their job
// counted them, as when an agent reports an end and the removal right after each other. The zero departed is ready to
// use; it is safe for concurrent use.
type departed struct {
	mu      sync.Mutex
	leads   bool
	pods    map[string]map[string]*schedulingv1.Pod // by the uid of the job and the pod
	counted map[string]map[string]bool              // the same of the pods that exist and are counted
}

// reset forgets everything. While this process does not lead, nothing is kept.
func (d *departed) reset(leads bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leads, d.pods, d.counted = leads, map[string]map[string]*schedulingv1.Pod{}, map[string]map[string]bool{}
}

// gone notes that the record of a pod was removed.
func (d *departed) gone(pod *schedulingv1.Pod) {
	owner := placement.ControllerOf(pod)
	if owner.GetKind() != "Job" || !placement.Terminated(pod) {
		return
	}
	job, uid := owner.GetUid(), pod.GetMetadata().GetUid()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.leads:
	case d.counted[job][uid]:
		delete(d.counted[job], uid)
	default:
		if d.pods[job] == nil {
			d.pods[job] = map[string]*schedulingv1.Pod{}
		}
		d.pods[job][uid] = pod
	}
}

// of returns the pods of a job that are gone and not counted.
func (d *departed) of(job string) (out []*schedulingv1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, pod := range d.pods[job] {
		out = append(out, pod)
	}
	return out
}

// count notes that the stored status of a job counts some pods that have ended.
func (d *departed) count(job string, pods []*schedulingv1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.leads {
		return
	}
	for _, pod := range pods {
		uid := pod.GetMetadata().GetUid()
		if d.pods[job][uid] != nil {
			delete(d.pods[job], uid)
			continue
		}
		if d.counted[job] == nil {
			d.counted[job] = map[string]bool{}
		}
		d.counted[job][uid] = true
	}
}

// forget drops a job that is gone.
func (d *departed) forget(job string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pods, job)
	delete(d.counted, job)
}
