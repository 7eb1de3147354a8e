package kinds

import (
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/placement"
)

func newClaim(name, size string) *schedulingv1.PersistentVolumeClaim {
	resources, err := structpb.NewStruct(map[string]any{"requests": map[string]any{"storage": size}})
	if err != nil {
		panic(err)
	}
	c := &schedulingv1.PersistentVolumeClaim{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: &schedulingv1.PersistentVolumeClaimSpec{
			AccessModes: []string{"ReadWriteOnce"}, Resources: resources,
		},
	}
	defaultClaim(c)
	return c
}

func newVolume(change func(*schedulingv1.PersistentVolumeSpec)) *schedulingv1.PersistentVolume {
	v := &schedulingv1.PersistentVolume{
		Metadata: &metav1.ObjectMeta{Name: "v"},
		Spec: &schedulingv1.PersistentVolumeSpec{
			AccessModes: []string{"ReadWriteOnce"},
			Capacity:    map[string]*structpb.Value{"storage": structpb.NewStringValue("1Gi")},
		},
	}
	defaultVolume(v)
	change(v.Spec)
	return v
}

func paths(faults []object.Fault) (out []string) {
	for _, f := range faults {
		out = append(out, f.Path)
	}
	return out
}

func fields(t *testing.T, m map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsWrongWithAVolume(t *testing.T) {
	term := func(operator string) map[string]any {
		return map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{map[string]any{
			"matchExpressions": []any{map[string]any{"key": "zone", "operator": operator, "values": []any{"a"}}},
		}}}}
	}
	for _, tt := range []struct {
		name   string
		change func(*schedulingv1.PersistentVolumeSpec)
		want   []string
	}{
		{"nothing", func(*schedulingv1.PersistentVolumeSpec) {}, nil},
		{"no size", func(s *schedulingv1.PersistentVolumeSpec) { s.Capacity = nil }, []string{"spec.capacity['storage']"}},
		{"a size that is none", func(s *schedulingv1.PersistentVolumeSpec) {
			s.Capacity["storage"] = structpb.NewStringValue("big")
		}, []string{"spec.capacity['storage']"}},
		{"a mode that would not hold", func(s *schedulingv1.PersistentVolumeSpec) {
			s.AccessModes = []string{"ReadWriteOncePod"}
		}, []string{"spec.accessModes[0]"}},
		{"Recycle would keep the data", func(s *schedulingv1.PersistentVolumeSpec) {
			s.PersistentVolumeReclaimPolicy = "Recycle"
		}, []string{"spec.persistentVolumeReclaimPolicy"}},
		{"a zone", func(s *schedulingv1.PersistentVolumeSpec) { s.NodeAffinity = fields(t, term("In")) }, nil},
		{"an operator that is none", func(s *schedulingv1.PersistentVolumeSpec) {
			s.NodeAffinity = fields(t, term("Near"))
		}, []string{"spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0]"}},
		{"an affinity that is none", func(s *schedulingv1.PersistentVolumeSpec) {
			s.NodeAffinity = fields(t, map[string]any{"preferred": "x"})
		}, []string{"spec.nodeAffinity.preferred"}},
		{"a claim without a namespace", func(s *schedulingv1.PersistentVolumeSpec) {
			s.ClaimRef = &metav1.ObjectReference{Name: "c"}
		}, []string{"spec.claimRef"}},
		{"a directory of no node", func(s *schedulingv1.PersistentVolumeSpec) {
			s.Csi = fields(t, map[string]any{"driver": "windlass.dev/local"})
		}, []string{"spec.csi.volumeAttributes['node']"}},
	} {
		if got := paths(validateVolume(newVolume(tt.change))); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAVolumeStaysWhatItIs(t *testing.T) {
	old := newVolume(func(s *schedulingv1.PersistentVolumeSpec) {
		s.Csi = fields(t, map[string]any{"driver": "windlass.dev/local", "volumeAttributes": map[string]any{"node": "a"}})
	})
	moved, grown := proto.CloneOf(old), proto.CloneOf(old)
	moved.Spec.Csi.Fields["volumeAttributes"].GetStructValue().Fields["node"] = structpb.NewStringValue("b")
	grown.Spec.Capacity["storage"] = structpb.NewStringValue("2Gi")
	grown.Spec.PersistentVolumeReclaimPolicy = "Delete"
	if len(validateVolumeUpdate(old, moved)) == 0 {
		t.Error("a directory can be moved to another node by changing the volume")
	}
	if bad := validateVolumeUpdate(old, grown); len(bad) > 0 {
		t.Errorf("size and policy cannot change: %v", bad)
	}
}

// Once the agent may remove the directory, it is too late to keep it; and a volume that is deleted while it is bound
// waits for its claim.
func TestAVolumeThatIsDeletedStaysSo(t *testing.T) {
	old := newVolume(func(s *schedulingv1.PersistentVolumeSpec) {
		s.Csi = fields(t, map[string]any{"driver": "windlass.dev/local", "volumeAttributes": map[string]any{"node": "a"}})
		s.PersistentVolumeReclaimPolicy = "Delete"
		s.ClaimRef = &metav1.ObjectReference{Namespace: "default", Name: "c", Uid: "u"}
	})
	old.Metadata.DeletionTimestamp = timestamppb.Now()
	old.Metadata.Finalizers = []string{placement.LocalDirectory, placement.VolumeProtection}
	old.Status.Phase = proto.String("Bound")
	retained, free := proto.CloneOf(old), proto.CloneOf(old)
	retained.Spec.PersistentVolumeReclaimPolicy = "Retain"
	free.Spec.ClaimRef = nil
	if bad := validateVolumeUpdate(old, retained); len(bad) > 0 {
		t.Errorf("its data cannot be kept while it is bound: %v", bad)
	}
	if bad := paths(validateVolumeUpdate(old, free)); !slices.Equal(bad, []string{"spec.claimRef"}) {
		t.Errorf("without its claim: %v", bad)
	}
	old.Metadata.Finalizers = old.Metadata.Finalizers[:1]
	old.Status.Phase = proto.String("Released")
	if bad := paths(validateVolumeUpdate(old, retained)); !slices.Equal(bad,
		[]string{"spec.persistentVolumeReclaimPolicy"}) {
		t.Errorf("retained while its directory is removed: %v", bad)
	}
}

func TestWhatIsWrongWithAStorageClass(t *testing.T) {
	local := func(change func(*schedulingv1.StorageClass)) []string {
		c := &schedulingv1.StorageClass{Provisioner: "windlass.dev/local"}
		change(c)
		defaultStorageClass(c)
		return paths(validateStorageClass(c))
	}
	if got := local(func(*schedulingv1.StorageClass) {}); got != nil {
		t.Errorf("the defaults of the built-in provisioner are refused: %v", got)
	}
	got := local(func(c *schedulingv1.StorageClass) {
		c.VolumeBindingMode, c.Parameters = "Immediate", map[string]string{"a": "b"}
		c.MountOptions, c.AllowVolumeExpansion = []string{"ro"}, proto.Bool(true)
	})
	if want := []string{
		"volumeBindingMode", "parameters", "mountOptions", "allowVolumeExpansion",
	}; !slices.Equal(got, want) {
		t.Errorf("what the built-in provisioner does not do: %v, want %v", got, want)
	}
	was := &schedulingv1.StorageClass{Provisioner: "example.com/disk", Parameters: map[string]string{"a": "b"}}
	defaultStorageClass(was)
	is := &schedulingv1.StorageClass{
		Provisioner: "example.com/other", ReclaimPolicy: "Retain", VolumeBindingMode: "WaitForFirstConsumer",
	}
	got = paths(validateStorageClassUpdate(was, is))
	if want := []string{"provisioner", "reclaimPolicy", "volumeBindingMode", "parameters"}; !slices.Equal(got, want) {
		t.Errorf("what cannot change: %v, want %v", got, want)
	}
}
