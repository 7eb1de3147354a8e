package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func newSet(replicas int32, change ...func(*machinev1.MachineSet)) *machinev1.MachineSet {
	s := &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Namespace: "openshift-machine-api", Name: "workers", Uid: "uid-set", Generation: 3},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(replicas), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"set": "workers"}},
			Template: &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: map[string]string{"set": "workers"}},
				Spec:     &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}},
			},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// worker returns a machine of the set with a node; age is that of the machine.
func worker(name string, age time.Duration, change ...func(*machinev1.Machine)) *machinev1.Machine {
	m := newMachine(running)
	m.Metadata.Name, m.Metadata.Uid, m.Metadata.Labels = name, "uid-"+name, map[string]string{"set": "workers"}
	m.Metadata.CreationTimestamp = seconds(noon().Add(-age))
	m.Metadata.OwnerReferences = []*metav1.OwnerReference{{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet",
		Name: "workers", Uid: "uid-set", Controller: proto.Bool(true),
	}}
	m.Status.NodeRef.Name = name
	for _, f := range change {
		f(m)
	}
	return m
}

func annotated(m *machinev1.Machine) {
	m.Metadata.Annotations = map[string]string{AnnotationDelete: "true"}
}
func unowned(m *machinev1.Machine)    { m.Metadata.OwnerReferences = nil }
func withoutRef(m *machinev1.Machine) { m.Status.NodeRef = nil }
func errored(m *machinev1.Machine)    { m.Status.ErrorReason = proto.String("InvalidConfiguration") }

func nodesOf(machines ...*machinev1.Machine) map[string]*nodev1.Node {
	out := map[string]*nodev1.Node{}
	for _, m := range machines {
		if n := m.GetStatus().GetNodeRef().GetName(); n != "" {
			out[n] = newNode(n, "True", noon().Add(-time.Minute))
		}
	}
	return out
}

func TestScale(t *testing.T) {
	a, b, c := worker("a", 3*time.Hour), worker("b", 2*time.Hour), worker("c", time.Hour)
	policy := func(p string) func(*machinev1.MachineSet) {
		return func(s *machinev1.MachineSet) { s.Spec.DeletePolicy = p }
	}
	type want struct {
		create        int
		adopt, delete []string
	}
	for name, tt := range map[string]struct {
		set      *machinev1.MachineSet
		machines []*machinev1.Machine
		want     want
	}{
		"the whole difference is made at once": {newSet(3), []*machinev1.Machine{a}, want{create: 2}},
		"nothing to do":                        {newSet(2), []*machinev1.Machine{a, b}, want{}},
		"a machine that is being deleted is replaced": {
			newSet(2),
			[]*machinev1.Machine{a, worker("b", 0, deleted)},
			want{create: 1},
		},
		"a machine that matches and is free is adopted": {
			newSet(2),
			[]*machinev1.Machine{a, worker("b", 0, unowned)},
			want{adopt: []string{"b"}},
		},
		"a machine of another owner does not count": {
			newSet(2),
			[]*machinev1.Machine{a, worker("b", 0, func(m *machinev1.Machine) { m.Metadata.OwnerReferences[0].Uid = "other" })},
			want{create: 1},
		},
		"an annotation alone deletes nothing": {
			newSet(3),
			[]*machinev1.Machine{a, worker("b", 0, annotated), c},
			want{},
		},
		"when the set shrinks the annotated goes first": {newSet(2), []*machinev1.Machine{
			a, worker("b", 0, annotated),
			worker("c", 0, errored),
		}, want{delete: []string{"b"}}},
		"then the failed one": {newSet(2), []*machinev1.Machine{
			a, worker("b", 0, withoutRef),
			worker("c", 0, errored),
		}, want{delete: []string{"c"}}},
		"then the one without a node": {
			newSet(2),
			[]*machinev1.Machine{a, worker("b", 0, withoutRef), c},
			want{delete: []string{"b"}},
		},
		"the newest go first where that is wanted": {
			newSet(1, policy("Newest")),
			[]*machinev1.Machine{a, b, c},
			want{delete: []string{"c", "b"}},
		},
		"the oldest go first where that is wanted": {
			newSet(1, policy("Oldest")),
			[]*machinev1.Machine{a, b, c},
			want{delete: []string{"a", "b"}},
		},
		"a set without a selector does nothing": {
			newSet(3, func(s *machinev1.MachineSet) { s.Spec.Selector = nil }),
			[]*machinev1.Machine{a},
			want{},
		},
		"a set without provider settings makes nothing": {
			newSet(3, func(s *machinev1.MachineSet) { s.Spec.Template.Spec = nil }), []*machinev1.Machine{a}, want{},
		},
		"a set that is being deleted does nothing": {
			newSet(3, func(s *machinev1.MachineSet) { s.Metadata.DeletionTimestamp = seconds(noon()) }),
			[]*machinev1.Machine{a},
			want{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Scale(SetView{Now: noon(), Set: tt.set, Machines: tt.machines, Nodes: nodesOf(a, b, c)})
			got := want{create: p.Create}
			for _, m := range p.Adopt {
				got.adopt = append(got.adopt, m.GetMetadata().GetName())
			}
			for _, d := range p.Delete {
				got.delete = append(got.delete, d.Machine.GetMetadata().GetName())
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("Scale (-want +got):\n%s", diff)
			}
		})
	}
}

