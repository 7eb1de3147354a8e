// Package plan decides which pods must exist: for replica sets, replication controllers, deployments, stateful sets,
// daemon sets and jobs; which jobs cron jobs have; how many pods a disruption budget lets go; which pods of nodes that
// are not ready count as not ready; and what is deleted without a user's request, except the dependents of deleted
// owners, which are left to kit/ownership. It does no I/O and reads no clock: the same view always gives the same plan,
// and no view is modified. The package plan of placement decides where pods go.
package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// maxBurst is how many pods of one owner are made or removed before it is reconciled again, so that what is wrong
	// shows early.
	maxBurst = 500
	// maxBase is how much of an owner's name its pods' names keep, so that these can be host names.
	maxBase = 58
	// deletionCost is the annotation of a pod that says how much it would be missed; pods of less cost go first.
	deletionCost = "controller.kubernetes.io/pod-deletion-cost"
)

// Event is what users read once the action that it belongs to is done.
type Event struct {
	Type, Reason, Message string
}

// Alike reports whether two states of a pod are the same to its owner and its budgets, as before and after it is bound.
func Alike(a, b *schedulingv1.Pod) bool {
	return a != nil && b != nil &&
		a.GetMetadata().GetUid() == b.GetMetadata().GetUid() &&
		a.GetStatus().GetPhase() == b.GetStatus().GetPhase() &&
		object.Deleting(a) == object.Deleting(b) &&
		placement.IsReady(a) == placement.IsReady(b) && readySince(a).Equal(readySince(b)) &&
		restarts(a) == restarts(b) && rejected(a) == rejected(b) &&
		maps.Equal(a.GetMetadata().GetLabels(), b.GetMetadata().GetLabels()) &&
		object.ControllerOf(a).GetUid() == object.ControllerOf(b).GetUid() &&
		(!placement.IsDaemon(b) || TargetNode(a) == TargetNode(b))
}

// claim is the result for the objects of a namespace that an owner might manage.
type claim[T object.Object] struct {
	mine    []T
	adopt   []T // match, have no controller and are not on their way out
	release []T // belong to the owner and do not match any more
}

// settled reports whether nothing changes hands.
func (c claim[T]) settled() bool { return len(c.adopt) == 0 && len(c.release) == 0 }

func claimAll[T object.Object](owner object.Object, sel labels.Selector, objects []T,
	adoptable func(T) bool,
) claim[T] {
	var c claim[T]
	for _, o := range objects {
		ref := object.ControllerOf(o)
		matches := sel.Matches(labels.Set(o.GetMetadata().GetLabels()))
		switch {
		case ref == nil:
			if matches && adoptable(o) && !object.Deleting(owner) {
				c.adopt = append(c.adopt, o)
			}
		case ref.GetUid() != owner.GetMetadata().GetUid():
		case matches:
			c.mine = append(c.mine, o)
		case !object.Deleting(owner):
			c.release = append(c.release, o)
		}
	}
	return c
}

// matcher returns a selector as a matcher; an empty one matches nothing.
func matcher(s *metav1.LabelSelector) labels.Selector {
	sel, _ := object.LabelSelector(s, "") // what cannot be read matches nothing
	return sel
}

// SelectorMatches reports whether the pods of a replica set, deployment, daemon set or job can have these labels.
func SelectorMatches(s *metav1.LabelSelector, set map[string]string) bool {
	return matcher(s).Matches(labels.Set(set))
}

// newPod returns a pod as its owner's template has it, without a name.
func newPod(owner object.Object, template *schedulingv1.PodTemplateSpec) *schedulingv1.Pod {
	base := owner.GetMetadata().GetName()
	spec := proto.CloneOf(template.GetSpec())
	if spec == nil {
		spec = &schedulingv1.PodSpec{}
	}
	m := template.GetMetadata()
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			GenerateName: base[:min(len(base), maxBase-1)] + "-", Namespace: owner.GetMetadata().GetNamespace(),
			Labels: maps.Clone(m.GetLabels()), Annotations: maps.Clone(m.GetAnnotations()),
			Finalizers:      slices.Clone(m.GetFinalizers()),
			OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(owner)},
		},
		Spec: spec,
	}
}

