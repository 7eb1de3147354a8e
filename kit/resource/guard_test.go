package resource_test

import (
	"context"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
)

// TestANewObjectIsStoredOnlyIfItsGuardHolds creates sets while the record that guards them changes or goes, each time
// just before they are stored.
func TestANewObjectIsStoredOnlyIfItsGuardHolds(t *testing.T) {
	st, calls, changes := etcdtest.Store(t), 0, 0
	change := func(op store.Op) {
		t.Helper()
		if _, err := st.Commit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	const key = "guards/one"
	f := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{Guard: func(ctx context.Context) (store.Op, error) {
		calls++
		r, err := st.Get(ctx, key)
		if err != nil {
			return store.Op{}, rpcerr.Forbidden("its guard is gone")
		}
		if changes++; changes == 1 {
			change(store.Put(key, nil, r.Revision))
		}
		return store.Check(key, r.Revision), nil
	}})
	change(store.Put(key, nil, 0))
	if _, err := f.table.Create(t.Context(), placed("alone")); err != nil || calls != 2 {
		t.Errorf("the guard changed once: %v after %d calls", err, calls)
	}
	changes = 0
	for _, w := range f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("many"), placed("other")}) {
		if w.Err != nil {
			t.Error(w.Err)
		}
	}
	if calls != 5 {
		t.Errorf("%d calls for two more objects and a guard that changed once", calls-2)
	}
	if _, err := f.table.Create(t.Context(), placed("alone")); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		t.Errorf("the name is taken: %v", err)
	}

	change(store.Delete(key, store.Whatever))
	refused := metav1.ErrorReason_ERROR_REASON_FORBIDDEN
	for _, opts := range []resource.WriteOptions{{}, {DryRun: true}} {
		if _, err := f.table.Create(t.Context(), placed("late"), opts); rpcerr.Reason(err) != refused {
			t.Errorf("without the guard: %v", err)
		}
	}
	if w := f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("late")}); rpcerr.Reason(w[0].Err) != refused {
		t.Errorf("without the guard: %v", w[0].Err)
	}
	alone := object.Key{Namespace: ns, Name: "alone"}
	if _, err := f.table.Modify(t.Context(), alone, func(s *machinev1.MachineSet) error {
		s.Metadata.Labels = map[string]string{"a": "b"}
		return nil
	}); err != nil {
		t.Errorf("a change needs no guard: %v", err)
	}
}
