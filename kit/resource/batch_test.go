package resource_test

import (
	"fmt"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func placed(name string) *machinev1.MachineSet {
	s := set(name, 1)
	s.Metadata.Namespace = ns
	return s
}

func TestWhatIsRefusedInABatchDoesNotKeepTheOthers(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("m-007", 1))
	var all []*machinev1.MachineSet
	for i := range 250 {
		all = append(all, placed(fmt.Sprintf("m-%03d", i)))
	}
	all[100].Spec.Replicas = proto.Int32(-1)
	revisions := map[string]bool{}
	for i, w := range f.table.CreateAll(t.Context(), all) {
		switch i {
		case 7:
			wantReason(t, w.Err, codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS)
		case 100:
			wantReason(t, w.Err, codes.InvalidArgument, metav1.ErrorReason_ERROR_REASON_INVALID_FIELD)
		default:
			if w.Err != nil {
				t.Fatalf("%d: %v", i, w.Err)
			}
			revisions[w.Object.GetMetadata().GetResourceVersion()] = true
			if _, ok := f.table.Lookup(ns, all[i].GetMetadata().GetName()); !ok {
				t.Errorf("%d is not in the cache when the batch is done", i)
			}
		}
	}
	// The transaction that was refused for the existing name was committed without it.
	if len(revisions) != 3 {
		t.Errorf("%d revisions for 248 objects, want 3", len(revisions))
	}
}

func TestABatchThatIsADryRunStoresNothing(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("there", 1))
	dry := resource.WriteOptions{DryRun: true}
	created := f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("new"), placed("there")}, dry)
	if created[0].Err != nil {
		t.Error(created[0].Err)
	}
	wantReason(t, created[1].Err, codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS)
	key := object.Key{Namespace: ns, Name: "there"}
	for _, w := range f.table.ModifyAll(t.Context(), []object.Key{key}, func(s *machinev1.MachineSet) error {
		s.Spec.Replicas = proto.Int32(9)
		return nil
	}, dry) {
		if w.Err != nil || w.Object.GetSpec().GetReplicas() != 9 {
			t.Errorf("%v: %v", w.Object, w.Err)
		}
	}
	if have, err := f.table.Get(t.Context(), ns, "there"); err != nil || have.GetSpec().GetReplicas() != 1 {
		t.Errorf("stored %v: %v", have, err)
	}
	_, err := f.table.Get(t.Context(), ns, "new")
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
}

func TestABatchLeavesOutWhatOthersChanged(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	keys := createMany(t, f, 100)
	raced := map[string]bool{"m-003": false, "m-042": false, "m-099": false}
	revisions := map[string]int{}
	for i, w := range f.table.ModifyAll(t.Context(), keys, func(s *machinev1.MachineSet) error {
		if done, ok := raced[s.GetMetadata().GetName()]; ok && !done {
			raced[s.GetMetadata().GetName()] = true
			race(t, f, s)
		}
		s.Spec.Replicas = proto.Int32(s.GetSpec().GetReplicas() + 10)
		return nil
	}) {
		want := int32(11)
		if raced[keys[i].Name] {
			want = 110
		}
		if w.Err != nil || w.Object.GetSpec().GetReplicas() != want {
			t.Errorf("%v: %v, %v; want %d replicas", keys[i], w.Object.GetSpec(), w.Err, want)
		}
		revisions[w.Object.GetMetadata().GetResourceVersion()]++
	}
	if len(revisions) != 4 {
		t.Errorf("%d revisions for 97 objects together and 3 alone, want 4", len(revisions))
	}
}

func createMany(t testing.TB, f fixture, n int) []object.Key {
	t.Helper()
	keys, all := make([]object.Key, n), make([]*machinev1.MachineSet, n)
	for i := range all {
		all[i] = placed(fmt.Sprintf("m-%03d", i))
		keys[i] = object.KeyOf(all[i])
	}
	for _, w := range f.table.CreateAll(t.Context(), all) {
		if w.Err != nil {
			t.Fatal(w.Err)
		}
	}
	return keys
}

// race changes an object, as a concurrent writer does before a batch.
func race(t testing.TB, f fixture, s *machinev1.MachineSet) {
	t.Helper()
	next := object.Clone(s)
	next.Spec.Replicas = proto.Int32(100)
	if _, err := f.table.Update(t.Context(), next); err != nil {
		t.Error(err)
	}
}

// BenchmarkABatchWithAConflict is a batch of a hundred objects, one of which another write changes at the same time.
func BenchmarkABatchWithAConflict(b *testing.B) {
	f := serve(b, resource.Config[*machinev1.MachineSet]{})
	keys := createMany(b, f, 100)
	for b.Loop() {
		raced := false
		for _, w := range f.table.ModifyAll(b.Context(), keys, func(s *machinev1.MachineSet) error {
			if s.GetMetadata().GetName() == "m-050" && !raced {
				raced = true
				race(b, f, s)
			}
			s.Spec.Replicas = proto.Int32(s.GetSpec().GetReplicas() + 10)
			return nil
		}) {
			if w.Err != nil {
				b.Fatal(w.Err)
			}
		}
	}
}

