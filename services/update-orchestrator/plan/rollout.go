package plan

import (
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Rollout is how far a workload has come.
type Rollout struct {
	Ready    bool
	Failed   bool   // it will not become ready by itself
	Reason   string // WorkloadNotAvailable or WorkloadNotProgressing; empty if it is ready
	Fact     string // what must become true
	Observed string // what is seen
}

// RollsOut reports whether an object that was just applied is waited for: jobs, and workloads that are renewed. What is
// made for the first time is not waited for: it may need what comes later.
func RollsOut(o object.Object) bool {
	switch o.(type) {
	case *schedulingv1.Job:
		return true
	case *schedulingv1.Deployment, *schedulingv1.DaemonSet:
		return o.GetMetadata().GetGeneration() > 1
	}
	return false
}

// RolloutOf says how far a workload has come.
func RolloutOf(o object.Object) Rollout {
	switch w := o.(type) {
	case *schedulingv1.Deployment:
		want := int32(1) // what a deployment without a number has
		if w.GetSpec() != nil && w.GetSpec().Replicas != nil {
			want = w.GetSpec().GetReplicas()
		}
		st := w.GetStatus()
		return pods(rolled{
			seen:    st.GetObservedGeneration() >= w.GetMetadata().GetGeneration(),
			want:    want,
			updated: st.GetUpdatedReplicas(), available: st.GetAvailableReplicas(), total: st.GetReplicas(),
			stuck: object.FindCondition(st.GetConditions(), "Progressing"),
		})
	case *schedulingv1.DaemonSet:
		st := w.GetStatus()
		want := st.GetDesiredNumberScheduled()
		return pods(rolled{
			seen: st.GetObservedGeneration() >= w.GetMetadata().GetGeneration(),
			want: want, updated: st.GetUpdatedNumberScheduled(), available: st.GetNumberAvailable(), total: want,
		})
	case *schedulingv1.Job:
		return job(w)
	}
	return Rollout{Ready: true}
}

type rolled struct {
	seen                            bool // the status speaks of the present generation
	want, updated, available, total int32
	stuck                           *metav1.Condition
}

func pods(r rolled) Rollout {
	s := Rollout{
		Reason: "WorkloadNotAvailable", Fact: "all pods are of the new template and available",
		Observed: fmt.Sprintf("%d of %d pods updated, %d available", r.updated, r.want, r.available),
	}
	switch {
	case !r.seen:
		s.Observed = "the change has not been taken up yet"
	case r.updated >= r.want && r.available >= r.want && r.total <= r.want:
		return Rollout{Ready: true}
	case r.stuck.GetStatus() == "False":
		s.Failed, s.Reason = true, "WorkloadNotProgressing"
		s.Observed += ": " + r.stuck.GetMessage()
	}
	return s
}

func job(j *schedulingv1.Job) Rollout {
	s := Rollout{Reason: "WorkloadNotAvailable", Fact: "the job is complete"}
	st := j.GetStatus()
	switch failed := object.FindCondition(st.GetConditions(), "Failed"); {
	case object.IsTrue(st.GetConditions(), "Complete"):
		return Rollout{Ready: true}
	case failed.GetStatus() == "True":
		s.Failed, s.Reason, s.Observed = true, "WorkloadNotProgressing", "the job failed: "+failed.GetMessage()
	default:
		s.Observed = fmt.Sprintf("%d pods active, %d succeeded, %d failed", st.GetActive(), st.GetSucceeded(), st.GetFailed())
	}
	return s
}
