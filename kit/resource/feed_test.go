package resource

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

const policyField = "spec.deletePolicy"

func indexed() *Cache[*machinev1.MachineSet] {
	c := NewCache[*machinev1.MachineSet]()
	c.Index(policyField, func(s *machinev1.MachineSet) []string { return []string{s.GetSpec().GetDeletePolicy()} })
	c.Replace(nil, 1)
	return c
}

// write is the change of an object at the cache's next revision; a nil policy deletes it.
func write(c *Cache[*machinev1.MachineSet], k object.Key, policy *string,
	revision int64) (Change[*machinev1.MachineSet],
	bool,
) {
	ch := Change[*machinev1.MachineSet]{Key: k}
	ch.Previous, ch.Existed = c.Lookup(k.Namespace, k.Name)
	if policy == nil {
		if !ch.Existed {
			return ch, false
		}
		ch.Deleted, ch.Object = true, object.Clone(ch.Previous)
		ch.Object.Metadata.ResourceVersion = FormatRevision(revision)
		return ch, true
	}
	ch.Object = &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, ResourceVersion: FormatRevision(revision)},
		Spec:     &machinev1.MachineSetSpec{DeletePolicy: *policy},
	}
	return ch, true
}

// mirror is the state that a watch has received.
type mirror struct {
	name    string
	f       *feed[*machinev1.MachineSet]
	want    func(*machinev1.MachineSet) bool
	objects map[object.Key]string // resourceVersion
}

// drain applies the waiting events, and checks that each is consistent with those before it.
func (m *mirror) drain(t *rapid.T) {
	steps, upTo, complete := m.f.take()
	if !complete {
		t.Fatalf("%s is lost", m.name)
	}
	for _, s := range steps {
		if s.revision > upTo {
			t.Fatalf("%s: a step of %d, complete up to %d", m.name, s.revision, upTo)
		}
		err := s.send(m.want, func(e Events[*machinev1.MachineSet]) error {
			for _, ev := range e.Events {
				k := object.KeyOf(ev.Object)
				if _, has := m.objects[k]; has != (ev.Type != Added) {
					t.Fatalf("%s: %s of %s, known: %v", m.name, ev.Type, k, has)
				}
				if ev.Type == Deleted {
					delete(m.objects, k)
				} else {
					m.objects[k] = ev.Object.GetMetadata().GetResourceVersion()
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A watch with any selection receives the same state as a list, at any time, each change once and in order.
func TestWhatAWatchIsToldIsWhatAListShows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := indexed()
		var mirrors []*mirror
		revision := c.Revision()
		key := rapid.Custom(func(t *rapid.T) object.Key {
			return object.Key{
				Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"),
				Name:      rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name"),
			}
		})
		policies := []*string{nil, proto.String(""), proto.String("Newest"), proto.String("Oldest")}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				revision += int64(rapid.IntRange(1, 3).Draw(t, "by"))
				var changes []Change[*machinev1.MachineSet]
				for _, k := range rapid.SliceOfNDistinct(key, 1, 3, rapid.ID).Draw(t, "keys") {
					if ch, ok := write(c, k, rapid.SampledFrom(policies).Draw(t, "policy"), revision); ok {
						changes = append(changes, ch)
					}
				}
				c.Step(revision, changes)
			},
			"watch": func(t *rapid.T) {
				namespace := rapid.SampledFrom([]string{"", "a"}).Draw(t, "namespace")
				fields := rapid.SampledFrom([]string{
					"", policyField + "=Newest", policyField + "=", "metadata.name=x",
					"metadata.name!=x",
				}).Draw(t, "fields")
				sel, err := ParseSelection("", fields)
				if err != nil {
					t.Fatal(err)
				}
				m := &mirror{
					name:    fmt.Sprintf("watch %d of %q %q", len(mirrors), namespace, fields),
					objects: map[object.Key]string{},
				}
				m.want = func(s *machinev1.MachineSet) bool {
					return (namespace == "" || s.GetMetadata().GetNamespace() == namespace) && sel.Matches(s)
				}
				of := c.interestOf(namespace, sel)
				all, v := c.snapshot(namespace, of)
				m.f, _ = c.newFeed(of, v.revision)
				for o := range all {
					if m.want(o) {
						m.objects[object.KeyOf(o)] = o.GetMetadata().GetResourceVersion()
					}
				}
				mirrors = append(mirrors, m)
			},
			"look": func(t *rapid.T) {
				if len(mirrors) > 0 {
					rapid.SampledFrom(mirrors).Draw(t, "watch").drain(t)
				}
			},
			"resume": func(t *rapid.T) {
				if len(mirrors) == 0 {
					return
				}
				m := rapid.SampledFrom(mirrors).Draw(t, "watch")
				m.drain(t)
				m.f.close()
				var known bool
				if m.f, known = c.newFeed(m.f.of, c.Revision()); !known {
					t.Fatalf("%s cannot resume", m.name)
				}
			},
			"": func(t *rapid.T) {
				for _, v := range []string{"", "Newest", "Oldest"} {
					got := c.ByIndex(policyField, v)
					want := slices.DeleteFunc(c.All(), func(s *machinev1.MachineSet) bool {
						return s.GetSpec().GetDeletePolicy() != v
					})
					if !slices.Equal(got, want) {
						t.Fatalf("ByIndex(%q) = %v, want %v", v, got, want)
					}
				}
			},
		})
		for _, m := range mirrors {
			m.drain(t)
			want := map[object.Key]string{}
			for _, o := range c.All() {
				if m.want(o) {
					want[object.KeyOf(o)] = o.GetMetadata().GetResourceVersion()
				}
			}
			if fmt.Sprint(m.objects) != fmt.Sprint(want) {
				t.Fatalf("%s received %v, want %v", m.name, m.objects, want)
			}
		}
	})
}