// Large objects of one caller must not prevent writes of others that share their batch.
func TestABatchOfLargeObjectsIsWritten(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	var all []*machinev1.MachineSet
	var keys []object.Key
	for i := range 40 {
		s := placed(fmt.Sprintf("m-%d", i))
		s.Metadata.Annotations = map[string]string{"large": strings.Repeat("x", 250<<10)}
		all, keys = append(all, s), append(keys, object.KeyOf(s))
	}
	all, keys = append(all, placed("small")), append(keys, object.Key{Namespace: ns, Name: "small"})
	for i, w := range f.table.CreateAll(t.Context(), all) {
		if w.Err != nil {
			t.Fatalf("create %v: %v", keys[i], w.Err)
		}
	}
	for i, w := range f.table.ModifyAll(t.Context(), keys, func(s *machinev1.MachineSet) error {
		s.Spec.Replicas = proto.Int32(2)
		return nil
	}) {
		if w.Err != nil {
			t.Fatalf("change %v: %v", keys[i], w.Err)
		}
	}
}

func TestABatchChangesWhatIsThereNow(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	var keys []object.Key
	for i := range 5 {
		f.create(t, set(fmt.Sprintf("m-%d", i), int32(i)))
		keys = append(keys, object.Key{Namespace: ns, Name: fmt.Sprintf("m-%d", i)})
	}
	keys = append(keys, object.Key{Namespace: ns, Name: "missing"})
	raced := false
	out := f.table.ModifyAll(t.Context(), keys, func(s *machinev1.MachineSet) error {
		if s.GetMetadata().GetName() == "m-2" && !raced {
			raced = true // a concurrent write comes first: the batch must not overwrite it
			race(t, f, s)
		}
		s.Spec.Replicas = proto.Int32(s.GetSpec().GetReplicas() + 10)
		return nil
	})
	for i, want := range []int32{10, 11, 110, 13, 14} {
		if out[i].Err != nil || out[i].Object.GetSpec().GetReplicas() != want {
			t.Errorf("%d: %v, %v; want %d replicas", i, out[i].Object.GetSpec(), out[i].Err, want)
		}
		if g := out[i].Object.GetMetadata().GetGeneration(); g < 2 {
			t.Errorf("%d: generation %d", i, g)
		}
	}
	wantReason(t, out[5].Err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
}

func TestABatchMayNameAnObjectTwice(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	made := f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("a"), placed("a"), placed("b")})
	wantReason(t, made[1].Err, codes.AlreadyExists, metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS)
	if made[0].Err != nil || made[2].Err != nil {
		t.Errorf("created: %v, %v", made[0].Err, made[2].Err)
	}
	a, b := object.Key{Namespace: ns, Name: "a"}, object.Key{Namespace: ns, Name: "b"}
	out := f.table.ModifyAll(t.Context(), []object.Key{a, b, a}, func(s *machinev1.MachineSet) error {
		s.Spec.Replicas = proto.Int32(s.GetSpec().GetReplicas() + 10)
		return nil
	})
	for i, want := range []int32{11, 11, 21} {
		if got := out[i].Object.GetSpec().GetReplicas(); out[i].Err != nil || got != want {
			t.Errorf("%d: %d replicas, %v; want %d", i, got, out[i].Err, want)
		}
	}
}

func TestABatchThatTakesTheLastFinalizerLetsAnObjectGo(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Finalizers: []string{"windlass.dev/test"}})
	f.create(t, set("a", 1))
	f.create(t, set("b", 1))
	if _, err := f.table.Delete(t.Context(), ns, "a", nil); err != nil {
		t.Fatal(err)
	}
	a, b := object.Key{Namespace: ns, Name: "a"}, object.Key{Namespace: ns, Name: "b"}
	for i, w := range f.table.ModifyAll(t.Context(), []object.Key{a, b}, func(s *machinev1.MachineSet) error {
		s.Metadata.Finalizers = nil
		return nil
	}) {
		if w.Err != nil {
			t.Errorf("%d: %v", i, w.Err)
		}
	}
	_, err := f.table.Get(t.Context(), ns, "a")
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
	if _, err := f.table.Get(t.Context(), ns, "b"); err != nil {
		t.Errorf("b, which is not deleted: %v", err)
	}
}

func TestAnObjectWithAGraceStaysUntilItIsAskedToGoAtOnce(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Grace: func(_ *machinev1.MachineSet, asked *int32) (int32, bool) {
		if asked != nil {
			return *asked, *asked > 0
		}
		return 30, true
	}})
	f.create(t, set("a", 1))
	first, err := f.table.Delete(t.Context(), ns, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := first.GetMetadata(); m.GetDeletionGracePeriodSeconds() != 30 || m.GetDeletionTimestamp() == nil {
		t.Errorf("deleted: %v", m)
	}
	// A longer grace period changes nothing, a shorter one does.
	for _, c := range []struct{ asked, want int32 }{{60, 30}, {5, 5}, {10, 5}} {
		got, err := f.table.Delete(t.Context(), ns, "a", nil, resource.WriteOptions{Grace: &c.asked})
		if err != nil || got.GetMetadata().GetDeletionGracePeriodSeconds() != c.want {
			t.Errorf("asked with %d: %v, %v; want %d", c.asked, got.GetMetadata(), err, c.want)
		}
	}
	// A write in the meantime does not remove it.
	if _, err := f.table.Modify(t.Context(), object.Key{Namespace: ns, Name: "a"}, func(s *machinev1.MachineSet) error {
		s.Status = &machinev1.MachineSetStatus{Replicas: proto.Int32(1)}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.table.Get(t.Context(), ns, "a"); err != nil {
		t.Errorf("it went with a write: %v", err)
	}
	if _, err := f.table.Delete(t.Context(), ns, "a", nil, resource.WriteOptions{Grace: proto.Int32(0)}); err != nil {
		t.Fatal(err)
	}
	_, err = f.table.Get(t.Context(), ns, "a")
	wantReason(t, err, codes.NotFound, metav1.ErrorReason_ERROR_REASON_NOT_FOUND)
}
