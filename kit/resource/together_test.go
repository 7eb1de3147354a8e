package resource_test

import (
	"testing"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
)

// Two objects are stored together if both are as they were read, and else neither.
func TestTwoObjectsAreReplacedTogetherOrNot(t *testing.T) {
	st := etcdtest.Store(t)
	sets := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{}).table
	machines := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*machinev1.Machine]{})
	done := make(chan error, 1)
	go func() { done <- machines.Run(t.Context()) }()
	t.Cleanup(func() { must(t, <-done) })
	must(t, machines.WaitSynced(t.Context()))
	s, err := sets.Create(t.Context(), object.Clone(&machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "s", Namespace: ns}, Spec: &machinev1.MachineSetSpec{Replicas: proto.Int32(1)},
	}))
	must(t, err)
	m, err := machines.Create(t.Context(), &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "m", Namespace: ns}})
	must(t, err)
	mark := func(value string) (*machinev1.MachineSet, *machinev1.Machine) {
		a, b := object.Clone(s), object.Clone(m)
		a.Metadata.Labels, b.Metadata.Labels = map[string]string{"a": value}, map[string]string{"a": value}
		return a, b
	}
	a, b := mark("1")
	now, then, err := resource.ReplaceBoth(t.Context(), sets, a, machines, b)
	if err != nil || now.GetMetadata().GetResourceVersion() != then.GetMetadata().GetResourceVersion() {
		t.Fatalf("stored at %s and %s: %v", now.GetMetadata().GetResourceVersion(), then.GetMetadata().GetResourceVersion(),
			err)
	}
	// Of the second, an older state is known.
	s = now
	a, b = mark("2")
	if _, _, err := resource.ReplaceBoth(t.Context(), sets, a, machines, b); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_CONFLICT {
		t.Errorf("with an older state of one of them: %v", err)
	}
	got, err := sets.Get(t.Context(), ns, "s")
	if err != nil || got.GetMetadata().GetLabels()["a"] != "1" {
		t.Errorf("the other was stored: %v, %v", got, err)
	}
	// What does not change must be unchanged, too.
	m = then
	other, _ := mark("3")
	_, err = machines.Modify(t.Context(), object.KeyOf(m), func(o *machinev1.Machine) error {
		o.Metadata.Annotations = map[string]string{"b": "c"}
		return nil
	})
	must(t, err)
	if _, _, err := resource.ReplaceBoth(t.Context(), sets, other, machines, object.Clone(m)); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_CONFLICT {
		t.Errorf("beside one that changed and is to stay as it was: %v", err)
	}
}

// An object and a record beside it are stored together or not.
func TestAnObjectIsReplacedWithARecordOrNot(t *testing.T) {
	st := etcdtest.Store(t)
	sets := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{}).table
	old, err := sets.Create(t.Context(), &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: "s", Namespace: ns}, Spec: &machinev1.MachineSetSpec{Replicas: proto.Int32(1)},
	})
	must(t, err)
	scaled := func(from *machinev1.MachineSet, n int32) *machinev1.MachineSet {
		next := object.Clone(from)
		next.Spec.Replicas = &n
		return next
	}
	refused := func(err error) bool { return rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_CONFLICT }
	now, err := sets.ReplaceWith(t.Context(), scaled(old, 2), []store.Op{store.Put("beside", []byte("1"), 0)})
	if err != nil || now.GetSpec().GetReplicas() != 2 || now.GetMetadata().GetGeneration() != 2 {
		t.Fatalf("stored %v: %v", now, err)
	}
	if _, err := sets.ReplaceWith(t.Context(), scaled(old, 3), []store.Op{
		store.Put("beside", []byte("2"), store.Whatever),
	}); !refused(err) {
		t.Errorf("an object that changed: %v", err)
	}
	if _, err := sets.ReplaceWith(t.Context(), scaled(now, 3), []store.Op{store.Put("beside", []byte("2"), 0)}); !refused(
		err) {
		t.Errorf("a record whose condition does not hold: %v", err)
	}
	// The object does not change, the record does.
	if same, err := sets.ReplaceWith(t.Context(), now,
		[]store.Op{store.Put("beside", []byte("3"), store.Whatever)}); err != nil ||
		same.GetMetadata().GetResourceVersion() != now.GetMetadata().GetResourceVersion() {
		t.Errorf("without a change of the object: %v, %v", same, err)
	}
	r, err := st.Get(t.Context(), "beside")
	got, getErr := sets.Get(t.Context(), ns, "s")
	if err != nil || getErr != nil || string(r.Value) != "3" || got.GetSpec().GetReplicas() != 2 {
		t.Errorf("stored are %q and %v: %v, %v", r.Value, got, err, getErr)
	}
}
