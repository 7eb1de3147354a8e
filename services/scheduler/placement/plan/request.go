package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// Request is a binding that a user or another scheduler asks for.
type Request struct {
	Pod  *schedulingv1.Pod // as it is stored
	Node string
	// Known is the revision up to which the caller knows the pods of the node; 0 means that the caller does not say.
	Known int64
	// UID and ResourceVersion are what the pod must have when it is written; empty means any.
	UID, ResourceVersion string
}

// Refusal is why a request is not granted. The zero Refusal means that it is.
type Refusal struct {
	Stale  string // what changed since the caller read it: it may read again and retry
	Unfit  string // what the node lacks for the pod
	NoNode bool   // the node does not exist
}

// Granted reports whether the request is granted.
func (r Refusal) Granted() bool { return r == Refusal{} }

// Grant decides on requests in their order. A pod whose request is granted counts on its node from now on: give the
// outcomes of these bindings to Bound. Only what the agent of the node would check is checked (resources, ports,
// labels, and that the node is not cordoned), so that another scheduler may decide otherwise than the policy.
func (q *Queue) Grant(requests []Request) []Refusal {
	out := make([]Refusal, len(requests))
	before := map[string]bool{} // nodes that an earlier request or decision binds a pod to
	for _, node := range q.reserved {
		before[node] = true
	}
	for i, r := range requests {
		out[i] = q.refuses(r)
		if r.Known > 0 && before[r.Node] && out[i].Granted() {
			out[i].Stale = fmt.Sprintf("another pod is being bound to node %q", r.Node)
		}
		if out[i].Granted() {
			before[r.Node] = true
			q.forget(object.KeyOf(r.Pod))
			q.Cluster.bind(r.Pod, r.Node)
		}
	}
	return out
}

func (q *Queue) refuses(r Request) Refusal {
	key := podKey{r.Pod.GetMetadata().GetNamespace(), r.Pod.GetMetadata().GetName()}
	n := q.byName[r.Node]
	switch b := q.Cluster.pods[key]; {
	case n == nil:
		return Refusal{NoNode: true}
	case b != nil && !b.nominated:
		return Refusal{Stale: fmt.Sprintf("it is bound to node %q", b.nodeName)}
	}
	if at := q.allocated[r.Node]; r.Known > 0 && at > r.Known {
		return Refusal{Stale: fmt.Sprintf("a pod was bound to node %q at revision %d, after allocationRevision %d", r.Node,
			at,
			r.Known)}
	}
	defer q.withdraw(r.Pod)() // what is reserved for the pod is free for it
	return Refusal{Unfit: q.lacks(key.namespace, r.Pod.GetSpec(), n)}
}

// lacks says in one line why a pod does not fit on a node; empty if it does.
func (q *Queue) lacks(namespace string, spec *schedulingv1.PodSpec, n *node) string {
	k := &class{
		cluster: q.Cluster, profile: q.Of(nil), spec: spec, requests: placement.RequestsOf(spec),
		ports: placement.HostPorts(spec), shared: placement.SharedPorts(spec), matcher: placement.NewNodeMatcher(spec),
		demand: q.demandOf(namespace, spec),
	}
	k.asksNothing = k.requests.Zero()
	var report report
	p := &predicate{name: "CheckNodeUnschedulable"}
	for _, check := range []check{(*class).schedulable, (*class).selected, (*class).fits, (*class).portsFree} {
		check(k, p, n, &report)
	}
	var reasons []string
	for _, key := range k.demand.keys {
		if ask := q.stock.claims[key]; ask != nil && object.Deleting(ask.Msg) {
			reasons = append(reasons, "claim "+key.Name+" is being deleted")
		}
	}
	for _, v := range k.demand.bound {
		if !v.Reaches(n.msg) {
			reasons = append(reasons, "volume "+v.Msg.GetMetadata().GetName()+" cannot be used there")
		}
	}
	for _, w := range k.demand.wanted {
		reasons = append(reasons,
			fmt.Sprintf("claim %s has no volume: set its annotation %s, and bind the pod after it is bound",
				w.ask.Msg.GetMetadata().GetName(), volumes.SelectedNode))
	}
	for _, f := range report.failures {
		reason, _ := f.reason()
		reasons = append(reasons, reason)
	}
	return strings.Join(reasons, "; ")
}

// Bound takes in the outcomes of granted requests: what a binding would have used is free again unless it was written.
func (q *Queue) Bound(now time.Time, outcomes []Outcome) {
	for _, o := range outcomes {
		if o.Result == Written {
			q.allocate(o.Now)
			q.Cluster.AddPod(o.Now)
			q.news |= podCame
			continue
		}
		if o.Result == Unwritten {
			q.paused = now.Add(writePause)
		}
		k := object.KeyOf(o.Pod)
		q.note(q.Cluster.RemovePod(k.Namespace, k.Name))
		if o.Now == nil {
			q.forget(k)
			continue
		}
		q.AddPod(o.Now)
	}
}

// allocate notes the revision of a pod that was bound, or whose binding was not known. It may be a later one than that
// of the binding, after which a caller has to read again for nothing.
func (q *Queue) allocate(pod *schedulingv1.Pod) {
	revision, _ := strconv.ParseInt(pod.GetMetadata().GetResourceVersion(), 10, 64)
	node := pod.GetSpec().GetNodeName()
	q.allocated[node] = max(q.allocated[node], revision)
}
