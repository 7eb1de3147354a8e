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
	"pgregory.net/rapid"
)

// newControlPlaneSet returns an active set of three replicas in the domains a, b and c.
func newControlPlaneSet(change ...func(*machinev1.ControlPlaneMachineSet)) *machinev1.ControlPlaneMachineSet {
	s := &machinev1.ControlPlaneMachineSet{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "cluster", Uid: "uid-cpms", Generation: 1},
		Spec: &machinev1.ControlPlaneMachineSetSpec{
			State: "Active", Replicas: proto.Int32(3), Strategy: &machinev1.ControlPlaneMachineSetStrategy{
				Type: "RollingUpdate",
			},
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{LabelRole: RoleMaster}},
			Template: &machinev1.ControlPlaneMachineSetTemplate{
				MachinesV1Beta1MachineOpenshiftIo: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
					FailureDomains: zones("a", "b", "c"),
					Metadata:       &metav1.ObjectMeta{Labels: map[string]string{LabelRole: RoleMaster, LabelType: RoleMaster}},
					Spec:           &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("")}},
				},
			},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func zones(names ...string) *structpb.Struct {
	list := &structpb.ListValue{}
	for _, z := range names {
		list.Values = append(list.Values,
			structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"zone": structpb.NewStringValue(z)}}))
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"platform": structpb.NewStringValue("Local"),
		"local":    structpb.NewListValue(list),
	}}
}

func onDelete(s *machinev1.ControlPlaneMachineSet) { s.Spec.Strategy.Type = "OnDelete" }

// master returns a running control-plane machine; its name ends in its index.
func master(name, zone string, change ...func(*machinev1.Machine)) *machinev1.Machine {
	m := worker(name, 24*time.Hour)
	m.Metadata.Labels = map[string]string{LabelRole: RoleMaster, LabelType: RoleMaster}
	m.Metadata.OwnerReferences = []*metav1.OwnerReference{
		{
			ApiVersion: "machine.openshift.io/v1", Kind: "ControlPlaneMachineSet", Name: "cluster", Uid: "uid-cpms",
			Controller: proto.Bool(true),
		},
	}
	m.Spec.ProviderId, m.Spec.ProviderSpec = "local://c/"+name, &machinev1.ProviderSpec{Value: settings(zone)}
	for _, f := range change {
		f(m)
	}
	return m
}

func outdated(m *machinev1.Machine) {
	m.Spec.ProviderSpec.Value.Fields["instanceType"] = structpb.NewStringValue("old")
}

func fresh(m *machinev1.Machine) {
	m.Metadata.CreationTimestamp = seconds(noon().Add(-10 * time.Second))
}

func joining(m *machinev1.Machine) {
	fresh(m)
	m.Status.NodeRef, m.Status.Phase = nil, proto.String(PhaseProvisioned)
}

func broken(m *machinev1.Machine) {
	joining(m)
	m.Status.Phase, m.Status.ErrorMessage = proto.String(PhaseFailed), proto.String("x")
}

func going(m *machinev1.Machine) {
	deleted(m)
	m.Status.Phase = proto.String(PhaseDeleting)
}

// masterNodes returns a ready control-plane node for each machine that has one, silent ones excepted.
func masterNodes(machines []*machinev1.Machine, silent ...string) map[string]*nodev1.Node {
	out := nodesOf(machines...)
	for name, n := range out {
		n.Metadata.Labels = map[string]string{nodeLabelMaster: ""}
		if slices.Contains(silent, name) {
			n.Status.Conditions[0].Status = "Unknown"
		}
	}
	return out
}

// said is what a plan does, in short.
type said struct {
	Create, Delete, Adopt []string
	Held                  int
	Degraded              string
}

func inShort(p ControlPlanePlan) said {
	s := said{Held: len(p.Held)}
	for _, c := range p.Create {
		s.Create = append(s.Create,
			fmt.Sprintf("%d in %s", c.Index,
				c.Machine.GetSpec().GetProviderSpec().GetValue().GetFields()["zone"].GetStringValue()))
	}
	for _, d := range p.Delete {
		s.Delete = append(s.Delete, d.Machine.GetMetadata().GetName())
	}
	for _, m := range p.Adopt {
		s.Adopt = append(s.Adopt, m.GetMetadata().GetName())
	}
	if c := object.FindCondition(p.Status.GetConditions(), Degraded); c.GetStatus() == "True" {
		s.Degraded = c.GetReason()
	}
	return s
}

