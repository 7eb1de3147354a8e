package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

const (
	// mostAtOnce is how many pods are placed before their bindings are written: enough for full transactions, few enough
	// that the first of many pods do not wait for the last.
	mostAtOnce = 1000
	// retryPause is the least time between two tries of pods that no node fits: several changes that help them often
	// come together.
	retryPause = 200 * time.Millisecond
	// writePause is how long to wait after etcd refused a write.
	writePause = 500 * time.Millisecond
)

// PodScheduled is the condition of a pod that says whether it has a node.
const PodScheduled = "PodScheduled"

// Plan is the outcome of one decision of a Queue. The zero Plan means nothing to do. The controller does Do, gives the
// outcomes to Done, and calls Next again at Wake, which is at once if more pods may be ready.
type Plan struct {
	Do       []Action   // the bindings first
	Held     []Decision // the pods of this decision that no node fits, with the reason
	WaitsFor string     // what the pods that are not placed wait for, in one line; empty if there are none
	Wake     time.Time  // when to decide again even if nothing changes; zero means never
}

// What an Action does.
const (
	BindPod      = "BindPod"      // write the binding of Decision.Pod to Decision.Node, if the pod is still the same
	StorePending = "StorePending" // write the condition PodScheduled, False, with Decision.Message
)

// Action is one thing to do for a pod.
type Action struct {
	Verb string
	Decision
}

// Result classifies what happened to an Action.
type Result int

// Results.
const (
	Written   Result = iota // it is stored
	Changed                 // the pod changed, is gone, or has a node
	Invalid                 // the pod as it is stored breaks a rule, so no write of it succeeds
	Unwritten               // etcd did not take the write
)

// Outcome is an action with its result.
type Outcome struct {
	Action
	Result Result
	Now    *schedulingv1.Pod // of Written and Changed: the pod as it is now, nil if it is gone
}

// Queue decides which pods are placed when. It begins empty with each leader. Of its cluster, use only the methods that
// add and remove objects. It may not be used concurrently.
type Queue struct {
	*Cluster
	profile *Profile
	ready   map[object.Key]*schedulingv1.Pod // to place now
	stuck   map[object.Key]*schedulingv1.Pod // no node fitted them
	refused map[object.Key]struct{}          // a write of them was Invalid; not placed again until they change
	lonely  int                              // how many of stuck have terms about other pods
	helped  bool                             // something changed that may help the pods of stuck
	tried   time.Time                        // when all of stuck were tried last
	paused  time.Time                        // no pod is placed before: etcd refused a write
	turn    uint64                           // see Place
}

// NewQueue returns a queue without pods. It keeps c up to date from now on.
func NewQueue(c *Cluster, p *Profile) *Queue {
	return &Queue{
		Cluster: c, profile: p,
		ready: map[object.Key]*schedulingv1.Pod{}, stuck: map[object.Key]*schedulingv1.Pod{},
		refused: map[object.Key]struct{}{},
	}
}

// NeedsNode reports whether this scheduler has to find a node for a pod.
func NeedsNode(pod *schedulingv1.Pod) bool {
	s := pod.GetSpec()
	return s.GetNodeName() == "" && s.GetSchedulerName() == defaultScheduler && len(s.GetSchedulingGates()) == 0 &&
		!placement.Terminated(pod) && !object.Deleting(pod)
}

// AddPod takes in a pod that was created or changed. A pod that no node fitted is placed again if it asks for something
// else.
func (q *Queue) AddPod(pod *schedulingv1.Pod) {
	q.note(q.Cluster.AddPod(pod))
	k := object.KeyOf(pod)
	if !NeedsNode(pod) {
		q.forget(k)
		return
	}
	delete(q.refused, k)
	if before, stuck := q.stuck[k]; stuck && asksTheSame(before, pod) {
		q.stuck[k] = pod
		if _, ready := q.ready[k]; !ready {
			return
		}
	}
	q.ready[k] = pod
}

// RemovePod takes in that a pod is gone.
func (q *Queue) RemovePod(k object.Key) {
	q.note(q.Cluster.RemovePod(k.Namespace, k.Name))
	q.forget(k)
}

// AddNode takes in a node that was created or changed.
func (q *Queue) AddNode(n *nodev1.Node) {
	q.Cluster.AddNode(n)
	q.helped = true
}

// RemoveNode takes in that a node is gone.
func (q *Queue) RemoveNode(name string) {
	q.Cluster.RemoveNode(name)
	q.helped = true
}

// AddService takes in a service that was created or changed.
func (q *Queue) AddService(s *schedulingv1.Service) {
	q.Cluster.AddService(s)
	q.helped = true
}

// RemoveSelector takes in that a service or a controller is gone.
func (q *Queue) RemoveSelector(kind, namespace, name string) {
	q.Cluster.RemoveSelector(kind, namespace, name)
	q.helped = q.helped || kind == "Service"
}

// SetProfile takes in another policy.
func (q *Queue) SetProfile(p *Profile) { q.profile, q.helped = p, true }

