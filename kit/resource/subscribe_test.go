package resource

import (
	"fmt"
	"slices"
	"testing"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// A subscriber receives each change once, in order, with the previous object, also when the cache is filled again.
func TestASubscriberIsToldWhatWasBefore(t *testing.T) {
	c := indexed()
	change(c, "x", "Oldest")
	var received []string
	c.Subscribe(func(ch Change[*machinev1.MachineSet]) {
		was := "nothing"
		if ch.Existed {
			was = ch.Previous.GetSpec().GetDeletePolicy()
		}
		is := ch.Object.GetSpec().GetDeletePolicy()
		if ch.Deleted {
			is = "nothing"
		}
		received = append(received, fmt.Sprintf("%s %s, before %s", ch.Key.Name, is, was))
	})
	change(c, "x", "Newest")
	change(c, "y", "Random")
	ch, _ := write(c, object.Key{Namespace: "a", Name: "y"}, nil, c.Revision()+1)
	c.Step(c.Revision()+1, []Change[*machinev1.MachineSet]{ch})
	change(c, "z", "Oldest")
	x, _ := c.Lookup("a", "x")
	policy := "Newest"
	z, _ := write(c, object.Key{Namespace: "a", Name: "z"}, &policy, c.Revision()+5)
	w, _ := write(c, object.Key{Namespace: "a", Name: "w"}, &policy, c.Revision()+6)
	c.Replace([]*machinev1.MachineSet{x, z.Object, w.Object}, c.Revision()+10)
	c.Replace([]*machinev1.MachineSet{z.Object, w.Object}, c.Revision()+1)
	want := []string{
		"x Oldest, before nothing", "x Newest, before Oldest", "y Random, before nothing", "y nothing, before Random",
		"z Oldest, before nothing", "z Newest, before Oldest", "w Newest, before nothing", "x nothing, before Newest",
	}
	if !slices.Equal(received, want) {
		t.Errorf("received\n%q\nwant\n%q", received, want)
	}
}
