package resource

import (
	"slices"
	"strings"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func change(c *Cache[*machinev1.MachineSet], name, policy string) {
	revision := c.Revision() + 1
	ch, _ := write(c, object.Key{Namespace: "a", Name: name}, &policy, revision)
	c.Step(revision, []Change[*machinev1.MachineSet]{ch})
}

func TestAViewDoesNotChange(t *testing.T) {
	c := indexed()
	change(c, "x", "Oldest")
	change(c, "y", "Oldest")
	v := c.view()
	change(c, "x", "Newest")
	ch, _ := write(c, object.Key{Namespace: "a", Name: "y"}, nil, c.Revision()+1)
	c.Step(c.Revision()+1, []Change[*machinev1.MachineSet]{ch})
	change(c, "z", "Newest")
	var got []string
	for o := range v.all() {
		got = append(got, o.GetMetadata().GetName()+" "+o.GetSpec().GetDeletePolicy())
	}
	if want := []string{"x Oldest", "y Oldest"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if names := c.Keys(); !slices.Equal(names, []string{"a/x", "a/z"}) {
		t.Errorf("the cache has %v", names)
	}
}

func TestAViewIsKeptWhileTheRingReachesBackToIt(t *testing.T) {
	c := indexed()
	large := strings.Repeat("x", ringBytes/4)
	change(c, "x", large)
	v := c.view()
	c.keepView(v)
	change(c, "x", large)
	if c.keptView(v.revision) != v {
		t.Fatal("the view is not kept")
	}
	for range 4 {
		change(c, "x", large)
	}
	if c.keptView(v.revision) != nil {
		t.Error("the view is kept though the ring has lost what changed after it")
	}
	if c.keepView(v); c.keptView(v.revision) != nil {
		t.Error("an old view is kept")
	}
	for range 2 * mostViews {
		change(c, "x", "")
		v = c.view()
		c.keepView(v)
		c.keepView(v)
	}
	if len(c.kept) != mostViews || c.keptView(v.revision) != v {
		t.Errorf("%d views", len(c.kept))
	}
	c.Replace(nil, c.Revision()+1)
	if len(c.kept) != 0 {
		t.Error("views outlive what they were views of")
	}
}

// The order is that of the records in etcd, where "a-b/x" is before "a/x".
func TestObjectsAreInTheOrderOfTheirRecords(t *testing.T) {
	c := NewCache[*machinev1.MachineSet]()
	var all []*machinev1.MachineSet
	for _, namespace := range []string{"a", "b", "a-b"} {
		all = append(all, &machinev1.MachineSet{Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: "x"}})
	}
	c.Replace(all, 1)
	if got, want := c.Keys(), []string{"a-b/x", "a/x", "b/x"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
