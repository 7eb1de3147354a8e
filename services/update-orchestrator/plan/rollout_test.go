package plan_test

import (
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func deployment(generation, replicas int32, st *schedulingv1.DeploymentStatus) *schedulingv1.Deployment {
	return &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Generation: generation}, Spec: &schedulingv1.DeploymentSpec{Replicas: &replicas},
		Status: st,
	}
}

func TestAWorkloadIsRolledOutWhenAllPodsAreNewAndAvailable(t *testing.T) {
	n := proto.Int32
	for name, test := range map[string]struct {
		object        object.Object
		ready, failed bool
		observed      string
	}{
		"a deployment that was not observed yet": {
			deployment(2, 1, &schedulingv1.DeploymentStatus{
				ObservedGeneration: n(1), Replicas: n(1), UpdatedReplicas: n(1),
				AvailableReplicas: n(1),
			}), false, false, "not been taken up",
		},
		"a deployment half way": {
			deployment(2, 2, &schedulingv1.DeploymentStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(1),
				AvailableReplicas: n(2),
			}), false, false, "1 of 2 pods updated, 2 available",
		},
		"a deployment with old pods left": {
			deployment(2, 2, &schedulingv1.DeploymentStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(2),
				AvailableReplicas: n(3),
			}), false, false, "2 of 2",
		},
		"a deployment that is done": {
			deployment(2, 2, &schedulingv1.DeploymentStatus{
				ObservedGeneration: n(2), Replicas: n(2), UpdatedReplicas: n(2),
				AvailableReplicas: n(2),
			}), true, false, "",
		},
		"a deployment that wants no pods": {
			deployment(2, 0, &schedulingv1.DeploymentStatus{ObservedGeneration: n(2)}),
			true, false, "",
		},
		"a deployment without progress": {deployment(2, 1, &schedulingv1.DeploymentStatus{
			ObservedGeneration: n(2), Conditions: []*metav1.Condition{
				{Type: "Progressing", Status: "False", Message: proto.String("too late")},
			},
		}), false, true, "too late"},
		"a daemon set half way": {
			&schedulingv1.DaemonSet{Status: &schedulingv1.DaemonSetStatus{
				DesiredNumberScheduled: n(3),
				UpdatedNumberScheduled: n(3), NumberAvailable: n(2),
			}}, false, false, "2 available",
		},
		"a daemon set without nodes": {&schedulingv1.DaemonSet{Status: &schedulingv1.DaemonSetStatus{}}, true, false, ""},
		"a job at work": {
			&schedulingv1.Job{Status: &schedulingv1.JobStatus{Active: n(1)}}, false, false,
			"1 pods active",
		},
		"a job that failed": {
			&schedulingv1.Job{
				Status: &schedulingv1.JobStatus{
					Conditions: []*metav1.Condition{{Type: "Failed", Status: "True", Message: proto.String("no luck")}},
				},
			}, false, true, "no luck",
		},
		"a job that is complete": {
			&schedulingv1.Job{
				Status: &schedulingv1.JobStatus{Conditions: []*metav1.Condition{{Type: "Complete", Status: "True"}}},
			}, true, false, "",
		},
		"anything else": {&schedulingv1.Service{}, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if s := plan.RolloutOf(test.object); s.Ready != test.ready || s.Failed != test.failed ||
				!strings.Contains(s.Observed, test.observed) {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

func TestWhatIsMadeForTheFirstTimeIsNotWaitedFor(t *testing.T) {
	if plan.RollsOut(deployment(1, 1, nil)) || !plan.RollsOut(deployment(2, 1, nil)) ||
		!plan.RollsOut(&schedulingv1.Job{}) ||
		plan.RollsOut(&schedulingv1.Service{}) || plan.RollsOut(nil) {
		t.Error("waits for the wrong objects")
	}
}