func TestControlPlane(t *testing.T) {
	m0, m1, m2 := master("m-0", "a"), master("m-1", "b"), master("m-2", "c")
	list := func(m ...*machinev1.Machine) []*machinev1.Machine { return m }
	for name, tt := range map[string]struct {
		set      *machinev1.ControlPlaneMachineSet
		machines []*machinev1.Machine
		silent   []string
		want     said
	}{
		"a new control plane is made at once": {
			newControlPlaneSet(), nil, nil,
			said{Create: []string{"0 in a", "1 in b", "2 in c"}},
		},
		"one that is half made is completed": {
			newControlPlaneSet(), list(master("m-1", "b", joining)), nil,
			said{Create: []string{"0 in a", "2 in c"}},
		},
		"nothing to do": {newControlPlaneSet(), list(m0, m1, m2), nil, said{}},
		"inactive does nothing": {
			newControlPlaneSet(func(s *machinev1.ControlPlaneMachineSet) { s.Spec.State = "Inactive" }), list(m0, m1), nil,
			said{},
		},
		"a missing machine is made where it was": {
			newControlPlaneSet(), list(m0, m2), nil,
			said{Create: []string{"1 in b"}},
		},
		"a machine without owner is adopted": {
			newControlPlaneSet(), list(m0, m1, master("m-2", "c", unowned)),
			nil,
			said{Adopt: []string{"m-2"}},
		},
		"a deleted machine gets its replacement at once": {
			newControlPlaneSet(), list(m0, master("m-1", "b", going), m2), nil,
			said{Create: []string{"1 in b"}},
		},
		"the deleted one is left to its hooks while the replacement comes": {
			newControlPlaneSet(),
			list(m0, master("m-1", "b", going), m2, master("n-1", "b", joining)), nil,
			said{},
		},
		"two deleted at once are replaced one after the other": {
			newControlPlaneSet(),
			list(m0, master("m-1", "b", going), master("m-2", "c", going)), nil,
			said{Create: []string{"1 in b"}, Held: 1},
		},
		"with OnDelete all deleted ones are replaced at once": {
			newControlPlaneSet(onDelete),
			list(m0, master("m-1", "b", going), master("m-2", "c", going)), nil,
			said{Create: []string{"1 in b", "2 in c"}},
		},
		"outdated machines are replaced one after the other": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), master("m-1", "b", outdated), m2), nil,
			said{Create: []string{"0 in a"}, Held: 1},
		},
		"a deleted one comes before an outdated one": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, master("m-2", "c", going)), nil,
			said{Create: []string{"2 in c"}, Held: 1},
		},
		"with OnDelete an outdated one waits for its deletion": {
			newControlPlaneSet(onDelete),
			list(master("m-0", "a", outdated), m1, m2), nil,
			said{Held: 1},
		},
		"the old one stays until the replacement has joined": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", joining)), nil,
			said{Held: 1},
		},
		"the old one stays until the replacement's node is ready": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", fresh)),
			[]string{"n-0"},
			said{Held: 1},
		},
		"the old one goes once the replacement is ready": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", fresh)), nil,
			said{Delete: []string{"m-0"}},
		},
		"an unhealthy old one also stays until the replacement is ready": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", joining)),
			[]string{"m-0"},
			said{Held: 1},
		},
		"of two good ones the older goes": {
			newControlPlaneSet(), list(m0, m1, m2, master("n-0", "a", fresh)), nil,
			said{Delete: []string{"m-0"}},
		},
		"a replacement that never joined goes when the template changes again": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", outdated, joining)), nil,
			said{Delete: []string{"n-0"}, Held: 1},
		},
		"a replacement that joined and is outdated by now takes over all the same": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", outdated, fresh)), nil,
			said{Delete: []string{"m-0"}, Held: 1},
		},
		"a failed replacement stops everything and is shown": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", broken)), nil,
			said{Held: 1, Degraded: "FailedReplacement"},
		},
		"after its deletion the roll-out continues": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2, master("n-0", "a", broken, going)), nil,
			said{Held: 1},
		},
		"without one ready machine nothing is done": {
			newControlPlaneSet(),
			list(master("m-0", "a", outdated), m1, m2),
			[]string{"m-0", "m-1", "m-2"},
			said{Held: 1, Degraded: "NoReadyMachines"},
		},
		"a machine of another owner stops everything": {
			newControlPlaneSet(),
			list(m0, m1, master("m-2", "c", func(m *machinev1.Machine) { m.Metadata.OwnerReferences[0].Uid = "other" })), nil,
			said{Held: 1, Degraded: "MachinesAlreadyOwned"},
		},
		"more indexes than replicas stop everything": {
			newControlPlaneSet(), list(m0, m1, m2, master("m-3", "a")), nil,
			said{Held: 1, Degraded: "ExcessIndexes"},
		},
		"a set without provider settings says so": {newControlPlaneSet(func(s *machinev1.ControlPlaneMachineSet) {
			s.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec = nil
		}), nil, nil, said{Held: 1, Degraded: reasonInvalidConfiguration}},
		"a set without a template says so": {
			newControlPlaneSet(func(s *machinev1.ControlPlaneMachineSet) { s.Spec.Template = nil }), nil, nil,
			said{Held: 1, Degraded: reasonInvalidConfiguration},
		},
		"a machine in a domain that vanished is moved": {
			newControlPlaneSet(), list(m0, m1, master("m-2", "z")),
			nil,
			said{Create: []string{"2 in c"}},
		},
		"a machine without an index takes the one of its domain": {
			newControlPlaneSet(), list(m0, m1, master("third", "c")),
			nil,
			said{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := masterNodes(tt.machines, tt.silent...)
			for _, n := range nodes {
				n.Status.Conditions[0].LastTransitionTime = seconds(noon().Add(-time.Hour))
			}
			p := ControlPlane(ControlPlaneView{Now: noon(), Set: tt.set, Machines: tt.machines, Nodes: nodes})
			if diff := cmp.Diff(tt.want, inShort(p)); diff != "" {
				t.Errorf("ControlPlane (-want +got):\n%s\nheld: %v", diff, p.Held)
			}
		})
	}
}

