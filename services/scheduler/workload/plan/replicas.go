package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

// ReplicaFailure is the condition of a set that cannot make or remove its pods.
const ReplicaFailure = "ReplicaFailure"

const (
	// rejectedSpan is for how long a pod that its node did not take slows down the next one, and the bounds of that delay.
	rejectedSpan   = 10 * time.Minute
	firstRestraint = time.Second
	mostRestraint  = 5 * time.Minute
)

// ReplicasView is everything that a replica set, or a replication controller in the form of one, is decided on.
type ReplicasView struct {
	Now     time.Time
	Clock   spans.Clock   // which measures waits
	Owner   object.Object // whom pods name as their owner
	Spec    *schedulingv1.ReplicaSetSpec
	Status  *schedulingv1.ReplicaSetStatus
	Pods    []*schedulingv1.Pod // of the namespace: those that the owner manages, and those without a controller
	Related []*schedulingv1.Pod // pods of other sets of the same deployment: of a node with many of them one goes first
	Deaths  YoungDeaths
}

// ReplicasPlan is what is done for a set. While Adopt or Release has anything, there is nothing else in it: look again
// afterwards.
type ReplicasPlan struct {
	Adopt, Release []*schedulingv1.Pod
	Create         []*schedulingv1.Pod // without names
	Delete         []*schedulingv1.Pod // in the order to delete them
	Held           []*metav1.HeldBack  // what would be done and waits
	Status         *schedulingv1.ReplicaSetStatus
	Wake           time.Time  // when to decide again even if nothing changes; zero means never
	States         spans.Seen // what the next view has seen

	why reasons
}

// Actions returns what is done, in its order, and why.
func (p ReplicasPlan) Actions() []*metav1.PlannedAction {
	return slices.Concat(transfers(p.Adopt, p.Release), planned("CreatePod", p.Create, p.why),
		planned("DeletePod", p.Delete, p.why))
}

// ReplicaSetView fills the part of a view that the set itself says.
func ReplicaSetView(set *schedulingv1.ReplicaSet, now time.Time) ReplicasView {
	return ReplicasView{Now: now, Owner: set, Spec: set.GetSpec(), Status: set.GetStatus()}
}

// ReplicationControllerView fills the part of a view that the replication controller itself says.
func ReplicationControllerView(rc *schedulingv1.ReplicationController, now time.Time) ReplicasView {
	s, st := rc.GetSpec(), rc.GetStatus()
	v := ReplicasView{Now: now, Owner: rc, Spec: &schedulingv1.ReplicaSetSpec{
		Replicas: s.Replicas, MinReadySeconds: s.MinReadySeconds, Template: s.GetTemplate(),
		Selector: ReplicationControllerSelector(rc),
	}}
	if st != nil {
		v.Status = &schedulingv1.ReplicaSetStatus{
			Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
			AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration, Conditions: st.GetConditions(),
		}
	}
	return v
}

// ReplicationControllerSelector returns which pods belong to a replication controller.
func ReplicationControllerSelector(rc *schedulingv1.ReplicationController) *metav1.LabelSelector {
	if s := rc.GetSpec().GetSelector(); len(s) > 0 {
		return &metav1.LabelSelector{MatchLabels: s}
	}
	return &metav1.LabelSelector{MatchLabels: rc.GetSpec().GetTemplate().GetMetadata().GetLabels()}
}

// ReplicationControllerStatus returns the status of a set as a replication controller has it.
func ReplicationControllerStatus(s *schedulingv1.ReplicaSetStatus) *schedulingv1.ReplicationControllerStatus {
	return &schedulingv1.ReplicationControllerStatus{
		Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration, Conditions: s.GetConditions(),
	}
}

// Replicas decides which pods a set gets and loses, and what its status is as seen before that.
func Replicas(v ReplicasView) (p ReplicasPlan) {
	c := claimAll(v.Owner, matcher(v.Spec.GetSelector()), v.Pods, placement.Active)
	if !c.settled() {
		return ReplicasPlan{Adopt: c.adopt, Release: c.release}
	}
	var active []*schedulingv1.Pod
	for _, pod := range c.mine {
		if placement.Active(pod) {
			active = append(active, pod)
		}
	}
	v.Clock = clockAt(v.Clock, v.Now)
	ready := newReadiness(&v.Clock, v.Spec.GetMinReadySeconds(), active, v.Status.GetAvailableReplicas())
	p.Status = v.status(c.mine, active, ready)
	p.Wake = ready.wake
	defer func() { p.States = v.Clock.Used }()
	if object.Deleting(v.Owner) {
		return p
	}
	p.why = reasons{}
	count := fmt.Sprintf("%d of %d wanted pods are there", len(active), orOne(v.Spec.Replicas))
	switch missing := orOne(v.Spec.Replicas) - len(active); {
	case missing > 0:
		if until := restrained(&v.Clock, c.mine); until.After(v.Now) {
			p.Held = held("CreatePod", v.Owner, count+", but nodes did not take the last ones: the next one comes after a pause",
				"")
			p.Wake = sooner(p.Wake, until)
			break
		}
		if until := v.Deaths.until(v.Now); until.After(v.Now) {
			p.Held = held("CreatePod", v.Owner, count+diedYoung, pauseEnds(until))
			p.Wake = sooner(p.Wake, until)
			break
		}
		for range min(missing, maxBurst) {
			p.Create = append(p.Create, newPod(v.Owner, v.Spec.GetTemplate()))
		}
		note(p.why, count, p.Create...)
	case missing < 0:
		leastMissed(active, crowd(active, v.Related))
		p.Delete = active[:min(-missing, maxBurst)]
		for _, pod := range p.Delete {
			note(p.why, count+", and this one is missed least: "+lessMissed(pod), pod)
		}
	}
	return p
}

