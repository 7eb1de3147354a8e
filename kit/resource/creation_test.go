package resource_test

import (
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// TestWhatCreatingAddsIsStoredWhileItsFenceHolds creates sets one by one, in a batch and as a dry run.
func TestWhatCreatingAddsIsStoredWhileItsFenceHolds(t *testing.T) {
	for what, holds := range map[string]bool{"the fence holds": true, "the fence fell": false} {
		t.Run(what, func(t *testing.T) {
			fence := store.Fence{Key: etcdtest.Prefix(t) + "leader", CreateRevision: 1}
			if holds {
				resp, err := etcdtest.Client(t).Put(t.Context(), fence.Key, "")
				if err != nil {
					t.Fatal(err)
				}
				fence.CreateRevision = resp.Header.Revision
			}
			var results []resource.Written[*machinev1.MachineSet]
			f := serve(t, resource.Config[*machinev1.MachineSet]{
				Creating: func(objs []*machinev1.MachineSet) *resource.Creation[*machinev1.MachineSet] {
					for _, o := range objs {
						if o.GetMetadata().GetName() != "other" {
							o.Metadata.Annotations = map[string]string{"added": "yes"}
						}
					}
					return &resource.Creation[*machinev1.MachineSet]{
						Fence: fence,
						Done:  func(r []resource.Written[*machinev1.MachineSet]) { results = append(results, r...) },
					}
				},
			})
			if _, err := f.table.Create(t.Context(), placed("dry"), resource.WriteOptions{DryRun: true}); err != nil {
				t.Fatal(err)
			}
			if len(results) > 0 {
				t.Errorf("a dry run has the results %v", results)
			}
			names := []string{"alone", "many", "other"}
			if _, err := f.table.Create(t.Context(), placed("alone")); err != nil {
				t.Fatal(err)
			}
			for _, w := range f.table.CreateAll(t.Context(), []*machinev1.MachineSet{placed("many"), placed("other")}) {
				if w.Err != nil {
					t.Fatal(w.Err)
				}
			}
			for i, name := range names {
				o, err := f.table.Get(t.Context(), ns, name)
				if err != nil {
					t.Fatal(err)
				}
				if added := o.GetMetadata().GetAnnotations()["added"] != ""; added != (holds && name != "other") {
					t.Errorf("%s: added is stored: %t", name, added)
				}
				if stored := results[i].Err == nil && results[i].Object.GetMetadata().GetName() == name; stored != holds {
					t.Errorf("%s: the result is %v", name, results[i])
				}
			}
		})
	}
}

func TestAnObjectIsResolved(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	f.create(t, set("there", 1))
	for name, want := range map[string]bool{"there": true, "absent": false} {
		o, err := f.table.Resolve(t.Context(), object.Key{Namespace: ns, Name: name})
		if err != nil || o.ProtoReflect().IsValid() != want {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}