func TestANodeWithoutAMachineStopsTheControlPlane(t *testing.T) {
	machines := []*machinev1.Machine{master("m-0", "a"), master("m-1", "b"), master("m-2", "c", outdated)}
	nodes := masterNodes(machines)
	nodes["stray"] = newNode("stray", "True", noon())
	nodes["stray"].Metadata.Labels = map[string]string{nodeLabelControlPlane: ""}
	got := inShort(ControlPlane(ControlPlaneView{
		Now: noon(), Set: newControlPlaneSet(), Machines: machines,
		Nodes: nodes,
	}))
	if got.Degraded != "UnmanagedNodes" || got.Create != nil {
		t.Errorf("plan = %+v, want UnmanagedNodes and nothing done", got)
	}
}

func TestStatusOfTheControlPlane(t *testing.T) {
	machines := []*machinev1.Machine{
		master("m-0", "a"), master("m-1", "b", outdated), master("m-2", "c"),
		master("n-1", "b", joining),
	}
	nodes := masterNodes(machines, "m-2")
	nodes["m-2"].Status.Conditions[0].LastTransitionTime = seconds(noon().Add(-5 * time.Minute))
	p := ControlPlane(ControlPlaneView{Now: noon(), Set: newControlPlaneSet(), Machines: machines, Nodes: nodes})
	s := p.Status
	got := []int32{s.GetReplicas(), s.GetReadyReplicas(), s.GetUpdatedReplicas(), s.GetUnavailableReplicas()}
	if diff := cmp.Diff([]int32{4, 3, 2, 0}, got); diff != "" {
		t.Errorf("replicas, ready (a reboot is allowed for), updated, unavailable (-want +got):\n%s", diff)
	}
	for typ, want := range map[string]string{
		Available: "AllReplicasAvailable", Degraded: "AsExpected",
		Progressing: "NeedsUpdateReplicas",
	} {
		if c := object.FindCondition(s.GetConditions(), typ); c.GetReason() != want {
			t.Errorf("%s = %v, want reason %s", typ, c, want)
		}
	}
	if want := noon().Add(15 * time.Minute); !p.Wake.Equal(want) {
		t.Errorf("Wake = %v, want %v: the end of the allowance", p.Wake, want)
	}
}

// TestPromisesOfTheControlPlane drives a control plane through random worlds until nothing changes, with a user who
// deletes and changes things concurrently.
func TestPromisesOfTheControlPlane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for step := range 60 {
			p := ControlPlane(w.view())
			w.checkPlan(p)
			w.act(p)
			w.live(t, step)
		}
		w.calm()
		final := ControlPlane(w.view())
		if got := inShort(final); len(got.Create)+len(got.Delete)+len(got.Adopt) > 0 || len(w.machines) != 3 {
			t.Fatalf("it does not come to rest: %+v, held %v\n%s", got, final.Held, w)
		}
		if s := final.Status; s.GetUpdatedReplicas() != 3 || s.GetUnavailableReplicas() != 0 {
			t.Fatalf("status at rest: %v", s)
		}
	})
}

// world is a fleet in which machines come up and go, as provider and hooks let them.
type world struct {
	t        *rapid.T
	now      time.Time
	set      *machinev1.ControlPlaneMachineSet
	machines []*machinev1.Machine
	made     int
}

func newWorld(t *rapid.T) *world { return &world{t: t, now: noon(), set: newControlPlaneSet()} }

