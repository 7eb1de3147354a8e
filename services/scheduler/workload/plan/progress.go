package plan

import (
	"fmt"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
)

// Conditions of a deployment, and the reasons of Progressing that decide something.
const (
	availableCondition = "Available"
	progressing        = "Progressing"

	allAvailable     = "NewReplicaSetAvailable"
	deadlineExceeded = "ProgressDeadlineExceeded"
	pausedReason     = "DeploymentPaused"
	setRefused       = "ReplicaSetCreateError"
)

func (r *rollout) setCondition(typ, status, reason, message string) {
	r.status.Conditions = object.SetCondition(r.status.GetConditions(), &metav1.Condition{
		Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message),
	}, r.now)
}

// progress notes that the rollout came forward now: the deadline counts from here.
func (r *rollout) progress(reason, message string) {
	r.setCondition(progressing, "True", reason, message)
	object.FindCondition(r.status.GetConditions(), progressing).LastTransitionTime = stamp(r.now)
}

// checkPaused lets the condition Progressing follow a pause, whose time does not count against the deadline.
func (r *rollout) checkPaused() {
	c := object.FindCondition(r.status.GetConditions(), progressing)
	paused := r.d.GetSpec().GetPaused()
	switch {
	case c.GetReason() == deadlineExceeded:
	case paused && c.GetReason() != pausedReason:
		r.setCondition(progressing, "Unknown", pausedReason, "Deployment is paused")
	case !paused && c.GetReason() == pausedReason:
		r.setCondition(progressing, "Unknown", "DeploymentResumed", "Deployment is resumed")
	}
}

// observe counts the pods of all sets into the status and sets its conditions.
func (r *rollout) observe() {
	before := r.d.GetStatus()
	var replicas, ready, up, leaving int
	for _, s := range r.all {
		st := s.was.GetStatus()
		replicas += int(st.GetReplicas())
		ready += int(st.GetReadyReplicas())
		up += int(st.GetAvailableReplicas())
		leaving += int(st.GetTerminatingReplicas())
	}
	s := r.status
	s.ObservedGeneration = proto.Int32(r.d.GetMetadata().GetGeneration())
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.TerminatingReplicas = number(replicas), number(ready), number(up),
		number(leaving)
	s.UpdatedReplicas, s.UnavailableReplicas = number(0), number(max(0, r.pods()-up))
	if r.current != nil {
		s.UpdatedReplicas = number(int(r.current.was.GetStatus().GetReplicas()))
	}
	if up >= r.want-r.missing {
		r.setCondition(availableCondition, "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		r.setCondition(availableCondition, "False", "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.")
	}
	r.observeProgress(before)
	r.observeFailure()
}

// complete reports whether all wanted pods are of the present template and available, and no others are there.
func (r *rollout) complete() bool {
	if r.current == nil || r.pods() != r.want || r.current.size() != r.want {
		return false
	}
	for _, s := range r.old() {
		if s.was.GetStatus().GetReplicas() > 0 {
			return false
		}
	}
	st := r.current.was.GetStatus()
	return int(st.GetReplicas()) == r.want && int(st.GetAvailableReplicas()) == r.want
}

func (r *rollout) observeProgress(before *schedulingv1.DeploymentStatus) {
	if r.d.GetSpec().GetPaused() {
		return
	}
	s := r.status
	what := fmt.Sprintf("Deployment %q", r.d.GetMetadata().GetName())
	if r.current != nil {
		what = fmt.Sprintf("ReplicaSet %q", r.current.next.GetMetadata().GetName())
	}
	c := object.FindCondition(s.GetConditions(), progressing)
	switch {
	case c.GetReason() == allAvailable && s.GetReplicas() == s.GetUpdatedReplicas():
	case r.complete():
		r.progress(allAvailable, what+" has successfully progressed.")
	case r.advanced(before):
		r.progress("ReplicaSetUpdated", what+" is progressing.")
		r.p.Wake = r.progressEnds()
	case c == nil || c.GetReason() == allAvailable || c.GetReason() == deadlineExceeded:
	default:
		at := r.progressEnds()
		if at.After(r.now) {
			r.p.Wake = at
			return
		}
		r.setCondition(progressing, "False", deadlineExceeded, what+" has timed out progressing.")
	}
}

// advanced reports whether more pods are new, ready or available, or fewer old, than when the status was written last.
func (r *rollout) advanced(before *schedulingv1.DeploymentStatus) bool {
	s := r.status
	return s.GetUpdatedReplicas() > before.GetUpdatedReplicas() ||
		s.GetReplicas()-s.GetUpdatedReplicas() < before.GetReplicas()-before.GetUpdatedReplicas() ||
		s.GetReadyReplicas() > before.GetReadyReplicas() || s.GetAvailableReplicas() > before.GetAvailableReplicas()
}

// progressEnds returns when the deployment fails if it does not come forward.
func (r *rollout) progressEnds() time.Time {
	since := object.FindCondition(r.status.GetConditions(), progressing).GetLastTransitionTime().AsTime()
	return r.clock.End(spans.Key(since, "progress"), since, r.deadline())
}

func (r *rollout) deadline() time.Duration {
	if n := r.d.GetSpec().ProgressDeadlineSeconds; n != nil {
		return seconds(*n)
	}
	return defaultDeadline
}

// observeFailure passes on that a set cannot make its pods; the present one comes first.
func (r *rollout) observeFailure() {
	var failure *metav1.Condition
	for _, s := range r.all {
		if c := object.FindCondition(s.was.GetStatus().GetConditions(), ReplicaFailure); c != nil &&
			(failure == nil || s == r.current) {
			failure = c
		}
	}
	if failure != nil {
		r.setCondition(ReplicaFailure, failure.GetStatus(), failure.GetReason(), failure.GetMessage())
		return
	}
	var kept []*metav1.Condition
	for _, c := range r.status.GetConditions() {
		if c.GetType() != ReplicaFailure {
			kept = append(kept, c)
		}
	}
	r.status.Conditions = kept
}
