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

// Between two fills of the cache an object may have been replaced by another of its name: a subscriber that keeps
// something by the first one must learn that it is gone.
func TestASubscriberIsToldOfAnObjectThatTookTheNameOfAnother(t *testing.T) {
	c := indexed()
	named := func(uid, policy string) *machinev1.MachineSet {
		ch, _ := write(c, object.Key{Namespace: "a", Name: "x"}, &policy, c.Revision()+1)
		ch.Object.Metadata.Uid = uid
		return ch.Object
	}
	c.Replace([]*machinev1.MachineSet{named("1", "Oldest")}, c.Revision()+1)
	var received []string
	subscribed := false
	c.Subscribe(func(ch Change[*machinev1.MachineSet]) {
		if subscribed {
			received = append(received, fmt.Sprintf("%s deleted %t existed %t", ch.Object.GetMetadata().GetUid(), ch.Deleted,
				ch.Existed))
		}
	})
	subscribed = true
	c.Replace([]*machinev1.MachineSet{named("2", "Newest")}, c.Revision()+1)
	want := []string{"1 deleted true existed true", "2 deleted false existed false"}
	if !slices.Equal(received, want) {
		t.Errorf("received %q, want %q", received, want)
	}
	if x, ok := c.Lookup("a", "x"); !ok || x.GetMetadata().GetUid() != "2" {
		t.Errorf("the cache has %v", x)
	}
}