// String lists the machines, for a failure's message.
func (w *world) String() string {
	var out strings.Builder
	for _, s := range ControlPlane(w.view()).Indexes {
		fmt.Fprintf(&out, "index %d in %s:\n", s.Index, s.Domain)
		for _, m := range s.Machines {
			fmt.Fprintf(&out, "  %s %s deleting=%v %v\n", m.Metadata.Name, m.GetStatus().GetPhase(),
				m.Metadata.DeletionTimestamp != nil, m.GetSpec().GetProviderSpec().GetValue())
		}
	}
	return out.String()
}

func (w *world) view() ControlPlaneView {
	nodes := masterNodes(w.machines)
	for _, n := range nodes {
		n.Status.Conditions[0].LastTransitionTime = seconds(w.now)
	}
	return ControlPlaneView{Now: w.now, Set: w.set, Machines: w.machines, Nodes: nodes}
}

func (w *world) checkPlan(p ControlPlanePlan) {
	if after := len(w.machines) + len(p.Create); len(p.Create) > 0 && after > 3+maxSurge {
		w.t.Fatalf("%d machines at once", after)
	}
	for _, d := range p.Delete {
		if d.Machine.GetStatus().GetNodeRef() == nil {
			continue // it never took part
		}
		if !slices.ContainsFunc(w.machines, func(m *machinev1.Machine) bool {
			return m != d.Machine && controlplane.Index(m.GetMetadata().GetName()) == controlplane.Index(
				d.Machine.GetMetadata().GetName()) && m.Metadata.DeletionTimestamp == nil &&
				m.GetStatus().GetPhase() == PhaseRunning
		}) {
			w.t.Fatalf("%s is deleted without a replacement that runs", d.Machine.Metadata.Name)
		}
	}
}

func (w *world) act(p ControlPlanePlan) {
	for _, d := range p.Delete {
		d.Machine.Metadata.DeletionTimestamp = seconds(w.now)
	}
	for _, c := range p.Create {
		w.made++
		m := proto.Clone(c.Machine).(*machinev1.Machine)
		m.Metadata.Name, m.Metadata.Uid = fmt.Sprintf("x%03d-%d", w.made, c.Index), fmt.Sprint(w.made)
		m.Metadata.CreationTimestamp = seconds(w.now)
		m.Status = &machinev1.MachineStatus{Phase: proto.String(PhaseProvisioning)}
		w.machines = append(w.machines, m)
	}
	slices.SortFunc(w.machines, func(a, b *machinev1.Machine) int {
		return strings.Compare(a.Metadata.Name, b.Metadata.Name)
	})
	w.now = w.now.Add(time.Second)
}

// live lets the world go on by one step.
func (w *world) live(t *rapid.T, step int) {
	switch event := rapid.IntRange(0, 9).Draw(t, "event"); {
	case event == 0 && len(w.machines) > 0 && step < 40:
		rapid.SampledFrom(w.machines).Draw(t, "deleted").Metadata.DeletionTimestamp = seconds(w.now)
	case event == 1 && step < 40:
		provider := w.set.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.Spec.ProviderSpec
		provider.Value.Fields["version"] = structpb.NewNumberValue(float64(step))
	case event == 2 && step < 40:
		w.set.Spec.Template.MachinesV1Beta1MachineOpenshiftIo.FailureDomains = zones(
			rapid.SampledFrom([][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"b", "c", "d"}}).Draw(t, "zones")...)
	case event < 7:
		w.joinOne()
	default:
		w.finishOne()
	}
}

func (w *world) joinOne() bool {
	for _, m := range w.machines {
		if m.Metadata.DeletionTimestamp == nil && m.GetStatus().GetNodeRef() == nil {
			m.Status.Phase, m.Status.NodeRef = proto.String(PhaseRunning), &metav1.ObjectReference{
				Kind: "Node", Name: m.Metadata.Name,
			}
			return true
		}
	}
	return false
}

// finishOne removes a deleted machine as the quorum hook allows: one that has a member goes only while there are more
// members than wanted.
func (w *world) finishOne() bool {
	members := 0
	for _, m := range w.machines {
		if m.GetStatus().GetNodeRef() != nil {
			members++
		}
	}
	for i, m := range w.machines {
		if m.Metadata.DeletionTimestamp != nil && (m.GetStatus().GetNodeRef() == nil || members > 3) {
			w.machines = slices.Delete(w.machines, i, i+1)
			return true
		}
	}
	return false
}

// calm lets everything come to rest.
func (w *world) calm() {
	for range 200 {
		p := ControlPlane(w.view())
		w.checkPlan(p)
		w.act(p)
		if !w.joinOne() && !w.finishOne() && len(p.Create)+len(p.Delete) == 0 {
			return
		}
	}
	w.t.Fatal("it never comes to rest")
}