func (v ReplicasView) status(mine, active []*schedulingv1.Pod, ready *readiness) *schedulingv1.ReplicaSetStatus {
	want := labels.SelectorFromSet(v.Spec.GetTemplate().GetMetadata().GetLabels())
	var n count
	labelled, leaving := 0, 0
	for _, pod := range active {
		n.add(pod, ready)
		if want.Matches(labels.Set(pod.GetMetadata().GetLabels())) {
			labelled++
		}
	}
	for _, pod := range mine {
		if object.Deleting(pod) && !placement.Terminated(pod) {
			leaving++
		}
	}
	return &schedulingv1.ReplicaSetStatus{
		Replicas: number(len(active)), FullyLabeledReplicas: number(labelled), ReadyReplicas: number(n.ready),
		AvailableReplicas:   number(n.available),
		TerminatingReplicas: number(leaving), ObservedGeneration: proto.Int32(v.Owner.GetMetadata().GetGeneration()),
		Conditions: v.Status.GetConditions(),
	}
}

// WithFailure returns a status that says why pods could not be made or removed; an empty reason means that they could.
func WithFailure(s *schedulingv1.ReplicaSetStatus, reason, message string,
	now time.Time,
) *schedulingv1.ReplicaSetStatus {
	out := proto.CloneOf(s)
	if reason == "" {
		out.Conditions = slices.DeleteFunc(out.Conditions, func(c *metav1.Condition) bool {
			return c.GetType() == ReplicaFailure
		})
		return out
	}
	out.Conditions = object.SetCondition(out.Conditions, &metav1.Condition{
		Type: ReplicaFailure, Status: "True", Reason: proto.String(reason), Message: proto.String(message),
	}, now)
	return out
}

// crowd counts the pods of each node.
func crowd(lists ...[]*schedulingv1.Pod) map[string]int {
	out := map[string]int{}
	for _, pods := range lists {
		for _, pod := range pods {
			if placement.Active(pod) {
				out[pod.GetSpec().GetNodeName()]++
			}
		}
	}
	return out
}

// restrained returns until when no more pods are made, because nodes did not take the last ones: without it, an owner
// whose pods no node takes would make and lose them as fast as it can.
func restrained(clock *spans.Clock, pods []*schedulingv1.Pod) time.Time {
	var last time.Time
	n := 0
	for _, pod := range pods {
		at := created(pod)
		if rejected(pod) && clock.Now.Before(clock.End(spans.Key(at, "rejected", pod.GetMetadata().GetUid()), at,
			rejectedSpan)) {
			n++
			if at.After(last) {
				last = at
			}
		}
	}
	if n == 0 {
		return time.Time{}
	}
	return clock.End(spans.Key(last, "restraint"), last, doubled(firstRestraint, n-1, mostRestraint))
}

// rejected reports whether a pod failed before any container of it started: its node did not take it.
func rejected(pod *schedulingv1.Pod) bool {
	s := pod.GetStatus()
	return s.GetPhase() == placement.Failed && len(s.GetContainerStatuses()) == 0 && len(s.GetInitContainerStatuses()) == 0
}

// doubled returns first doubled n times, and most at the most.
func doubled(first time.Duration, n int, most time.Duration) time.Duration {
	for range n {
		if first *= 2; first >= most {
			return most
		}
	}
	return first
}

// Created is the event of a pod that was made for an owner.
func Created(name string) Event { return Event{"Normal", "SuccessfulCreate", "Created pod: " + name} }

// Deleted is the event of a pod that was removed for an owner.
func Deleted(name string) Event { return Event{"Normal", "SuccessfulDelete", "Deleted pod: " + name} }

// CreateFailed is the event of a pod that could not be made.
func CreateFailed(why string) Event {
	return Event{"Warning", "FailedCreate", "Error creating: " + why}
}

// DeleteFailed is the event of a pod that could not be removed.
func DeleteFailed(why string) Event {
	return Event{"Warning", "FailedDelete", "Error deleting: " + why}
}

// equalIgnoringHash reports whether two templates are the same but for the label that a deployment adds.
func equalIgnoringHash(a, b *schedulingv1.PodTemplateSpec) bool {
	return proto.Equal(withoutHash(a), withoutHash(b))
}

// withoutHash returns a template without the label that a deployment adds.
func withoutHash(t *schedulingv1.PodTemplateSpec) *schedulingv1.PodTemplateSpec {
	if _, ok := t.GetMetadata().GetLabels()[HashLabel]; !ok {
		return t
	}
	out := proto.CloneOf(t)
	maps.DeleteFunc(out.Metadata.Labels, func(k, _ string) bool { return k == HashLabel })
	return out
}