// Next decides what to do now. The cluster counts the pods that are to be bound already.
func (q *Queue) Next(now time.Time) Plan {
	if now.Before(q.paused) {
		return Plan{WaitsFor: "etcd to take writes", Wake: q.paused}
	}
	if len(q.ready) == 0 {
		if again := q.tried.Add(retryPause); q.helped && len(q.stuck) > 0 && now.Before(again) {
			return Plan{WaitsFor: q.waitsFor(), Wake: again}
		}
		if !q.unstick(now) {
			return Plan{WaitsFor: q.waitsFor()}
		}
	}
	if len(q.stuck) == 0 {
		q.helped = false // what changed before is in the cluster that pods are placed in now
	}
	var p Plan
	for _, d := range placeAll(q.Cluster, q.profile, q.batch(), &q.turn) {
		if d.Node != "" {
			p.Do = append(p.Do, Action{BindPod, d})
			continue
		}
		p.Held = append(p.Held, d)
	}
	for _, d := range p.Held {
		q.stick(d.Pod)
		if c := placement.PodCondition(d.Pod, PodScheduled); c.GetStatus() != "False" || c.GetMessage() != d.Message {
			p.Do = append(p.Do, Action{StorePending, d})
		}
	}
	p.WaitsFor, p.Wake = q.waitsFor(), now
	return p
}

// waitsFor says in one line what the pods that are not placed wait for.
func (q *Queue) waitsFor() string {
	var out []string
	if n := len(q.stuck); n > 0 {
		out = append(out, fmt.Sprintf("a change that helps pods that no node fits: %d", n))
	}
	if n := len(q.refused); n > 0 {
		out = append(out, fmt.Sprintf("a change of pods whose stored form breaks a rule: %d", n))
	}
	return strings.Join(out, "; ")
}

// Done takes in the outcomes of what Next wanted. What a binding would have used is free again unless it was written.
func (q *Queue) Done(now time.Time, outcomes []Outcome) {
	for _, o := range outcomes {
		if o.Result == Unwritten {
			q.paused = now.Add(writePause)
		}
		k := object.KeyOf(o.Pod)
		switch {
		case o.Verb == BindPod:
			q.bound(o)
		case o.Result == Invalid:
			q.refuse(k)
		case o.Result == Unwritten: // or its condition would be stale until something changes
			q.settle(k)
			q.ready[k] = o.Pod
		}
	}
}

func (q *Queue) bound(o Outcome) {
	k := object.KeyOf(o.Pod)
	if o.Result == Written {
		q.Cluster.AddPod(o.Now)
		q.settle(k)
		q.note(company)
		return
	}
	q.note(q.Cluster.RemovePod(k.Namespace, k.Name))
	switch o.Result {
	case Unwritten:
		q.ready[k] = o.Pod
	case Invalid:
		q.refuse(k)
	case Changed:
		if o.Now == nil {
			q.forget(k)
		} else {
			q.AddPod(o.Now)
		}
	}
}

// unstick makes the pods ready that no node fitted, if something changed that may help them. It reports whether there
// are any.
func (q *Queue) unstick(now time.Time) bool {
	if !q.helped || len(q.stuck) == 0 {
		return false
	}
	maps.Copy(q.ready, q.stuck)
	q.helped, q.tried = false, now
	return true
}

// note has the pods that no node fitted tried again if the change of another pod may help them.
func (q *Queue) note(e Effect) {
	q.helped = q.helped || e == room || e == company && q.lonely > 0
}

// batch takes pods off ready: by priority, then the oldest first, so that none waits indefinitely.
func (q *Queue) batch() []*schedulingv1.Pod {
	pods := slices.SortedFunc(maps.Values(q.ready), earlier)
	pods = pods[:min(len(pods), mostAtOnce)]
	for _, pod := range pods {
		delete(q.ready, object.KeyOf(pod))
	}
	return pods
}

// stick notes that no node fits a pod.
func (q *Queue) stick(pod *schedulingv1.Pod) {
	k := object.KeyOf(pod)
	q.settle(k)
	if lonely(pod) {
		q.lonely++
	}
	q.stuck[k] = pod
}

// settle forgets that no node fitted a pod.
func (q *Queue) settle(k object.Key) {
	if pod, stuck := q.stuck[k]; stuck && lonely(pod) {
		q.lonely--
	}
	delete(q.stuck, k)
}

// refuse drops a pod until it changes: it would be placed again for the room that it leaves itself, before others that
// need it.
func (q *Queue) refuse(k object.Key) {
	q.forget(k)
	q.refused[k] = struct{}{}
}

// forget drops a pod that needs no node.
func (q *Queue) forget(k object.Key) {
	delete(q.ready, k)
	delete(q.refused, k)
	q.settle(k)
}

// lonely reports whether what a pod says about other pods keeps it from nodes.
func lonely(pod *schedulingv1.Pod) bool {
	a := pod.GetSpec().GetAffinity()
	return len(a.GetPodAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()) > 0 ||
		len(a.GetPodAntiAffinity().GetRequiredDuringSchedulingIgnoredDuringExecution()) > 0
}

// asksTheSame reports whether two versions of a name are one pod, and ask for the same of nodes.
func asksTheSame(a, b *schedulingv1.Pod) bool {
	x, y := a.GetMetadata(), b.GetMetadata()
	return x.GetUid() == y.GetUid() && x.GetGeneration() == y.GetGeneration() &&
		maps.Equal(x.GetLabels(), y.GetLabels())
}