// TestASetsBatches says what is done now of a difference, and that more comes at once.
func TestASetsBatches(t *testing.T) {
	var many []*machinev1.Machine
	for i := range 130 {
		many = append(many, worker(fmt.Sprintf("m%03d", i), time.Hour))
	}
	for name, tt := range map[string]struct {
		replicas                       int32
		machines                       []*machinev1.Machine
		create, createNow, del, delNow int
		again                          bool
	}{
		"50 at once":              {50, nil, 50, 50, 0, 0, false},
		"5,000 in batches":        {5000, many, 4870, 50, 0, 0, true},
		"deletions in batches":    {10, many, 0, 0, 120, 50, true},
		"the last of a shrink":    {100, many, 0, 0, 30, 30, false},
		"first adopt, then count": {1, append(slices.Clone(many[:2]), worker("x", 0, unowned)), 0, 0, 2, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := Scale(SetView{Now: noon(), Set: newSet(tt.replicas), Machines: tt.machines})
			if p.Create != tt.create || p.CreateNow != tt.createNow || len(p.Delete) != tt.del || p.DeleteNow != tt.delNow {
				t.Errorf("creates %d of %d, deletes %d of %d", p.CreateNow, p.Create, p.DeleteNow, len(p.Delete))
			}
			if again := p.Wake.Equal(noon()); again != tt.again {
				t.Errorf("Wake = %v", p.Wake)
			}
			if left := p.CreateNow < p.Create || p.DeleteNow < len(p.Delete); left != (len(p.Held) == 1) {
				t.Errorf("held: %v", p.Held)
			}
		})
	}
}