// A change is added only to the feeds whose interest includes it.
func TestAWatchIsWokenByWhatItMayWantAlone(t *testing.T) {
	c := indexed()
	feeds := map[string]*feed[*machinev1.MachineSet]{}
	for name, of := range map[string]interest{
		"all": {}, "namespace a": {byNamespace, "a"}, "namespace b": {byNamespace, "b"}, "x": {byName, "x"},
		"y":      {byName, "y"},
		"Newest": {policyField, "Newest"}, "Oldest": {policyField, "Oldest"}, "Random": {policyField, "Random"},
	} {
		feeds[name], _ = c.newFeed(of, c.Revision())
	}
	woken := func() string {
		var out []string
		for name, f := range feeds {
			select {
			case <-f.ready:
				out = append(out, name)
			default:
			}
			f.take()
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	for _, tc := range []struct {
		name   string
		policy *string
		want   string
	}{
		{"created", proto.String("Newest"), "Newest, all, namespace a, x"},
		{"moved to another value", proto.String("Oldest"), "Newest, Oldest, all, namespace a, x"},
		{"deleted", nil, "Oldest, all, namespace a, x"},
	} {
		revision := c.Revision() + 1
		ch, _ := write(c, object.Key{Namespace: "a", Name: "x"}, tc.policy, revision)
		c.Step(revision, []Change[*machinev1.MachineSet]{ch})
		if got := woken(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	for _, f := range feeds {
		f.close()
	}
	if len(c.feeds) != 0 {
		t.Errorf("feeds are left: %v", c.feeds)
	}
}

// A step may have the changes of many objects; a watch evaluates its selection for those of its interest alone.
func TestAWatchLooksAtNoChangesOfOthers(t *testing.T) {
	c := indexed()
	var changes []Change[*machinev1.MachineSet]
	before, _ := c.newFeed(interest{byName, "y"}, c.Revision())
	for _, name := range []string{"x", "y", "z"} {
		ch, _ := write(c, object.Key{Namespace: "a", Name: name}, proto.String("Newest"), 2)
		changes = append(changes, ch)
	}
	c.Step(2, changes)
	after, _ := c.newFeed(interest{byName, "y"}, 1)
	for name, f := range map[string]*feed[*machinev1.MachineSet]{"before the step": before, "from the ring": after} {
		var inspected []string
		want := func(o *machinev1.MachineSet) bool {
			inspected = append(inspected, o.GetMetadata().GetName())
			return true
		}
		portions, _, _ := f.take()
		sent := 0
		for _, p := range portions {
			err := p.send(want, func(e Events[*machinev1.MachineSet]) error { sent += len(e.Events); return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		if sent != 1 || !slices.Equal(inspected, []string{"y"}) {
			t.Errorf("%s: %d events, inspected %v", name, sent, inspected)
		}
	}
}

// Watches that fall behind the ring keep nothing in memory, and must list again.
func TestAWatchThatFallsBehindIsLost(t *testing.T) {
	c := indexed()
	slow, _ := c.newFeed(interest{}, c.Revision())
	large := strings.Repeat("x", 1<<20)
	for range ringBytes>>20 + 1 {
		revision := c.Revision() + 1
		ch, _ := write(c, object.Key{Namespace: "a", Name: "x"}, &large, revision)
		c.Step(revision, []Change[*machinev1.MachineSet]{ch})
	}
	if steps, _, complete := slow.take(); complete || len(steps) > 0 {
		t.Errorf("%d steps, complete: %v", len(steps), complete)
	}
	if c.held > ringBytes {
		t.Errorf("the ring has %d bytes", c.held)
	}
	if _, known := c.newFeed(interest{}, 1); known {
		t.Error("a watch may resume where the ring has forgotten changes")
	}
	next, _ := c.newFeed(interest{}, c.Revision())
	c.Replace(nil, c.Revision()+5)
	if _, _, complete := next.take(); complete {
		t.Error("a watch continues over changes that are not known")
	}
}

// The bytes of an event are made once, and read back as the event.
func TestTheBytesOfAnEventAreShared(t *testing.T) {
	c := indexed()
	policy := "Newest"
	ch, _ := write(c, object.Key{Namespace: "a", Name: "x"}, &policy, 2)
	one, _ := c.newFeed(interest{}, c.Revision())
	two, _ := c.newFeed(interest{byNamespace, "a"}, c.Revision())
	c.Step(2, []Change[*machinev1.MachineSet]{ch})
	methods, err := Methods(ch.Object.ProtoReflect().Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	frame := NewFrame(methods[Watch].Output())
	var bytes []*shared
	for _, f := range []*feed[*machinev1.MachineSet]{one, two} {
		steps, _, _ := f.take()
		err := steps[0].send(func(*machinev1.MachineSet) bool { return true }, func(e Events[*machinev1.MachineSet]) error {
			bytes = append(bytes, e.Events[0].shared)
			m, err := frameMessage(frame, e)
			if err != nil {
				return err
			}
			data, err := proto.Marshal(m)
			if err != nil {
				return err
			}
			got := &machinev1.WatchMachineSetsResponse{}
			if err := proto.Unmarshal(data, got); err != nil {
				return err
			}
			want := &machinev1.WatchMachineSetsResponse{
				Events:          []*machinev1.WatchMachineSetsResponse_Event{{Type: Added, Object: ch.Object}},
				ResourceVersion: "2",
			}
			if !proto.Equal(got, want) {
				t.Errorf("read back: %v, want %v", got, want)
			}
			if n, _, _ := protowire.ConsumeTag(e.Events[0].shared.bytes); n != frame.events.Number() {
				t.Errorf("field %d", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if bytes[0] != bytes[1] {
		t.Error("two watches made the bytes of an event twice")
	}
}

// A caller that arrives while a read runs gets the result of the next one: the running one may be older than the
// caller's own write.
func TestAReadBeginsAfterItsCaller(t *testing.T) {
	var r reads
	first, run := r.join()
	if !run {
		t.Fatal("the first caller does not run the read")
	}
	asked, answer := make(chan struct{}), make(chan int64)
	go r.run(func() (int64, error) {
		asked <- struct{}{}
		return <-answer, nil
	})
	<-asked
	second, run := r.join()
	third, again := r.join()
	if run || again || second == first || second != third {
		t.Errorf("run %v %v; the second shares the first: %v; the third shares the second: %v", run, again, second == first,
			second == third)
	}
	answer <- 1
	<-asked
	answer <- 2
	<-second.done
	if first.revision != 1 || second.revision != 2 {
		t.Errorf("revisions %d and %d", first.revision, second.revision)
	}
}

// manyIndexed returns a cache of objects that have so many values of an index, and the objects.
func manyIndexed(objects, values int) (*Cache[*machinev1.MachineSet], []*machinev1.MachineSet) {
	c, all := indexed(), make([]*machinev1.MachineSet, objects)
	for i := range all {
		k := object.Key{Namespace: "a", Name: fmt.Sprintf("set-%06d", i)}
		policy := fmt.Sprintf("node-%04d", i%values)
		ch, _ := write(c, k, &policy, 2)
		all[i] = ch.Object
	}
	c.Replace(all, 2)
	return c, all
}

// BenchmarkAListOfOneNode is what a list selects of 100,000 objects by a field with an index, as that of the pods of a
// node that is drained: 20 objects.
func BenchmarkAListOfOneNode(b *testing.B) {
	c, _ := manyIndexed(100_000, 5000)
	for b.Loop() {
		sel, err := ParseSelection("", policyField+"=node-0042")
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		objects, _ := c.snapshot("", c.interestOf("", sel))
		for o := range objects {
			if sel.Matches(o) {
				n++
			}
		}
		if n != 20 {
			b.Fatal(n)
		}
	}
}

// BenchmarkAChangeAmongWatches is one change of 100,000 objects, each watched with 19 others by one of 5,000 watches,
// from Step to the bytes of the watch's message.
func BenchmarkAChangeAmongWatches(b *testing.B) {
	const watches, objects = 5000, 100_000
	c, all := manyIndexed(objects, watches)
	methods, err := Methods(all[0].ProtoReflect().Descriptor())
	if err != nil {
		b.Fatal(err)
	}
	frame := NewFrame(methods[Watch].Output())
	ctx, cancel := context.WithCancel(b.Context())
	received, ended := make(chan struct{}, watches), make(chan error, watches)
	for i := range watches {
		sel, err := ParseSelection("", fmt.Sprintf("%s=node-%04d", policyField, i))
		if err != nil {
			b.Fatal(err)
		}
		f, _ := c.newFeed(c.interestOf("", sel), c.Revision())
		go func() {
			ended <- f.follow(ctx, func(s *machinev1.MachineSet) bool { return sel.Matches(s) }, false, false,
				func(e Events[*machinev1.MachineSet]) error {
					m, err := frameMessage(frame, e)
					if err != nil {
						return err
					}
					if _, err := proto.Marshal(m); err != nil {
						return err
					}
					received <- struct{}{}
					return nil
				})
		}()
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		o := all[n*7919%objects]
		revision := c.Revision() + 1
		policy := o.GetSpec().GetDeletePolicy()
		ch, _ := write(c, object.KeyOf(o), &policy, revision)
		c.Step(revision, []Change[*machinev1.MachineSet]{ch})
		<-received
	}
	cancel()
	for range watches {
		if err := <-ended; err != context.Canceled {
			b.Fatal(err)
		}
	}
}
