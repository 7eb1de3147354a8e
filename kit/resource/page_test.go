package resource_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// pages lists by pages and calls between before each further one, which is read from the next of the servers in turn.
func pages(t *testing.T, servers []fixture, req *machinev1.ListMachineSetsRequest, between func(page int)) []string {
	t.Helper()
	var names []string
	revision := ""
	for n := 0; ; n++ {
		got, err := servers[n%len(servers)].client.ListMachineSets(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		m := got.GetMetadata()
		if revision == "" {
			revision = m.GetResourceVersion()
		}
		if m.GetResourceVersion() != revision {
			t.Errorf("page %d is of revision %s, the first one of %s", n, m.GetResourceVersion(), revision)
		}
		line := ""
		for _, s := range got.GetItems() {
			line += s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName() + " "
		}
		if m.RemainingItemCount != nil {
			line += fmt.Sprint("and ", m.GetRemainingItemCount())
		}
		names = append(names, strings.TrimSpace(line))
		if m.GetContinue() == "" {
			return names
		}
		req.Continue = m.GetContinue()
		between(n)
	}
}

// The pages of a list are the same whether they come from the cache or, at another replica, from etcd.
func TestAListGoesOnAtAnyReplica(t *testing.T) {
	st := etcdtest.Store(t)
	one := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{})
	two := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{})
	for _, name := range []string{"a-b/y", "a/x", "a/z", "b/x", "a-b/x", "a/y"} {
		s := set("", 1)
		s.Metadata.Namespace, s.Metadata.Name, _ = strings.Cut(name, "/")
		s.Metadata.Labels = map[string]string{"name": s.Metadata.Name}
		one.create(t, s)
	}
	made := 0
	change := func(page int) {
		s := set(fmt.Sprintf("new-%d", made), 1)
		s.Metadata.Namespace = "a"
		one.create(t, s)
		made++
	}
	for _, c := range []struct {
		namespace, labels string
		want              []string
	}{
		{"", "", []string{"a-b/x a-b/y and 4", "a/x a/y and 2", "a/z b/x"}},
		{"", "name in (x,y)", []string{"a-b/x a-b/y", "a/x a/y", "b/x"}},
		{"a", "name", []string{"a/x a/y", "a/z"}},
		{"b", "", []string{"b/x"}},
	} {
		for _, servers := range [][]fixture{{one}, {one, two}, {two, one, one}} {
			for made > 0 {
				made--
				if err := remove(t, one, "a", fmt.Sprintf("new-%d", made)); err != nil {
					t.Fatal(err)
				}
			}
			req := &machinev1.ListMachineSetsRequest{Namespace: c.namespace, LabelSelector: c.labels, Limit: 2}
			if diff := cmp.Diff(c.want, pages(t, servers, req, change)); diff != "" {
				t.Errorf("%q %q, %d servers:\n%s", c.namespace, c.labels, len(servers), diff)
			}
		}
	}
}

func remove(t *testing.T, f fixture, namespace, name string) error {
	t.Helper()
	_, err := f.client.DeleteMachineSet(t.Context(), &machinev1.DeleteMachineSetRequest{Namespace: namespace, Name: name})
	return err
}

// A list shows what was written before it, also by another replica.
func TestAListShowsWhatWasWrittenBefore(t *testing.T) {
	st := etcdtest.Store(t)
	one := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{})
	two := serveFrom(t, st, resource.Config[*machinev1.MachineSet]{})
	for n := 1; n <= 50; n++ {
		one.create(t, set(fmt.Sprintf("s-%d", n), 1))
		got, err := two.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{})
		if err != nil || len(got.GetItems()) != n {
			t.Fatalf("%d of %d, %v", len(got.GetItems()), n, err)
		}
	}
}

func TestAListAtARevisionShowsThatRevision(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	first := f.create(t, set("a", 1))
	f.create(t, set("b", 1))
	got, err := f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{
		ResourceVersion: first.GetMetadata().GetResourceVersion(),
	})
	if err != nil || len(got.GetItems()) != 1 || !proto.Equal(got.GetItems()[0], first) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAMaskLeavesTheCacheAsItIs(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	made := f.create(t, set("a", 3))
	got, err := f.client.ListMachineSets(t.Context(), &machinev1.ListMachineSetsRequest{
		ReadMask: &fieldmaskpb.FieldMask{Paths: []string{"metadata.name"}},
	})
	if err != nil || len(got.GetItems()) != 1 || got.GetItems()[0].GetSpec() != nil {
		t.Fatalf("%v, %v", got, err)
	}
	if cached, _ := f.table.Lookup(ns, "a"); !proto.Equal(cached, made) {
		t.Errorf("the cache has %v, created was %v", cached, made)
	}
}

// A page ends where a message is full, so that clients accept it with objects of any size.
func TestAPageOfLargeObjectsIsAMessage(t *testing.T) {
	f := serve(t, resource.Config[*machinev1.MachineSet]{})
	var all []*machinev1.MachineSet
	for i := range 5 {
		s := placed(fmt.Sprintf("m-%d", i))
		s.Metadata.Annotations = map[string]string{"large": strings.Repeat("x", 250<<10)}
		all = append(all, s)
	}
	for i := range 40 {
		s := object.Clone(all[0])
		s.Metadata.Name = fmt.Sprintf("n-%d", i)
		all = append(all, s)
	}
	for _, w := range f.table.CreateAll(t.Context(), all) {
		if w.Err != nil {
			t.Fatal(w.Err)
		}
	}
	items := 0
	var sizes []int
	for req := (&machinev1.ListMachineSetsRequest{Limit: 500}); ; {
		got, err := f.client.ListMachineSets(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		items += len(got.GetItems())
		sizes = append(sizes, proto.Size(got))
		if req.Continue = got.GetMetadata().GetContinue(); req.Continue == "" {
			break
		}
	}
	if items != len(all) || len(sizes) != 4 {
		t.Errorf("%d objects in pages of %v bytes", items, sizes)
	}
}
