package resource_test

import (
	"slices"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type setWrite = resource.Write[*machinev1.MachineSet]

// TestARuleGetsTheWriteAsAValue makes each kind of write as the service, as a caller, and as the service for a caller.
func TestARuleGetsTheWriteAsAValue(t *testing.T) {
	var got []setWrite
	f := serve(t, resource.Config[*machinev1.MachineSet]{Admit: func(w *setWrite) error {
		got = append(got, *w)
		w.Warn("odd")
		return nil
	}})
	key := object.Key{Namespace: ns, Name: "a"}
	change := func(s *machinev1.MachineSet) error {
		s.Spec.Replicas = proto.Int32(s.Spec.GetReplicas() + 1)
		return nil
	}
	bob := identity.WithCaller(t.Context(), identity.Caller{User: "bob"})
	for _, c := range []struct {
		name string
		by   string
		own  bool
		opts resource.WriteOptions
	}{
		{name: "the service itself", own: true},
		{name: "a caller", by: "bob"},
		{name: "the service for a caller", by: "bob", own: true, opts: resource.WriteOptions{Own: true}},
	} {
		ctx := t.Context()
		if c.by != "" {
			ctx = bob
		}
		warned := 0
		c.opts.Warn = func(string) { warned++ }
		got = nil
		_, err := f.table.Create(ctx, set("a", 1), c.opts)
		must(t, err)
		_, err = f.table.Modify(ctx, key, change, c.opts)
		must(t, err)
		must(t, f.table.ModifyAll(ctx, []object.Key{key}, change, c.opts)[0].Err)
		gone := c.opts
		gone.Grace, gone.Propagation = proto.Int32(7), "Background"
		_, err = f.table.Delete(ctx, ns, "a", nil, gone)
		must(t, err)
		must(t, f.table.CreateAll(ctx, []*machinev1.MachineSet{set("b", 1)}, c.opts)[0].Err)
		_, err = f.table.Delete(ctx, ns, "b", nil, c.opts)
		must(t, err)
		if len(got) != 6 || warned != 6 {
			t.Fatalf("%s: %d writes, %d warnings", c.name, len(got), warned)
		}
		for i, w := range got {
			if w.By.User != c.by || w.Own != c.own {
				t.Errorf("%s: write %d is by %q, own %v", c.name, i, w.By.User, w.Own)
			}
			if creates, deletes := i == 0 || i == 4, i == 3 || i == 5; w.Creates() != creates || w.Deletes() != deletes {
				t.Errorf("%s: write %d creates %v, deletes %v", c.name, i, w.Creates(), w.Deletes())
			}
		}
		if w := got[3]; *w.Grace != 7 || w.Propagation != "Background" || w.Old.GetSpec().GetReplicas() != 3 {
			t.Errorf("%s: the deletion is %+v", c.name, w)
		}
	}
}

func TestARequestSaysHowItsWriteIsDone(t *testing.T) {
	var got *setWrite
	f := serve(t, resource.Config[*machinev1.MachineSet]{Admit: func(w *setWrite) error { got = w; return nil }})
	f.create(t, set("a", 1))
	if got.DryRun || got.Grace != nil || got.Propagation != "" {
		t.Errorf("a plain creation: %+v", got)
	}
	if got.Own || got.By.User != "" { // this server lets callers in that it does not know
		t.Errorf("a creation by an unknown caller: %+v", got)
	}
	_, err := f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{
		Name: "a", PropagationPolicy: "Orphan", DryRun: "All",
	})
	must(t, err)
	if !got.DryRun || got.Propagation != resource.Orphan {
		t.Errorf("a deletion for show: %+v", got)
	}
}

func TestADeletionThatOrphansLeavesANote(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{Owns: true})
	remove := func(opts resource.WriteOptions) {
		t.Helper()
		_, err := f.table.Delete(t.Context(), ns, "a", nil, opts)
		must(t, err)
	}
	noted := func(want bool) {
		t.Helper()
		s, err := f.table.Get(t.Context(), ns, "a")
		must(t, err)
		if slices.Contains(s.GetMetadata().GetFinalizers(), object.OrphanFinalizer) != want || object.Deleting(s) != want {
			t.Errorf("it is %v", s.GetMetadata())
		}
	}
	before := f.create(t, set("a", 1))
	remove(resource.WriteOptions{Propagation: resource.Orphan, DryRun: true})
	noted(false)
	remove(resource.WriteOptions{Propagation: resource.Orphan})
	noted(true)
	remove(resource.WriteOptions{}) // too late: it is already being deleted
	noted(true)
	if after, _ := f.table.Get(t.Context(), ns, "a"); after.GetMetadata().GetUid() != before.GetMetadata().GetUid() {
		t.Error("it is another object")
	}
	// An existing orphan finalizer does not hold a deletion that also deletes the owned objects.
	other := set("b", 1)
	other.Metadata.Finalizers = []string{object.OrphanFinalizer}
	f.create(t, other)
	_, err := f.table.Delete(t.Context(), ns, "b", nil)
	must(t, err)
	if _, err := f.table.Get(t.Context(), ns, "b"); status.Code(err) != codes.NotFound {
		t.Errorf("it is still there: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
