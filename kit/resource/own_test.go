package resource_test

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

func TestTheCacheHasTheObjectsThatABatchWrote(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	var keys []object.Key
	for _, w := range f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("a"), placed("b")}) {
		keys = append(keys, object.KeyOf(w.Object))
	}
	for i, w := range f.table.ModifyAll(t.Context(), keys, func(s *machinev1.MachineSet) error {
		s.Spec.Replicas = proto.Int32(7)
		return nil
	}) {
		cached, _ := f.table.Lookup(ns, keys[i].Name)
		if cached != w.Object {
			t.Errorf("%s was decoded again", keys[i].Name)
		}
		stored, err := f.table.Get(t.Context(), ns, keys[i].Name)
		if err != nil || !proto.Equal(stored, cached) {
			t.Errorf("the cache has %v, etcd has %v, %v", cached, stored, err)
		}
	}
}

// TestBatchesOfTwoProcesses has two processes write the same objects at once: each returns what it wrote, at its
// revision, and both caches end with what etcd has.
func TestBatchesOfTwoProcesses(t *testing.T) {
	const objects, rounds = 20, 15
	st := etcdtest.Store(t)
	var group sync.WaitGroup
	both := []fixture{serveFrom(t, st, resource.Config[*machinev1.MachineSet]{}), serveFrom(t, st,
		resource.Config[*machinev1.MachineSet]{})}
	var sets []*machinev1.MachineSet
	var keys []object.Key
	for i := range objects {
		sets = append(sets, placed(fmt.Sprint("m-", i)))
		keys = append(keys, object.Key{Namespace: ns, Name: fmt.Sprint("m-", i)})
	}
	both[0].table.CreateAll(t.Context(), sets)
	for _, f := range both {
		if err := f.table.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for who, f := range both {
		group.Go(func() {
			for round := range rounds {
				label := fmt.Sprint(who, "-", round)
				for i, w := range f.table.ModifyAll(t.Context(), keys, func(s *machinev1.MachineSet) error {
					s.Metadata.Labels = map[string]string{"by": label}
					return nil
				}) {
					if w.Err != nil || w.Object.GetMetadata().GetLabels()["by"] != label {
						t.Errorf("%v in %s: %v, %v", keys[i], label, w.Object, w.Err)
					}
				}
			}
		})
	}
	group.Wait()
	for _, f := range both {
		if err := f.table.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			cached, _ := f.table.Lookup(ns, k.Name)
			stored, err := f.table.Get(t.Context(), ns, k.Name)
			if err != nil || !proto.Equal(stored, cached) {
				t.Errorf("the cache has %v, etcd has %v, %v", cached, stored, err)
			}
		}
	}
}
