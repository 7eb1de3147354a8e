package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
)

func size(s string) *structpb.Value { return structpb.NewStringValue(s) }

func newClaim(name, class, quantity string, change ...func(*schedulingv1.PersistentVolumeClaim),
) *schedulingv1.PersistentVolumeClaim {
	resources, err := structpb.NewStruct(map[string]any{"requests": map[string]any{"storage": quantity}})
	if err != nil {
		panic(err)
	}
	c := &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{
			Namespace: "default", Name: name, Uid: "uid-" + name, Finalizers: []string{ClaimProtection},
		},
		Spec: &schedulingv1.PersistentVolumeClaimSpec{
			AccessModes: []string{readWriteOnce}, StorageClassName: &class, Resources: resources,
		},
		Status: &schedulingv1.PersistentVolumeClaimStatus{Phase: proto.String(pending)},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func newVolume(name, class, quantity string, change ...func(*schedulingv1.PersistentVolume),
) *schedulingv1.PersistentVolume {
	v := &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: name, Uid: "uid-" + name, Finalizers: []string{VolumeProtection}},
		Spec: &schedulingv1.PersistentVolumeSpec{
			AccessModes: []string{readWriteOnce}, StorageClassName: class, PersistentVolumeReclaimPolicy: Retain,
			Capacity: map[string]*structpb.Value{storage: size(quantity)},
		},
		Status: &schedulingv1.PersistentVolumeStatus{Phase: proto.String(available)},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func newClass(name, provisioner, mode string) *schedulingv1.StorageClass {
	return &schedulingv1.StorageClass{
		Metadata: &metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: mode, ReclaimPolicy: Delete,
	}
}

func reservedFor(claim, uid string) func(*schedulingv1.PersistentVolume) {
	return func(v *schedulingv1.PersistentVolume) {
		v.Spec.ClaimRef = &metav1.ObjectReference{Namespace: "default", Name: claim, Uid: uid}
	}
}

func named(volume string) func(*schedulingv1.PersistentVolumeClaim) {
	return func(c *schedulingv1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func completed(volume string) func(*schedulingv1.PersistentVolumeClaim) {
	return func(c *schedulingv1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volume
		c.Metadata.Annotations = map[string]string{bindCompleted: yes}
	}
}

func leaving[T object.Object](o T) {
	o.GetMetadata().DeletionTimestamp = &timestamppb.Timestamp{Seconds: 1}
}

func TestClaim(t *testing.T) {
	type volumes = []*schedulingv1.PersistentVolume
	modes := func(m ...string) func(*schedulingv1.PersistentVolume) {
		return func(v *schedulingv1.PersistentVolume) { v.Spec.AccessModes = m }
	}
	user := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: &schedulingv1.PodSpec{NodeName: "a", Volumes: []*schedulingv1.Volume{{
			Name: "v", PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
		}}},
	}
	local := newClass("local", LocalProvisioner, WaitForFirstConsumer)
	selected := func(c *schedulingv1.PersistentVolumeClaim) {
		c.Metadata.Annotations = map[string]string{SelectedNode: "n"}
	}
	node := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
	elsewhere := proto.CloneOf(local)
	elsewhere.AllowedTopologies = []*schedulingv1.TopologySelectorTerm{{
		MatchLabelExpressions: []*schedulingv1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"b"}}},
	}}
	for _, tt := range []struct {
		name    string
		claim   *schedulingv1.PersistentVolumeClaim
		class   *schedulingv1.StorageClass
		node    *nodev1.Node
		volumes volumes
		pods    []*schedulingv1.Pod
		want    string // the action and its object
		says    string // why it waits, or why it is lost
	}{
		{
			name: "the smallest volume that fits", claim: newClaim("c", "", "2Gi"),
			volumes: volumes{newVolume("a", "", "9Gi"), newVolume("b", "", "3Gi"), newVolume("d", "", "1Gi")}, want: "bind b",
		},
		{
			name: "of two sizes alike the first name", claim: newClaim("c", "", "1Gi"),
			volumes: volumes{newVolume("b", "", "1Gi"), newVolume("a", "", "1024Mi")}, want: "bind a",
		},
		{
			name: "fewer access modes are better than a smaller size", claim: newClaim("c", "", "1Gi"),
			volumes: volumes{
				newVolume("a", "", "1Gi", modes(readWriteOnce, "ReadOnlyMany")), newVolume("b", "", "5Gi"),
			},
			want: "bind b",
		},
		{
			name: "another class, mode and a volume of another claim", claim: newClaim("c", "", "1Gi"),
			volumes: volumes{
				newVolume("a", "fast", "1Gi"), newVolume("b", "", "1Gi", modes("ReadOnlyMany")),
				newVolume("d", "", "1Gi", reservedFor("other", "")), newVolume("e", "", "1Gi", leaving),
			},
			says: "no persistent volumes available for this claim and no storage class is set",
		},
		{
			name: "a selector", claim: newClaim("c", "", "1Gi", func(c *schedulingv1.PersistentVolumeClaim) {
				c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
			}),
			volumes: volumes{newVolume("a", "", "1Gi"), newVolume("b", "", "9Gi", func(v *schedulingv1.PersistentVolume) {
				v.Metadata.Labels = map[string]string{"tier": "gold"}
			})}, want: "bind b",
		},
		{
			name: "a volume that is reserved for the claim", claim: newClaim("c", "", "1Gi"),
			volumes: volumes{newVolume("a", "", "1Gi"), newVolume("b", "", "9Gi", reservedFor("c", ""))}, want: "bind b",
		},
		{
			name: "a volume that is reserved for an earlier claim of its name", claim: newClaim("c", "", "1Gi"),
			volumes: volumes{newVolume("b", "", "9Gi", reservedFor("c", "another"))},
			says:    "no persistent volumes available",
		},
		{
			name: "the volume that the claim names", claim: newClaim("c", "", "1Gi", named("b")),
			volumes: volumes{newVolume("a", "", "1Gi"), newVolume("b", "", "9Gi")}, want: "bind b",
		},
		{
			name: "the volume that the claim names is too small", claim: newClaim("c", "", "1Gi", named("b")),
			volumes: volumes{newVolume("b", "", "1Mi")}, says: `Cannot bind to requested volume "b"`,
		},
		{
			name: "the volume that the claim names is another's", claim: newClaim("c", "", "1Gi", named("b")),
			volumes: volumes{newVolume("b", "", "1Gi", reservedFor("d", ""))},
			says:    "already bound to a different claim",
		},
		{
			name: "the volume that the claim names does not exist", claim: newClaim("c", "", "1Gi", named("b")),
			says: `volume "b" not found`,
		},
		{
			name: "a claim that waits for a pod", claim: newClaim("c", "local", "1Gi"), class: local,
			volumes: volumes{newVolume("a", "local", "1Gi")},
			says:    "waiting for first consumer to be created before binding",
		},
		{
			name: "a node was selected", claim: newClaim("c", "local", "1Gi", selected), class: local, node: node,
			want: "create pvc-uid-c",
		},
		{
			name: "a node was selected that does not exist", claim: newClaim("c", "local", "1Gi", selected), class: local,
			says: `the selected node "n" does not exist`,
		},
		{
			name: "a node was selected that the class does not allow", claim: newClaim("c", "local", "1Gi", selected),
			class: elsewhere, node: node, says: "allows no volumes on the selected node",
		},
		{
			name: "what the built-in provisioner does not make", class: local, node: node,
			claim: newClaim("c", "local", "1Gi", selected, func(c *schedulingv1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []string{"ReadWriteMany"}
			}), says: "makes volumes with the access mode ReadWriteOnce only",
		},
		{
			name: "another program makes the volume", claim: newClaim("c", "disk", "1Gi"),
			class: newClass("disk", "example.com/disk", Immediate), want: "store example.com/disk",
			says: "waiting for a volume to be created",
		},
		{name: "no such class", claim: newClaim("c", "none", "1Gi"), says: `"none" not found`},
		{
			name: "a class whose volumes users make", claim: newClaim("c", "s", "1Gi"),
			class: newClass("s", NoProvisioner, Immediate), says: "is available for this claim",
		},
		{
			name: "its volume is gone", claim: newClaim("c", "", "1Gi", completed("b")), want: "store Lost",
			says: "Bound claim has lost its PersistentVolume",
		},
		{
			name: "its volume is another's", claim: newClaim("c", "", "1Gi", completed("b")), want: "store Lost",
			volumes: volumes{newVolume("b", "", "1Gi", reservedFor("d", "x"))}, says: "bound incorrectly",
		},
		{
			name: "a pod uses it", claim: newClaim("c", "", "1Gi", leaving), pods: []*schedulingv1.Pod{user},
			says: "pod p uses it",
		},
		{name: "no pod uses it", claim: newClaim("c", "", "1Gi", leaving), want: "release"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := Claim(ClaimView{Claim: tt.claim, Class: tt.class, Volumes: tt.volumes, Pods: tt.pods, Node: tt.node})
			got, says := "", ""
			switch {
			case p.Bind != nil:
				got = "bind " + p.Bind.Volume.GetMetadata().GetName()
			case p.Provision != nil:
				got = "create " + p.Provision.GetMetadata().GetName()
			case p.Release:
				got = "release"
			case p.Next.GetStatus().GetPhase() == lost:
				got = "store Lost"
			case p.Next != nil:
				got = "store " + p.Next.GetMetadata().GetAnnotations()[storageProvisioner]
			}
			for _, h := range p.Held {
				says += h.GetReason()
			}
			for _, e := range p.Tell {
				says += e.Message
			}
			if got != tt.want || !strings.Contains(says, tt.says) {
				t.Errorf("%q: %s; want %q: %s", got, says, tt.want, tt.says)
			}
		})
	}
}

