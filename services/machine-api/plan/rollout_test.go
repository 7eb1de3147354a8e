package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/controlplane"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func controlTemplate(s *machinev1.ControlPlaneMachineSet) *machinev1.OpenShiftMachineV1Beta1MachineTemplate {
	return s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo
}

func inactive(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = "Inactive" }

func TestWhatIsLeftToDo(t *testing.T) {
	m0, m1, m2 := master("m-0", "a"), master("m-1", "b"), master("m-2", "c")
	failed := func(m *machinev1.Machine) {
		m.Status.Phase, m.Status.ErrorMessage = proto.String(PhaseFailed), proto.String("x")
	}
	for name, tt := range map[string]struct {
		set      *machinev1.ControlPlaneMachineSet
		machines []*machinev1.Machine
		silent   []string
		want     string
	}{
		"all as requested": {newControlPlaneSet(), []*machinev1.Machine{m0, m1, m2}, nil, "False AllReplicasUpdated "},
		"a failed machine that is up to date": {
			newControlPlaneSet(),
			[]*machinev1.Machine{m0, master("m-1", "b", failed), m2},
			nil,
			"True FailedReplicas 1 up-to-date replica(s) failed permanently: m-1: x; delete the machine to have it replaced",
		},
		"a machine whose node is not ready": {
			newControlPlaneSet(),
			[]*machinev1.Machine{m0, m1, m2},
			[]string{"m-1"},
			"True UnreadyReplicas Waiting for 1 up-to-date replica(s) to become ready: m-1: its node is not ready since " +
				"11:00:00 UTC; if that does not happen, delete the machine to have it replaced",
		},
		"a machine that joins": {
			newControlPlaneSet(),
			[]*machinev1.Machine{m0, m1, master("m-2", "c", joining)},
			nil,
			"True UnreadyReplicas Waiting for 1 up-to-date replica(s) to become ready: m-2: it is Provisioned; if that does " +
				"not happen, delete the machine to have it replaced",
		},
		"a deleted machine that has no replacement": {
			newControlPlaneSet(),
			[]*machinev1.Machine{m0, m1, master("m-2", "c", going)},
			nil,
			"True NeedsUpdateReplicas Observed 1 missing replica(s)",
		},
		"old machines that are about to go": {
			newControlPlaneSet(),
			[]*machinev1.Machine{master("m-0", "a", outdated), m1, m2, master("n-0", "a", fresh)},
			nil,
			"True ExcessReplicas Waiting for 1 old replica(s) to be removed",
		},
		"old machines that go": {
			newControlPlaneSet(),
			[]*machinev1.Machine{master("m-0", "a", outdated, going), m1, m2, master("n-0", "a", fresh)},
			nil, "True ExcessReplicas Waiting for 1 old replica(s) to be removed",
		},
		"an Inactive set does nothing, whatever is left to do": {
			newControlPlaneSet(inactive),
			[]*machinev1.Machine{master("m-0", "a", outdated), m1},
			nil,
			"False Inactive spec.state is not Active: nothing is done; once it is Active: 1 replica(s) missing, 1 replica(s) in " +
				"need of update",
		},
		"an Inactive set whose machines are as requested": {
			newControlPlaneSet(inactive),
			[]*machinev1.Machine{m0, m1, m2},
			nil,
			"False Inactive spec.state is not Active: nothing is done",
		},
		"with OnDelete an outdated machine waits for a user": {
			newControlPlaneSet(onDelete),
			[]*machinev1.Machine{master("m-0", "a", outdated), m1, m2},
			nil,
			"True NeedsUpdateReplicas Observed 1 replica(s) in need of update; the strategy is OnDelete: delete the machine " +
				"to have it replaced",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := masterNodes(tt.machines, tt.silent...)
			for _, n := range nodes {
				n.Status.Conditions[0].LastTransitionTime = seconds(noon().Add(-time.Hour))
			}
			p := ControlPlane(ControlPlaneView{Now: noon(), Set: tt.set, Machines: tt.machines, Nodes: nodes})
			c := object.FindCondition(p.Status.Conditions, Progressing)
			got := fmt.Sprintf("%s %s %s", c.GetStatus(), c.GetReason(), c.GetMessage())
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Progressing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheIndexesWithTooManyMachinesAreNamed(t *testing.T) {
	machines := []*machinev1.Machine{
		master("m-0", "a"), master("m-1", "b"), master("m-2", "c"), master("n-1", "b"), master("n-2", "c"),
		master("o-2", "c"),
	}
	p := ControlPlane(ControlPlaneView{
		Now: noon(), Set: newControlPlaneSet(onDelete), Machines: machines, Nodes: masterNodes(machines),
	})
	want := "Observed 1 updated machine(s) in excess for index 1, 2 updated machine(s) in excess for index 2"
	if c := object.FindCondition(p.Status.Conditions, Degraded); c.GetReason() != "ExcessUpdatedReplicas" ||
		c.GetMessage() != want || p.Reason != c.GetReason() || p.Fault != want || len(p.Events) != 1 {
		t.Errorf("Degraded = %v, events = %v", c, p.Events)
	}
}

// Labels, taints and hooks of the template apply to new machines only: the status names them until a restart rolls all.
func TestChangesForNewMachinesOnly(t *testing.T) {
	machines := []*machinev1.Machine{master("m-0", "a"), master("m-1", "b"), master("m-2", "c")}
	set := newControlPlaneSet()
	plan := func() ControlPlanePlan {
		return ControlPlane(ControlPlaneView{Now: noon(), Set: set, Machines: machines, Nodes: masterNodes(machines)})
	}
	spec := controlTemplate(set).Spec
	spec.Taints = []*nodev1.Taint{{Key: "k", Effect: "NoSchedule"}}
	spec.LifecycleHooks = &machinev1.LifecycleHooks{PreDrain: []*machinev1.LifecycleHook{{Name: "HookA", Owner: "o"}}}
	controlTemplate(set).Metadata.Labels["new"] = "x"
	p := plan()
	if got := inShort(p); got.Create != nil || got.Held != 0 {
		t.Errorf("plan = %+v, want nothing", got)
	}
	c := object.FindCondition(p.Status.Conditions, Progressing)
	if want := "The template's metadata.labels, spec.lifecycleHooks, spec.taints changed since m-0, m-1, m-2 were created and " +
		"apply to new machines only; windlass rollout restart controlplanemachineset cluster replaces all, one at a time"; c.
		GetMessage() != want || c.GetReason() != "AllReplicasUpdated" {
		t.Errorf("Progressing = %v", c)
	}
	if m := p.Members[0]; m.Outdated != "" || !slices.Equal(m.Changes, []string{
		"metadata.labels", "spec.taints",
		"spec.lifecycleHooks",
	}) {
		t.Errorf("member = %+v", m)
	}
	controlTemplate(set).Metadata.Annotations = map[string]string{AnnotationRestart: "2026-01-01T12:00:00Z"}
	p = plan()
	if got := inShort(p); !slices.Equal(got.Create, []string{"0 in a"}) || got.Held != 2 {
		t.Errorf("plan after the restart = %+v, want one replacement and two later", got)
	}
	if m := p.Members[2]; m.Outdated != "a restart was requested at 2026-01-01T12:00:00Z" {
		t.Errorf("member = %+v", m)
	}
	if m := p.Create[0].Machine; m.Metadata.Annotations[AnnotationRestart] == "" || m.Metadata.Labels["new"] != "x" {
		t.Errorf("the replacement is %v", m)
	}
}

func TestWhichMachinesMove(t *testing.T) {
	for name, tt := range map[string]struct {
		domains  []string
		machines []*machinev1.Machine
		want     []string
	}{
		"those in use":  {[]string{"a", "b", "c"}, nil, nil},
		"one too few":   {[]string{"a", "b"}, nil, []string{"m-2"}},
		"another":       {[]string{"a", "b", "d"}, nil, []string{"m-2"}},
		"one too many":  {[]string{"a", "b", "c", "d"}, nil, nil},
		"one that goes": {[]string{"a", "b", "d"}, []*machinev1.Machine{master("m-0", "a"), master("m-2", "c", going)}, nil},
		"a free one and two in another": {
			[]string{"a", "b", "c"},
			[]*machinev1.Machine{master("m-0", "a"), master("m-1", "a"), master("m-2", "c")},
			[]string{"m-1"},
		},
		"none, and machines in several": {nil, nil, []string{"m-0", "m-1", "m-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := newControlPlaneSet(func(s *machinev1.ControlPlaneMachineSet) {
				controlTemplate(s).FailureDomains = nil
				if tt.domains != nil {
					controlTemplate(s).FailureDomains = zones(tt.domains...)
				}
			})
			machines := tt.machines
			if machines == nil {
				machines = []*machinev1.Machine{master("m-0", "a"), master("m-1", "b"), master("m-2", "c")}
			}
			v := ControlPlaneView{Now: noon(), Set: set, Machines: machines, DomainFields: map[string]string{"zone": "zone"}}
			var got []string
			for _, m := range Moves(v) {
				got = append(got, m.Machine)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Moves (-want +got):\n%s", diff)
			}
			if bad := ActivationFaults(v); len(bad) != min(1, len(tt.want)) ||
				len(bad) > 0 && !strings.Contains(bad[0].Description, tt.want[0]+" from ") {
				t.Errorf("ActivationFaults = %v", bad)
			}
		})
	}
}

func TestAnotherPlatformStopsTheControlPlane(t *testing.T) {
	set := newControlPlaneSet(func(s *machinev1.ControlPlaneMachineSet) {
		controlTemplate(s).FailureDomains = &structpb.Struct{}
		if err := controlTemplate(s).FailureDomains.UnmarshalJSON(
			[]byte(`{"platform":"AWS","aws":[{"placement":{"availabilityZone":"z"}}]}`)); err != nil {
			t.Fatal(err)
		}
	})
	machines := []*machinev1.Machine{master("m-0", "a"), master("m-1", "b"), master("m-2", "c")}
	v := ControlPlaneView{Now: noon(), Set: set, Machines: machines, Nodes: masterNodes(machines), Platform: "Local"}
	if got := inShort(ControlPlane(v)); got.Create != nil || got.Degraded != reasonInvalidConfiguration {
		t.Errorf("plan = %+v, want nothing done", got)
	}
	v.Platform = ""
	if got := inShort(ControlPlane(v)); len(got.Create) != 1 || got.Degraded != "" {
		t.Errorf("plan of another cluster's objects = %+v, want a replacement", got)
	}
}

func TestAnIndexBeyond32BitsIsNone(t *testing.T) {
	for name, want := range map[string]int{
		"m-2147483647": 2147483647, "m-2147483648": controlplane.NoIndex, "m-4294967296": controlplane.NoIndex,
		"m-18446744073709551616": controlplane.NoIndex, "m": controlplane.NoIndex, "m-": controlplane.NoIndex,
	} {
		if got := controlplane.Index(name); got != want {
			t.Errorf("Index(%q) = %d, want %d", name, got, want)
		}
	}
}

// fleet returns a control plane of n machines with their nodes, in three domains.
func fleet(n int) ControlPlaneView {
	var machines []*machinev1.Machine
	for i := range n {
		machines = append(machines, master(fmt.Sprintf("m-%d", i), []string{"a", "b", "c"}[i%3], func(m *machinev1.Machine) {
			m.Status.NodeRef = &metav1.ObjectReference{Name: m.Metadata.Name}
		}))
	}
	slices.SortFunc(machines, func(a, b *machinev1.Machine) int {
		return strings.Compare(a.Metadata.Name, b.Metadata.Name)
	})
	return ControlPlaneView{Now: noon(), Set: newControlPlaneSet(), Machines: machines, Nodes: masterNodes(machines)}
}

// BenchmarkControlPlane is one decision about 2,000 machines, as a wrong selector may match, before their nodes are
// linked to them and after.
func BenchmarkControlPlane(b *testing.B) {
	linked, joined := fleet(2000), fleet(2000)
	for _, m := range joined.Machines {
		joined.Nodes[m.Metadata.Name].Spec.ProviderId = m.Spec.ProviderId
		m.Status.NodeRef = nil
	}
	for name, v := range map[string]ControlPlaneView{"linked": linked, "joined": joined} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ControlPlane(v)
			}
		})
	}
}

