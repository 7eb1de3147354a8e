package collector

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// fate is what must happen to an object in the end.
type fate int

const (
	remains fate = iota
	goes         // and takes its dependents along
	leaves       // its dependents remain
	either       // that depends on what is noticed first
)

// thing is an object of the world, by its uid.
type thing struct {
	object object.Object
	owners []string        // uids
	kept   map[string]bool // owners that had to release it, since they were asked to while it had them
	asked  fate            // what its deletion was to do; remains if there was none
}

// world changes objects at random, as a user of another process does, and knows their fates.
type world struct {
	*tables
	t      *testing.T
	rand   *rand.Rand
	things map[string]*thing
	uids   []string // in the order of creation
}

func (w *world) fail(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

func (w *world) note(o object.Object) {
	uid := o.GetMetadata().GetUid()
	x := &thing{object: o, kept: map[string]bool{}}
	for _, r := range o.GetMetadata().GetOwnerReferences() {
		x.owners = append(x.owners, r.GetUid())
	}
	w.things[uid] = x
	w.uids = append(w.uids, uid)
}

// any returns an object of the past or the present.
func (w *world) any() *thing { return w.things[w.uids[w.rand.IntN(len(w.uids))]] }

// create creates an object, under a name that may have been used before.
func (w *world) create() {
	name := fmt.Sprint("n", w.rand.IntN(12))
	var o object.Object
	var err error
	switch w.rand.IntN(5) {
	case 0:
		o, err = w.namespaces.Create(w.t.Context(), &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name}})
	case 1:
		o, err = w.services.Create(w.t.Context(), &schedulingv1.Service{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		})
	default:
		m := &metav1.ObjectMeta{Namespace: "default", Name: name}
		for n := w.rand.IntN(4); n > 0 && len(w.uids) > 0; n-- {
			r := object.OwnedBy(w.any().object)
			r.Controller = nil
			if !slices.ContainsFunc(m.OwnerReferences, func(o *metav1.OwnerReference) bool { return o.Uid == r.Uid }) {
				m.OwnerReferences = append(m.OwnerReferences, r)
			}
		}
		o, err = w.budgets.Create(w.t.Context(), &schedulingv1.PodDisruptionBudget{
			Metadata: m, Spec: &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
		})
	}
	if err == nil { // else the name is taken
		w.note(o)
	}
}

// own gives a budget one more owner, perhaps one that it owns itself.
func (w *world) own() {
	x, owner := w.any(), w.any().object
	uid := owner.GetMetadata().GetUid()
	if _, is := x.object.(*schedulingv1.PodDisruptionBudget); !is || slices.Contains(x.owners, uid) {
		return
	}
	_, err := w.budgets.Modify(w.t.Context(), object.KeyOf(x.object), func(b *schedulingv1.PodDisruptionBudget) error {
		if b.GetMetadata().GetUid() != x.object.GetMetadata().GetUid() || object.Deleting(b) {
			return context.Canceled
		}
		r := object.OwnedBy(owner)
		r.Controller = nil
		b.Metadata.OwnerReferences = append(b.Metadata.OwnerReferences, r)
		return nil
	})
	if err == nil {
		x.owners = append(x.owners, uid)
	}
}

// remove deletes an object with any propagation.
func (w *world) remove() {
	x := w.any()
	m := x.object.GetMetadata()
	propagation, asked := "", goes
	if w.rand.IntN(2) == 0 {
		propagation, asked = resource.Orphan, leaves
	}
	pre, opts := &metav1.Preconditions{Uid: m.GetUid()}, resource.WriteOptions{Propagation: propagation}
	var err error
	switch x.object.(type) {
	case *schedulingv1.Namespace:
		_, err = w.namespaces.Delete(w.t.Context(), "", m.GetName(), pre, opts)
	case *schedulingv1.Service:
		_, err = w.services.Delete(w.t.Context(), "default", m.GetName(), pre)
		asked = leaves
	default:
		_, err = w.budgets.Delete(w.t.Context(), "default", m.GetName(), pre, opts)
	}
	if err == nil && x.asked == remains { // else it is gone already, or was asked before
		x.asked = asked
		for _, other := range w.things {
			other.kept[m.GetUid()] = asked == leaves && slices.Contains(other.owners, m.GetUid())
		}
	}
}

