package plan_test

import (
	"strings"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

func deployment(generation, replicas int32, st *schedulingv1.DeploymentStatus) *schedulingv1.Deployment {
	return &schedulingv1.Deployment{
		Metadata: &metav1.ObjectMeta{Generation: generation}, Spec: &schedulingv1.DeploymentSpec{Replicas: &replicas},
		Status: st,
	}
}

func statefulSet(t *testing.T, replicas int32, strategy string, st *schedulingv1.StatefulSetStatus) object.Object {
	t.Helper()
	s := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(strategy), s); err != nil {
		t.Fatal(err)
	}
	return &schedulingv1.StatefulSet{
		Metadata: &metav1.ObjectMeta{Generation: 2},
		Spec:     &schedulingv1.StatefulSetSpec{Replicas: &replicas, UpdateStrategy: s},
		Status:   st,
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
		"a daemon set whose pods are renewed manually": {
			&schedulingv1.DaemonSet{
				Spec: &schedulingv1.DaemonSetSpec{UpdateStrategy: &schedulingv1.DaemonSetUpdateStrategy{Type: "OnDelete"}},
				Status: &schedulingv1.DaemonSetStatus{
					DesiredNumberScheduled: n(3), UpdatedNumberScheduled: n(1), NumberAvailable: n(3),
				},
			}, true, false, "",
		},
		"a paused deployment": {
			&schedulingv1.Deployment{
				Spec: &schedulingv1.DeploymentSpec{Paused: proto.Bool(true)},
				Status: &schedulingv1.DeploymentStatus{
					Replicas: n(1), AvailableReplicas: n(1),
				},
			}, false, false, "0 of 1 pods updated, 1 available: it is paused",
		},
		"a stateful set half way": {
			statefulSet(t, 3, `{}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(1), AvailableReplicas: n(3),
			}), false, false, "1 of 3 pods updated, 3 available",
		},
		"a stateful set that was not observed yet": {
			statefulSet(t, 3, `{}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(1), Replicas: n(3), UpdatedReplicas: n(3), AvailableReplicas: n(3),
			}), false, false, "not been taken up",
		},
		"a stateful set that is done": {
			statefulSet(t, 3, `{}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(3), AvailableReplicas: n(3),
			}), true, false, "",
		},
		"a stateful set that is done up to its partition": {
			statefulSet(t, 3, `{"rollingUpdate": {"partition": 2}}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(1), AvailableReplicas: n(3),
			}), true, false, "",
		},
		"a stateful set that is not done up to its partition": {
			statefulSet(t, 3, `{"rollingUpdate": {"partition": 1}}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(2), Replicas: n(3), UpdatedReplicas: n(1), AvailableReplicas: n(3),
			}), false, false, "1 of 3",
		},
		"a stateful set whose pods are renewed manually": {
			statefulSet(t, 3, `{"type": "OnDelete"}`, &schedulingv1.StatefulSetStatus{
				ObservedGeneration: n(2), Replicas: n(3), AvailableReplicas: n(3),
			}), true, false, "",
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

func TestAProgramIsRolledOutWhenItRunsFromItsImage(t *testing.T) {
	const image, before = "windlass@sha256:aa", "windlass@sha256:bb"
	program := func(image, version string, generation int32, progressing, reason string) *programv1.Program {
		return &programv1.Program{
			Metadata: &metav1.ObjectMeta{Name: "scheduler", Generation: 2},
			Spec:     &programv1.ProgramSpec{Image: "windlass@sha256:aa", Version: "0.2.0"},
			Status: &programv1.ProgramStatus{
				ObservedGeneration: proto.Int32(generation), Image: image, Version: version,
				Conditions: []*metav1.Condition{
					{
						Type: "Progressing", Status: progressing, Reason: &reason,
						Message: proto.String("as the supervisor says"),
					},
				},
			},
		}
	}
	for name, test := range map[string]struct {
		program       *programv1.Program
		ready, failed bool
		observed      string
	}{
		"the supervisor has not seen it": {
			program(image, "0.2.0", 1, "False", "Updated"), false, false,
			"not been taken up",
		},
		"it runs from the image": {program(image, "0.2.0", 2, "False", "Updated"), true, false, ""},
		"it is on trial": {
			program(image, "0.2.0", 2, "True", "Starting"), false, false,
			"as the supervisor says",
		},
		"it is taken back, and its process still runs from the image": {
			program(image, "0.2.0", 2, "False", "RolledBack"), false, true,
			"as the supervisor says",
		},
		"it was taken back": {
			program(before, "0.1.0", 2, "False", "RolledBack"), false, true,
			"as the supervisor says",
		},
		"the image is of another version": {
			program(image, "0.1.0", 2, "False", "CannotRun"), false, true,
			"as the supervisor says",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if s := plan.RolloutOf(test.program); s.Ready != test.ready || s.Failed != test.failed ||
				!strings.Contains(s.Observed, test.observed) {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

func TestWhatIsMadeForTheFirstTimeIsNotWaitedFor(t *testing.T) {
	if !plan.RollsOut(&programv1.Program{}, true) || plan.RollsOut(&programv1.Program{}, false) {
		t.Error("programs are waited for where no supervisor restarts them, or not where one does")
	}
	if plan.RollsOut(deployment(1, 1, nil), true) || !plan.RollsOut(deployment(2, 1, nil), true) ||
		!plan.RollsOut(&schedulingv1.Job{}, false) ||
		plan.RollsOut(&schedulingv1.Service{}, true) || plan.RollsOut(nil, true) {
		t.Error("waits for the wrong objects")
	}
}

func TestTheControlPlaneIsUpdatedWhenItsPoolIsAtWhatItsConfigurationsMakeNow(t *testing.T) {
	pool := func(change func(*configv1.MachineConfigPool)) *configv1.MachineConfigPool {
		p := &configv1.MachineConfigPool{
			Metadata: &metav1.ObjectMeta{Name: "master", Generation: 3},
			Spec:     &configv1.MachineConfigPoolSpec{Configuration: &configv1.MachineConfigPoolConfiguration{Name: "new"}},
			Status: &configv1.MachineConfigPoolStatus{
				ObservedGeneration: proto.Int32(3), Configuration: &configv1.MachineConfigPoolConfiguration{Name: "new"},
				Conditions: []*metav1.Condition{{Type: "Updated", Status: "True"}},
			},
		}
		change(p)
		return p
	}
	conditions := func(list ...*metav1.Condition) func(*configv1.MachineConfigPool) {
		return func(p *configv1.MachineConfigPool) { p.Status.Conditions = list }
	}
	says := func(typ, status, message string) *metav1.Condition {
		return &metav1.Condition{Type: typ, Status: status, Message: &message}
	}
	for name, test := range map[string]struct {
		change            func(*configv1.MachineConfigPool)
		rendered, failure string
		ready, failed     bool
		reason, observed  string
	}{
		"it is there": {change: func(*configv1.MachineConfigPool) {}, rendered: "new", ready: true},
		"the pool has not taken up what a release brought": {
			change: func(*configv1.MachineConfigPool) {}, rendered: "newer",
			reason: "ControlPlaneNotUpdated", observed: "the pool master has not taken up the configuration newer yet",
		},
		"the pool is paused": {
			change: func(p *configv1.MachineConfigPool) { p.Spec.Paused = proto.Bool(true) }, rendered: "newer",
			reason: "ControlPlaneNotUpdated", observed: "it is paused",
		},
		"the pool is paused with a reason": {
			change: conditions(says("Paused", "True", "pool master is paused by alice until resumed: fair")), rendered: "newer",
			reason: "ControlPlaneNotUpdated", observed: "pool master is paused by alice until resumed: fair",
		},
		"the pool is to be held at another, and is not yet": {
			change: func(p *configv1.MachineConfigPool) {
				p.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: "old", By: "admin"}
			}, rendered: "new",
			reason:   "ControlPlaneNotUpdated",
			observed: "the pool master is held at old by admin and does not get the configuration new",
		},
		"the pool is held at what is wanted": {
			change: func(p *configv1.MachineConfigPool) {
				p.Spec.Pin = &configv1.MachineConfigPoolPin{Configuration: "new", By: "admin"}
			}, rendered: "new", ready: true,
		},
		"a change that its owner has not seen": {
			change: func(p *configv1.MachineConfigPool) { p.Metadata.Generation = 4 }, rendered: "new",
			reason: "ControlPlaneNotUpdated", observed: "not been taken up",
		},
		"nodes on their way": {
			change: conditions(says("Updated", "False", "1 of 3 nodes")), rendered: "new",
			reason: "ControlPlaneNotUpdated", observed: "1 of 3 nodes",
		},
		"a status about the configuration before": {
			change: func(p *configv1.MachineConfigPool) { p.Status.Configuration.Name = "old" }, rendered: "new",
			reason: "ControlPlaneNotUpdated",
		},
		"a degraded node": {
			change:   conditions(says("Updated", "False", "1 of 3 nodes"), says("Degraded", "True", "node a: disk is full")),
			rendered: "new", reason: "ControlPlaneDegraded", observed: "node a: disk is full",
		},
		"nothing can be made of the configurations": {
			change: func(*configv1.MachineConfigPool) {}, failure: "two files at one path", failed: true,
			reason: "ControlPlaneDegraded", observed: "two files at one path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := plan.ControlPlane(pool(test.change), test.rendered, test.failure)
			if r.Ready != test.ready || r.Failed != test.failed || !test.ready && r.Reason != test.reason ||
				!strings.Contains(r.Observed, test.observed) {
				t.Errorf("got %+v", r)
			}
		})
	}
}