// What is stored needs no second plan.
func TestABoundClaimIsLeftAlone(t *testing.T) {
	p := Claim(ClaimView{
		Claim: newClaim("c", "", "1Gi"), Volumes: []*schedulingv1.PersistentVolume{newVolume("a", "", "1Gi")},
	})
	if p.Bind == nil {
		t.Fatal("it is not bound")
	}
	c, v := p.Bind.Claim, p.Bind.Volume
	if c.GetStatus().GetPhase() != bound || v.GetStatus().GetPhase() != bound || v.GetSpec().GetClaimRef().GetUid() == "" {
		t.Errorf("bound they are %v and %v", c, v)
	}
	if p := Claim(ClaimView{Claim: c, Volumes: []*schedulingv1.PersistentVolume{v}}); p.Bind != nil || p.Next != nil {
		t.Errorf("it is bound again: %v", p)
	}
	if p := PersistentVolume(VolumeView{Volume: v, Claim: c}); p.Next != nil || p.Delete {
		t.Errorf("its volume changes: %v", p)
	}
}

func TestPersistentVolume(t *testing.T) {
	claim := newClaim("c", "local", "1Gi")
	local := Local(claim, newClass("local", LocalProvisioner, WaitForFirstConsumer), "n")
	local.Metadata.Finalizers = []string{VolumeProtection}
	is := Bind(claim, local)
	going := func(finalizers ...string) *schedulingv1.PersistentVolume {
		v := proto.CloneOf(is.Volume)
		leaving(v)
		v.Metadata.Finalizers = finalizers
		return v
	}
	retained := proto.CloneOf(is.Volume)
	retained.Spec.PersistentVolumeReclaimPolicy = Retain
	elsewhere := proto.CloneOf(is.Claim)
	elsewhere.Spec.VolumeName = "other"
	keptDirectory := going(placement.LocalDirectory)
	keptDirectory.Spec.PersistentVolumeReclaimPolicy = Retain
	for _, tt := range []struct {
		name     string
		v        VolumeView
		phase    string
		remove   bool
		left     []string // finalizers
		saysHeld string
	}{
		{"free", VolumeView{Volume: newVolume("v", "", "1Gi")}, available, false, []string{VolumeProtection}, ""},
		{
			"reserved",
			VolumeView{Volume: newVolume("v", "", "1Gi", reservedFor("c", ""))},
			available, false,
			[]string{VolumeProtection},
			"",
		},
		{"bound", VolumeView{Volume: is.Volume, Claim: is.Claim}, bound, false, []string{VolumeProtection}, ""},
		{"its claim is gone", VolumeView{Volume: is.Volume}, released, true, []string{VolumeProtection}, ""},
		{
			"another claim has the name by now", VolumeView{
				Volume: is.Volume, Claim: newClaim("c", "", "1Gi", func(c *schedulingv1.PersistentVolumeClaim) {
					c.Metadata.Uid = "x"
				}),
			}, released, true, []string{VolumeProtection}, "",
		},
		{"its data is to stay", VolumeView{Volume: retained}, released, false, []string{VolumeProtection}, ""},
		{
			"made for a claim that got another one",
			VolumeView{Volume: is.Volume, Claim: elsewhere},
			released, true,
			[]string{VolumeProtection},
			"",
		},
		{
			"no program deletes it", VolumeView{
				Volume: newVolume("v", "", "1Gi", reservedFor("c", "x"), func(v *schedulingv1.PersistentVolume) {
					v.Spec.PersistentVolumeReclaimPolicy = Delete
				}),
			}, failed, false, []string{VolumeProtection}, "",
		},
		{
			"deleted while it is bound",
			VolumeView{Volume: going(VolumeProtection), Claim: is.Claim},
			bound, false,
			[]string{VolumeProtection},
			"it is bound to claim default/c",
		},
		{
			"deleted, and its directory is there",
			VolumeView{Volume: going(VolumeProtection, placement.LocalDirectory)},
			released, false,
			[]string{placement.LocalDirectory},
			"node n has not removed its directory yet",
		},
		{
			"deleted, and its node is gone",
			VolumeView{Volume: going(placement.LocalDirectory), NodeGone: true},
			released,
			false, nil, "",
		},
		{"deleted, and its data is to stay", VolumeView{Volume: keptDirectory}, released, false, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := PersistentVolume(tt.v)
			now := tt.v.Volume
			if p.Next != nil {
				now = p.Next
			}
			held := ""
			for _, h := range p.Held {
				held += h.GetReason()
			}
			if now.GetStatus().GetPhase() != tt.phase || p.Delete != tt.remove || held != tt.saysHeld ||
				!slices.Equal(now.GetMetadata().GetFinalizers(), tt.left) {
				t.Errorf("%s, deleted %v, finalizers %v, %q; want %s, %v, %v, %q", now.GetStatus().GetPhase(), p.Delete,
					now.GetMetadata().GetFinalizers(), held, tt.phase, tt.remove, tt.left, tt.saysHeld)
			}
		})
	}
}

