package plan

import (
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

// Offer has the next decision place pods that are not stored yet, together with those that are. It returns false for
// each pod that has to be stored first: it has claims, another pod of its name is known or is not settled yet, or
// extenders decide on it. A pod that no node fits is not mentioned in the plan; it waits for a node once it is stored.
// Each pod must have a uid, and must not be modified until Next has returned.
func (q *Queue) Offer(pods []*schedulingv1.Pod) []bool {
	out := make([]bool, len(pods))
	for i, pod := range pods {
		k := object.KeyOf(pod)
		_, extended := q.lineOf(pod)
		if !q.NeedsNode(pod) || q.knows(k) || extended || len(claimsOf(k.Namespace, pod.GetSpec())) > 0 {
			continue
		}
		q.offered[k] = pod
		out[i] = true
	}
	return out
}

// knows reports whether the queue or its cluster has a pod of that name.
func (q *Queue) knows(k object.Key) bool {
	_, reserved := q.reserved[k]
	_, refused := q.refused[k]
	return reserved || refused || q.offered[k] != nil || q.consulted[k] != nil || q.ready[k] != nil || q.stuck[k] != nil ||
		q.Cluster.pods[podKey{k.Namespace, k.Name}] != nil
}

// Settling reports whether a pod was placed before it was stored, and Done has not taken in its creation yet.
func (q *Queue) Settling(k object.Key) bool {
	_, is := q.reserved[k]
	return is
}

// offers returns the pods that are offered, unless stored ones would have to wait longer for them.
func (q *Queue) offers() []*schedulingv1.Pod {
	var out []*schedulingv1.Pod
	if len(q.ready) == 0 {
		for _, pod := range q.offered {
			out = append(out, pod)
		}
	}
	return out
}

// storedPlaced takes in how the creation of a pod with its node ended. The room on that node was kept until now.
func (q *Queue) storedPlaced(o Outcome) {
	k := object.KeyOf(o.Pod)
	delete(q.reserved, k)
	if o.Now == nil {
		q.RemovePod(k)
		return
	}
	if b := q.Cluster.pods[podKey{k.Namespace, k.Name}]; b != nil && b.leaving {
		q.news |= podLeft // it was chosen as a victim before it was stored, so its eviction found nothing: choose again
	}
	q.AddPod(o.Now)
	if placement.Assigned(o.Now) {
		q.allocate(o.Now)
		q.news |= podCame
	}
}