// The status also names what the template lost since a machine was created from it, and nothing that a user added to
// the machine.
func TestWhatTheTemplateLostIsNamed(t *testing.T) {
	set := newControlPlaneSet()
	template := controlTemplate(set)
	template.Metadata.Annotations = map[string]string{"team": "a"}
	template.Spec.LifecycleHooks = &machinev1.LifecycleHooks{
		PreDrain: []*machinev1.LifecycleHook{{Name: "HookA", Owner: "o"}, {Name: "HookB", Owner: "o"}},
	}
	template.Spec.Taints = []*nodev1.Taint{{Key: "k", Effect: "NoSchedule"}}
	template.Spec.Metadata = &metav1.ObjectMeta{Labels: map[string]string{"disk": "ssd"}}
	machines := []*machinev1.Machine{master("m-1", "b"), master("m-2", "c")}
	made := ControlPlane(ControlPlaneView{Now: noon(), Set: set, Machines: machines, Nodes: masterNodes(machines)}).Create
	if len(made) != 1 {
		t.Fatalf("made = %v, want one machine", made)
	}
	m := made[0].Machine
	changes := func() []string { return templateChanges(template, m) }
	if got := changes(); got != nil {
		t.Errorf("a new machine differs in %v", got)
	}
	m.Metadata.Labels["mine"], m.Metadata.Annotations["mine"], m.Spec.NodeDrainTimeout = "x", "y", "1m"
	m.Spec.Taints = append(m.Spec.Taints, &nodev1.Taint{Key: "mine", Effect: "NoSchedule"})
	if got := changes(); got != nil {
		t.Errorf("what a user added counts as a change of the template: %v", got)
	}
	old := proto.Clone(template).(*machinev1.OpenShiftMachineV1Beta1MachineTemplate)
	delete(template.Metadata.Annotations, "team")
	template.Spec.LifecycleHooks.PreDrain = template.Spec.LifecycleHooks.PreDrain[1:]
	template.Spec.Taints, template.Spec.Metadata = nil, nil
	template.Spec.NodeVolumeDetachTimeout, template.Spec.NodeTimeoutPolicy = "5m", "Proceed"
	want := []string{
		"metadata.annotations", "spec.metadata.labels", "spec.taints", "spec.lifecycleHooks", "spec.nodeVolumeDetachTimeout",
		"spec.nodeTimeoutPolicy",
	}
	if diff := cmp.Diff(want, changes()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, TemplateChanges(old, template)); diff != "" {
		t.Errorf("changes of the template (-want +got):\n%s", diff)
	}
	m.Metadata.Annotations = nil
	if diff := cmp.Diff([]string{"spec.taints", "spec.nodeVolumeDetachTimeout", "spec.nodeTimeoutPolicy"},
		changes()); diff != "" {
		t.Errorf("changes of a machine without a record (-want +got):\n%s", diff)
	}
}