// world is claims and volumes as they are stored, and plans that were made from earlier states of them.
type world struct {
	claims  map[string]*schedulingv1.PersistentVolumeClaim
	volumes map[string]*schedulingv1.PersistentVolume
	late    []func() // bindings that are not stored yet
	stored  int
}

func (w *world) list() (out []*schedulingv1.PersistentVolume) {
	for i := range 6 {
		if v := w.volumes[fmt.Sprint("v", i)]; v != nil {
			out = append(out, v)
		}
	}
	return out
}

// decide makes a plan for a claim, which is stored later if what it was made from is unchanged then.
func (w *world) decide(name string) {
	c := w.claims[name]
	p := Claim(ClaimView{Claim: c, Volumes: w.list()})
	if p.Bind == nil {
		return
	}
	was := w.volumes[p.Bind.Volume.GetMetadata().GetName()]
	w.late = append(w.late, func() {
		if w.claims[name] == c && w.volumes[was.GetMetadata().GetName()] == was {
			w.claims[name], w.volumes[was.GetMetadata().GetName()] = p.Bind.Claim, p.Bind.Volume
			w.stored++
		}
	})
}

// Whatever is decided at once and stored in whatever order: no claim has two volumes, and no volume two claims.
func TestNothingIsBoundTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			claims:  map[string]*schedulingv1.PersistentVolumeClaim{},
			volumes: map[string]*schedulingv1.PersistentVolume{},
		}
		for i := range 6 {
			w.volumes[fmt.Sprint("v", i)] = newVolume(fmt.Sprint("v", i), "", fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "size"),
				"Gi"))
			w.claims[fmt.Sprint("c", i)] = newClaim(fmt.Sprint("c", i), "", fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "asked"),
				"Gi"))
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(w.late) > 0 && rapid.Bool().Draw(t, "store") {
				i := rapid.IntRange(0, len(w.late)-1).Draw(t, "which")
				w.late[i]()
				w.late = slices.Delete(w.late, i, i+1)
				continue
			}
			w.decide(fmt.Sprint("c", rapid.IntRange(0, 5).Draw(t, "claim")))
		}
		has := map[string]string{}
		for name, c := range w.claims {
			v := c.GetSpec().GetVolumeName()
			if v == "" {
				continue
			}
			if other := has[v]; other != "" {
				t.Fatalf("volume %s is bound to %s and %s", v, other, name)
			}
			has[v] = name
			if ref := w.volumes[v].GetSpec().GetClaimRef(); ref.GetName() != name {
				t.Fatalf("claim %s has volume %s, which is of %s", name, v, ref.GetName())
			}
		}
		if w.stored != len(has) {
			t.Fatalf("%d bindings were stored, and %d claims are bound", w.stored, len(has))
		}
	})
}

// BenchmarkClaim decides on one claim of many, for which there are as many volumes.
func BenchmarkClaim(b *testing.B) {
	v := ClaimView{Claim: newClaim("c", "s", "2Gi"), Class: newClass("s", NoProvisioner, Immediate)}
	for i := range 20000 {
		volume := newVolume(fmt.Sprint("v", i), "s", "1Gi")
		volume.Spec.NodeAffinity = Local(v.Claim, v.Class, "n").GetSpec().GetNodeAffinity()
		v.Volumes = append(v.Volumes, volume)
	}
	for b.Loop() {
		if p := Claim(v); p.Bind != nil {
			b.Fatal("it is bound to a volume that is too small")
		}
	}
}
