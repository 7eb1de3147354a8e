package apply

import (
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/release"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestAManifestHasAValidNameOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range []release.Manifest{
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "b-c"},
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: "a-b", Name: "c"},
		{APIVersion: "v1", Kind: "ConfigMap", Name: "a-b-c"},
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:foo:Bar"},
		{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system-foo-bar"},
		{APIVersion: "x/v1", Kind: "Long", Name: strings.Repeat("n.", 200)},
		{APIVersion: "x/v1", Kind: "Odd", Name: "ÄÖÜ"},
	} {
		name := name(m)
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 || seen[name] {
			t.Errorf("name of %s %q is %q: %v", m.Kind, m.Name, name, wrong)
		}
		seen[name] = true
	}
}

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
			if s := rolloutOf(test.object); s.Ready != test.ready || s.Failed != test.failed ||
				!strings.Contains(s.Observed, test.observed) {
				t.Errorf("state is %+v", s)
			}
		})
	}
}

func TestWhatIsMadeForTheFirstTimeIsNotWaitedFor(t *testing.T) {
	if Waits(deployment(1, 1, nil)) || !Waits(deployment(2, 1, nil)) || !Waits(&schedulingv1.Job{}) ||
		Waits(&schedulingv1.Service{}) || Waits(nil) {
		t.Error("waits for the wrong objects")
	}
}

func TestEveryOwnedKindIsFound(t *testing.T) {
	owners := Owners{}
	for pkg := range Packages() {
		owners[pkg] = nil
	}
	a, err := New(nil, owners)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][2]string{
		{"v1", "Namespace"},
		{"apps/v1", "Deployment"},
		{"batch/v1", "Job"},
		{"policy/v1", "PodDisruptionBudget"},
		{"machineconfiguration.openshift.io/v1", "MachineConfig"},
		{"machine.openshift.io/v1beta1", "MachineSet"},
	} {
		if a.kinds[want] == nil {
			t.Errorf("%v has no owner", want)
		}
	}
	if a.kinds[[2]string{"v1", "ConfigMap"}] != nil ||
		a.kinds[[2]string{"config.openshift.io/v1", "ClusterVersion"}] != nil {
		t.Error("a kind without an owner has one")
	}
}