// fates returns the fate of each object. An owner that orphans releases the dependents that it has at that moment: one
// that comes or is disowned in the meantime may go or remain.
func (w *world) fates() map[string]fate {
	out := map[string]fate{}
	for changed := true; changed; {
		changed = false
		for _, uid := range w.uids {
			if f := w.fate(w.things[uid], out); f != out[uid] {
				out[uid], changed = f, true
			}
		}
	}
	return out
}

func (w *world) fate(x *thing, now map[string]fate) fate {
	if x.asked != remains {
		return x.asked
	}
	count, kept := map[fate]int{}, 0
	for _, uid := range x.owners {
		count[now[uid]]++
		if x.kept[uid] {
			kept++
		}
	}
	switch {
	case kept == len(x.owners), count[remains] > 0:
		return remains
	case count[goes] == len(x.owners):
		return goes
	}
	return either // an owner that left may have done so before the object came
}

// TestWhatIsOwnedGoesExactlyWithItsLastOwner has a user create, own and delete objects of all kinds at random, names
// again and owners in circles included, while a cache lags behind and the collector changes its process.
func TestWhatIsOwnedGoesExactlyWithItsLastOwner(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			st := etcdtest.Store(t)
			w := &world{tables: newTables(st), t: t, rand: rand.New(rand.NewPCG(seed, 0)), things: map[string]*thing{}}
			w.run(t.Context(), t, false)
			var holds []func() func()
			var collectors []*tables
			for range 2 {
				client, hold := etcdtest.LateClient(t)
				late, x := newTables(store.New(client, st.Prefix())), newTables(st)
				switch w.rand.IntN(6) {
				case 0:
					x.services = late.services
				case 1:
					x.namespaces = late.namespaces
				default:
					x.budgets = late.budgets
				}
				x.run(t.Context(), t, false)
				holds, collectors = append(holds, hold), append(collectors, x)
			}
			release, end := func() {}, func() {}
			for i := range 150 {
				switch n := w.rand.IntN(20); {
				case i%50 == 0: // another process leads
					end()
					end = collectors[i/50%2].collect(t)
				case n == 0:
					release()
					release = holds[w.rand.IntN(2)]()
				case n == 1:
					release()
				case n < 12 || len(w.uids) == 0:
					w.create()
				case n < 15:
					w.own()
				default:
					w.remove()
				}
			}
			release()
			defer func() { end() }()
			w.settles()
		})
	}
}

// collect has a collector work over the tables until end is called.
func (x *tables) collect(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	loops := controller.New(slog.New(slog.DiscardHandler))
	Add(loops, slog.New(slog.DiscardHandler), x.kinds()...)
	done := make(chan error, 1)
	go func() { done <- loops.Lead(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Lead = %v", err)
		}
	}
}

// settles waits until all objects have met their fates.
func (w *world) settles() {
	w.t.Helper()
	fates := w.fates()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		for _, k := range w.kinds() {
			w.fail("catch up", k.CatchUp(w.t.Context()))
		}
		wrong := w.wrong(fates)
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(end) {
			w.t.Fatal(wrong)
		}
	}
}

// wrong returns the objects that have not met their fates.
func (w *world) wrong(fates map[string]fate) []string {
	there := map[string]object.Object{}
	for _, k := range w.kinds() {
		for o := range k.Objects() {
			there[o.GetMetadata().GetUid()] = o
		}
	}
	var out []string
	for i, uid := range w.uids {
		o, is := there[uid]
		x := w.things[uid]
		switch f := fates[uid]; {
		case f == remains && !is:
			out = append(out, fmt.Sprintf("object %d %s is gone: %v", i, x.object.GetMetadata().GetName(), w.history(uid)))
		case f != remains && f != either && is:
			out = append(out, fmt.Sprintf("object %d %s is still there (%d asked %d, owners %v): %v", i,
				x.object.GetMetadata().GetName(), f, x.asked, w.history(uid), o.GetMetadata()))
		case is:
			for _, r := range o.GetMetadata().GetOwnerReferences() {
				if _, owned := there[r.GetUid()]; !owned {
					out = append(out, fmt.Sprintf("object %d %s has an owner that is gone", i, x.object.GetMetadata().GetName()))
				}
			}
		}
	}
	return out
}

// history says what is known of the owners of an object.
func (w *world) history(uid string) []string {
	var out []string
	for _, owner := range w.things[uid].owners {
		out = append(out, fmt.Sprintf("%d asked %d", slices.Index(w.uids, owner), w.things[owner].asked))
	}
	return out
}
