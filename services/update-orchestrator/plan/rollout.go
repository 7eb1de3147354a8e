package plan

import (
	"fmt"

	apiextensionsv1 "github.com/windlass-dev/windlass/gen/windlass/apiextensions/v1"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/supervision"
)

// Rollout is how far a workload has come.
type Rollout struct {
	Ready    bool
	Missing  bool   // there are no nodes to wait for, so that their operator does not say a version either
	Failed   bool   // it will not become ready by itself
	Reason   string // WorkloadNotAvailable or WorkloadNotProgressing; empty if it is ready
	Fact     string // what must become true
	Observed string // what is seen
}

// RollsOut reports whether an object that was just applied is waited for: jobs, programs where a supervisor restarts
// them, and workloads that are renewed. A workload that is made for the first time is not waited for: it may need what
// comes later. Source: the Cluster Version Operator.
func RollsOut(o object.Object, supervised bool) bool {
	switch o.(type) {
	case *schedulingv1.Job, *apiextensionsv1.CustomResourceDefinition:
		return true
	case *programv1.Program:
		return supervised
	case *schedulingv1.Deployment, *schedulingv1.DaemonSet, *schedulingv1.StatefulSet:
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
			stuck:  object.FindCondition(st.GetConditions(), "Progressing"),
			paused: w.GetSpec().GetPaused(),
		})
	case *schedulingv1.DaemonSet:
		st := w.GetStatus()
		want := st.GetDesiredNumberScheduled()
		return pods(rolled{
			seen: st.GetObservedGeneration() >= w.GetMetadata().GetGeneration(),
			want: want, updated: st.GetUpdatedNumberScheduled(), available: st.GetNumberAvailable(), total: want,
			manual: w.GetSpec().GetUpdateStrategy().GetType() == onDelete,
		})
	case *schedulingv1.StatefulSet:
		return statefulSet(w)
	case *schedulingv1.Job:
		return job(w)
	case *programv1.Program:
		return program(w)
	case *apiextensionsv1.CustomResourceDefinition:
		return definitionRollout(w)
	}
	return Rollout{Ready: true}
}

const programNotUpdated = "ProgramNotUpdated"

// program says how far a program is that supervisors restart.
func program(p *programv1.Program) Rollout {
	st := p.GetStatus()
	s := Rollout{
		Reason: programNotUpdated,
		Fact: fmt.Sprintf("the program runs version %s, from %s", p.GetSpec().GetVersion(),
			p.GetSpec().GetImage()),
	}
	progressing := object.FindCondition(st.GetConditions(), "Progressing")
	same := st.GetImage() == p.GetSpec().GetImage() && st.GetVersion() == p.GetSpec().GetVersion()
	switch {
	case st.GetObservedGeneration() < p.GetMetadata().GetGeneration():
		s.Observed = "the change has not been taken up yet: `windlass status` shows what does not run"
	case progressing.GetStatus() == False && progressing.GetReason() == supervision.Updated && same:
		return Rollout{Ready: true}
	default:
		s.Failed, s.Observed = progressing.GetStatus() == False, progressing.GetMessage()
	}
	return s
}

// onDelete is the update strategy of workloads whose pods are renewed when people delete them.
const onDelete = "OnDelete"

type rolled struct {
	seen                            bool // the status speaks of the present generation
	want, updated, available, total int32
	kept                            int32 // pods that are to stay as they are
	manual                          bool  // pods are renewed when people delete them, so that no new ones are waited for
	paused                          bool
	stuck                           *metav1.Condition
}

func statefulSet(w *schedulingv1.StatefulSet) Rollout {
	want := int32(1) // what a stateful set without a number has
	if w.GetSpec() != nil && w.GetSpec().Replicas != nil {
		want = w.GetSpec().GetReplicas()
	}
	strategy, st := w.GetSpec().GetUpdateStrategy().GetFields(), w.GetStatus()
	partition := strategy["rollingUpdate"].GetStructValue().GetFields()["partition"].GetNumberValue()
	return pods(rolled{
		seen: st.GetObservedGeneration() >= w.GetMetadata().GetGeneration(),
		want: want, updated: st.GetUpdatedReplicas(), available: st.GetAvailableReplicas(), total: st.GetReplicas(),
		kept: min(int32(partition)-w.GetSpec().GetOrdinals().GetStart(), want), manual: strategy["type"].GetStringValue() ==
			onDelete,
	})
}

func pods(r rolled) Rollout {
	s := Rollout{
		Reason: "WorkloadNotAvailable", Fact: "all pods are of the new template and available",
		Observed: fmt.Sprintf("%d of %d pods updated, %d available", r.updated, r.want, r.available),
	}
	if r.paused {
		s.Observed += ": it is paused"
	}
	switch {
	case !r.seen:
		s.Observed = "the change has not been taken up yet"
	case (r.manual || r.updated >= r.want-max(r.kept, 0)) && r.available >= r.want && r.total <= r.want:
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
		s.Failed, s.Reason, s.Observed = true, "WorkloadNotProgressing", "the job failed: "+failed.GetMessage()+
			"; once it is deleted, it runs again"
	default:
		s.Observed = fmt.Sprintf("%d pods active, %d succeeded, %d failed", st.GetActive(), st.GetSucceeded(), st.GetFailed())
	}
	return s
}

// ControlPlane says how far the nodes of the control plane have come. rendered is the name of what their machine
// configurations make together now; failure is why nothing could be made of them.
func ControlPlane(pool *configv1.MachineConfigPool, rendered, failure string) Rollout {
	st := pool.GetStatus()
	updated := object.FindCondition(st.GetConditions(), "Updated")
	s := Rollout{
		Reason: "ControlPlaneNotUpdated", Fact: "all nodes of the control plane have the configuration of the release",
		Observed: updated.GetMessage(),
	}
	target := pool.GetSpec().GetConfiguration().GetName()
	switch degraded := object.FindCondition(st.GetConditions(), "Degraded"); {
	case failure != "":
		s.Failed, s.Reason, s.Observed = true, "ControlPlaneDegraded", failure
	case pool.GetSpec().GetPin() != nil && pool.GetSpec().GetPin().GetConfiguration() != rendered:
		pin := pool.GetSpec().GetPin()
		s.Observed = "the pool " + pool.GetMetadata().GetName() + " is held at " + pin.GetConfiguration() + " by " +
			pin.GetBy() + " and does not get the configuration " + rendered
	case target != rendered:
		s.Observed = "the pool " + pool.GetMetadata().GetName() + " has not taken up the configuration " + rendered + " yet"
		if paused := object.FindCondition(st.GetConditions(), "Paused"); paused != nil {
			s.Observed += ": " + paused.GetMessage()
		} else if pool.GetSpec().GetPaused() {
			s.Observed += ": it is paused"
		}
	case st.GetObservedGeneration() < pool.GetMetadata().GetGeneration():
		s.Observed = "the change has not been taken up yet"
	case updated.GetStatus() == True && st.GetConfiguration().GetName() == target:
		return Rollout{Ready: true}
	case degraded.GetStatus() == True:
		s.Reason, s.Observed = "ControlPlaneDegraded", degraded.GetMessage()
	}
	return s
}
