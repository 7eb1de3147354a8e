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