// label returns labels with one more.
func label(set map[string]string, key, value string) map[string]string {
	out := maps.Clone(set)
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// clockAt returns the clock of a decision at a time. The clock of a process that does not lead has seen nothing: then,
// and for given objects, the times in the objects count.
func clockAt(c spans.Clock, now time.Time) spans.Clock {
	c.Now, c.Exact = now, c.Exact || c.Steady.IsZero()
	return c
}

// readiness decides which pods of an owner are available.
type readiness struct {
	clock    *spans.Clock
	minReady time.Duration
	wake     time.Time // when the first one of those that were asked for becomes available
}

// newReadiness returns the readiness of an owner's pods, of which so many were available by its last status. While this
// process has not decided on the owner, it believes that of those that are ready for the longest time and for long
// enough by their own clocks: otherwise pods would stop being available whenever another process begins to lead.
func newReadiness(clock *spans.Clock, minReadySeconds int32, pods []*schedulingv1.Pod, were int32) *readiness {
	r := &readiness{clock: clock, minReady: seconds(minReadySeconds)}
	if r.minReady == 0 || clock.Exact || clock.Seen != nil || were == 0 {
		return r
	}
	ready := slices.DeleteFunc(slices.Clone(pods), func(p *schedulingv1.Pod) bool {
		return !placement.Active(p) || !placement.IsReady(p) || clock.Now.Before(readySince(p).Add(r.minReady))
	})
	slices.SortFunc(ready, func(a, b *schedulingv1.Pod) int { return readySince(a).Compare(readySince(b)) })
	for _, p := range ready[:min(len(ready), int(were))] {
		clock.Trust(readyKey(p), r.minReady)
	}
	return r
}

func readyKey(pod *schedulingv1.Pod) string {
	return spans.Key(readySince(pod), "ready", pod.GetMetadata().GetUid())
}

// up reports whether a pod is available: it has been ready for long enough.
func (r *readiness) up(pod *schedulingv1.Pod) bool {
	switch {
	case !placement.IsReady(pod):
		return false
	case r.minReady == 0:
		return true
	}
	at := r.clock.End(readyKey(pod), readySince(pod), r.minReady)
	if r.clock.Now.Before(at) {
		r.wake = sooner(r.wake, at)
		return false
	}
	return true
}

// count counts pods.
type count struct {
	ready, available int
}

func (c *count) add(pod *schedulingv1.Pod, r *readiness) {
	if placement.IsReady(pod) {
		c.ready++
	}
	if r.up(pod) {
		c.available++
	}
}

// tooYoung returns until when a pod that ended soon after it was created is not replaced; zero if it lived for long
// enough.
func tooYoung(clock *spans.Clock, pod *schedulingv1.Pod) time.Time {
	ended := endOf(pod)
	rest := leastLife - max(0, ended.Sub(created(pod)))
	if rest <= 0 {
		return time.Time{}
	}
	at := clock.End(spans.Key(ended, "young", pod.GetMetadata().GetUid()), ended, rest)
	if !at.After(clock.Now) {
		return time.Time{}
	}
	return at
}

// sooner returns the earlier of two times; the zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// leastMissed sorts pods so that those come first that are missed least: not bound, pending, not ready, of less cost,
// beside more of their like, ready for a shorter time, restarted more often, younger. crowd is how many of their like
// are on a node.
func leastMissed(pods []*schedulingv1.Pod, crowd map[string]int) {
	slices.SortFunc(pods, func(a, b *schedulingv1.Pod) int {
		return cmp.Or(
			truth(a.GetSpec().GetNodeName() != "", b.GetSpec().GetNodeName() != ""),
			cmp.Compare(phaseRank(a), phaseRank(b)),
			truth(placement.IsReady(a), placement.IsReady(b)),
			cmp.Compare(cost(a), cost(b)),
			cmp.Compare(crowd[b.GetSpec().GetNodeName()], crowd[a.GetSpec().GetNodeName()]),
			readySince(b).Compare(readySince(a)),
			cmp.Compare(mostRestarts(b), mostRestarts(a)),
			created(b).Compare(created(a)),
			cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()),
		)
	})
}

// lessMissed says what of a pod puts it before others in leastMissed.
func lessMissed(pod *schedulingv1.Pod) string {
	switch {
	case pod.GetSpec().GetNodeName() == "":
		return "it is not bound"
	case pod.GetStatus().GetPhase() != placement.Running:
		return "it does not run"
	case !placement.IsReady(pod):
		return "it is not ready"
	case cost(pod) != 0:
		return fmt.Sprintf("its deletion cost is %d", cost(pod))
	}
	return "of those that are ready it has most of its like on its node, or is the youngest"
}

// truth orders false before true.
func truth(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func phaseRank(pod *schedulingv1.Pod) int {
	switch pod.GetStatus().GetPhase() {
	case placement.Running:
		return 2
	case "Unknown":
		return 1
	}
	return 0
}

func cost(pod *schedulingv1.Pod) int64 {
	n, err := strconv.ParseInt(pod.GetMetadata().GetAnnotations()[deletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

func readySince(pod *schedulingv1.Pod) time.Time {
	if !placement.IsReady(pod) {
		return time.Time{}
	}
	return placement.PodCondition(pod, "Ready").GetLastTransitionTime().AsTime()
}

// restarts returns how often all containers of a pod were started again.
func restarts(pod *schedulingv1.Pod) (n int32) {
	for _, c := range pod.GetStatus().GetContainerStatuses() {
		n += c.GetRestartCount()
	}
	for _, c := range pod.GetStatus().GetInitContainerStatuses() {
		n += c.GetRestartCount()
	}
	return n
}

// mostRestarts returns how often the container of a pod was started again that was so most often.
func mostRestarts(pod *schedulingv1.Pod) (n int32) {
	for _, c := range pod.GetStatus().GetContainerStatuses() {
		n = max(n, c.GetRestartCount())
	}
	return n
}

func created(o object.Object) time.Time { return o.GetMetadata().GetCreationTimestamp().AsTime() }

// byAge orders objects from the oldest to the youngest.
func byAge[T object.Object](a, b T) int {
	return cmp.Or(created(a).Compare(created(b)), cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()))
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func stamp(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

func number(n int) *int32 { return proto.Int32(int32(n)) }

// orOne returns a number, or 1 if it is not given.
func orOne(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}