// TestWhichSetAdopts has each of several sets decide by itself about a machine that matches them all.
func TestWhichSetAdopts(t *testing.T) {
	set := func(name string, age time.Duration, change ...func(*machinev1.MachineSet)) *machinev1.MachineSet {
		s := newSet(0, change...)
		s.Metadata.Name, s.Metadata.Uid = name, "uid-"+name
		s.Metadata.CreationTimestamp = seconds(noon().Add(-age))
		return s
	}
	paused := func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = "ClusterAPI" }
	goes := func(s *machinev1.MachineSet) { s.Metadata.DeletionTimestamp = seconds(noon()) }
	masters := func(s *machinev1.MachineSet) { s.Spec.Template.Metadata.Labels[LabelRole] = RoleMaster }
	for name, tt := range map[string]struct {
		sets []*machinev1.MachineSet
		want []string
	}{
		"the oldest":                   {[]*machinev1.MachineSet{set("a", 1), set("b", time.Hour)}, []string{"b"}},
		"of two of one age, the first": {[]*machinev1.MachineSet{set("b", 1), set("a", 1)}, []string{"a"}},
		"not one that is paused": {
			[]*machinev1.MachineSet{set("a", 1), set("b", time.Hour, paused)},
			[]string{"a"},
		},
		"not one that is deleted": {
			[]*machinev1.MachineSet{set("a", 1), set("b", time.Hour, goes)},
			[]string{"a"},
		},
		"not one whose machines are masters": {
			[]*machinev1.MachineSet{set("a", 1), set("b", time.Hour, masters)},
			[]string{"a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range tt.sets {
				p := Scale(SetView{Now: noon(), Set: s, Sets: tt.sets, Machines: []*machinev1.Machine{worker("m", 0, unowned)}})
				if len(p.Adopt) > 0 {
					got = append(got, s.Metadata.Name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("adopted by (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPausedSetSaysSoOnce(t *testing.T) {
	s := newSet(3, func(s *machinev1.MachineSet) { s.Spec.AuthoritativeApi = "ClusterAPI" })
	p := Scale(SetView{Now: noon(), Set: s, Machines: []*machinev1.Machine{worker("m", 0, unowned)}})
	if p.Create != 0 || len(p.Adopt) != 0 || len(p.Held) != 1 || len(p.Events) != 1 || p.Events[0].Reason != "Paused" {
		t.Errorf("plan = %+v", p)
	}
	s.Status = p.Status
	if p := Scale(SetView{Now: noon(), Set: s}); len(p.Events) != 0 || !proto.Equal(p.Status.Conditions[0],
		s.Status.Conditions[0]) {
		t.Errorf("events %v, conditions %v", p.Events, p.Status.Conditions)
	}
	s.Spec.AuthoritativeApi = "MachineAPI"
	if p := Scale(SetView{Now: noon(), Set: s}); len(p.Status.Conditions) != 0 || p.Events[0].Reason != "Resumed" {
		t.Errorf("events %v, conditions %v", p.Events, p.Status.Conditions)
	}
}

func TestStatusOfASet(t *testing.T) {
	a, b := worker("a", time.Hour), worker("b", time.Hour)
	set := newSet(2, func(s *machinev1.MachineSet) { s.Spec.MinReadySeconds = proto.Int32(30) })
	nodes := nodesOf(a, b)
	nodes["b"] = newNode("b", "True", noon().Add(-10*time.Second))
	p := Scale(SetView{Now: noon(), Set: set, Machines: []*machinev1.Machine{a, b}, Nodes: nodes})
	s := p.Status
	if s.GetReplicas() != 2 || s.GetReadyReplicas() != 2 || s.GetAvailableReplicas() != 1 ||
		s.GetFullyLabeledReplicas() != 2 || s.GetObservedGeneration() != 3 || s.GetLabelSelector() != "set=workers" {
		t.Errorf("status = %v", s)
	}
	if want := noon().Add(20 * time.Second); !p.Wake.Equal(want) {
		t.Errorf("Wake = %v, want %v", p.Wake, want)
	}
}

func TestASetThatCannotWorkSaysWhy(t *testing.T) {
	p := Scale(SetView{
		Now: noon(), Set: newSet(1, func(s *machinev1.MachineSet) { s.Spec.Selector, s.Spec.Template = nil, nil }),
	})
	if p.Status.GetErrorReason() != reasonInvalidConfiguration || p.Status.GetErrorMessage() == "" || len(p.Held) != 1 {
		t.Errorf("status = %v, held = %v, want the reason", p.Status, p.Held)
	}
}

func TestPromisesOfASetsPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := SetView{Now: noon(), Set: newSet(int32(rapid.IntRange(0, 6).Draw(t, "replicas")))}
		v.Set.Spec.DeletePolicy = rapid.SampledFrom([]string{"", "Random", "Newest", "Oldest"}).Draw(t, "policy")
		alive, marked := 0, 0
		for i := range rapid.IntRange(0, 8).Draw(t, "machines") {
			m := worker(fmt.Sprintf("m%d", i), time.Duration(rapid.IntRange(0, 1000).Draw(t, "age"))*time.Hour)
			for name, f := range map[string]func(*machinev1.Machine){
				"deleted": deleted, "annotated": annotated,
				"unowned": unowned, "without node": withoutRef, "errored": errored,
			} {
				if rapid.IntRange(0, 3).Draw(t, name) == 0 {
					f(m)
				}
			}
			if m.Metadata.DeletionTimestamp == nil {
				alive++
				if isAnnotated(m) {
					marked++
				}
			}
			v.Machines = append(v.Machines, m)
		}
		v.Nodes = nodesOf(v.Machines...)
		p := Scale(v)
		want := int(v.Set.GetSpec().GetReplicas())
		if p.Create != max(0, want-alive) || len(p.Delete) != max(0, alive-want) {
			t.Fatalf("%d alive, %d wanted: creates %d and deletes %d", alive, want, p.Create, len(p.Delete))
		}
		gone := 0
		for _, d := range p.Delete {
			if d.Machine.Metadata.DeletionTimestamp != nil {
				t.Fatal("a machine that goes already counts as a deletion")
			}
			if isAnnotated(d.Machine) {
				gone++
			}
		}
		if gone < min(marked, len(p.Delete)) && !slices.Contains([]string{"Newest", "Oldest"}, v.Set.Spec.DeletePolicy) {
			t.Fatalf("%d annotated, %d deletions, but only %d of them annotated", marked, len(p.Delete), gone)
		}
	})
}
