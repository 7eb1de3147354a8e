package collector

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const (
	patience = 2 * time.Minute // for what must happen; a busy machine needs some of it
	keeps    = "example.com/keeps"
)

// tables are namespaces, services and budgets, which own budgets here. A service keeps its dependents.
type tables struct {
	namespaces *resource.Table[*schedulingv1.Namespace]
	services   *resource.Table[*schedulingv1.Service]
	budgets    *resource.Table[*schedulingv1.PodDisruptionBudget]
}

func newTables(st *store.Store) *tables {
	return &tables{
		resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.Namespace]{Owns: true}),
		resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.Service]{
			Finalizers: []string{keeps},
		}),
		resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.PodDisruptionBudget]{Owns: true}),
	}
}

func (x *tables) kinds() []Kind {
	return []Kind{
		{Untyped: x.namespaces.Untyped()}, {Untyped: x.services.Untyped(), Keeps: keeps}, {Untyped: x.budgets.Untyped()},
	}
}

// run keeps the caches up to date, and has a collector run if collects is set, until the test or ctx ends.
func (x *tables) run(ctx context.Context, t *testing.T, collects bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	for _, k := range x.kinds() {
		go func() { _ = k.Run(ctx) }()
		if err := k.WaitSynced(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if !collects {
		return
	}
	loops := controller.New(slog.New(slog.DiscardHandler))
	Add(loops, slog.New(slog.DiscardHandler), x.kinds()...)
	go func() { _ = loops.Lead(ctx) }()
}

func (x *tables) namespace(t *testing.T, name string) *schedulingv1.Namespace {
	t.Helper()
	out, err := x.namespaces.Create(t.Context(), &schedulingv1.Namespace{Metadata: &metav1.ObjectMeta{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// budget creates a budget that owners own.
func (x *tables) budget(t *testing.T, name string, owners ...object.Object) *schedulingv1.PodDisruptionBudget {
	t.Helper()
	m := &metav1.ObjectMeta{Namespace: "default", Name: name}
	for _, o := range owners {
		r := object.OwnedBy(o)
		r.Controller = nil
		m.OwnerReferences = append(m.OwnerReferences, r)
	}
	out, err := x.budgets.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
		Metadata: m, Spec: &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (x *tables) deleteNamespace(t *testing.T, name, propagation string) {
	t.Helper()
	_, err := x.namespaces.Delete(t.Context(), "", name, nil, resource.WriteOptions{Propagation: propagation})
	if err != nil {
		t.Fatal(err)
	}
}

// follow calls f with the budgets that there are, by name with the number of their owners, until it returns true.
func (x *tables) follow(t *testing.T, f func(owners map[string]int) bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	x.budgets.Subscribe(func(resource.Change[*schedulingv1.PodDisruptionBudget]) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	deadline := time.After(patience)
	for {
		have := map[string]int{}
		for b := range x.budgets.Objects() {
			have[b.GetMetadata().GetName()] = len(b.GetMetadata().GetOwnerReferences())
		}
		if f(have) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("budgets with the number of their owners: %v", have)
		}
	}
}

// gone waits until there is no budget of a name.
func (x *tables) gone(t *testing.T, name string) {
	t.Helper()
	x.follow(t, func(have map[string]int) bool { _, ok := have[name]; return !ok })
}

func TestAnObjectGoesWithItsLastOwner(t *testing.T) {
	x := newTables(etcdtest.Store(t))
	x.run(t.Context(), t, true)
	a, b := x.namespace(t, "a"), x.namespace(t, "b")
	x.budget(t, "of-both", a, b)
	x.budget(t, "of-its-dependent", x.budget(t, "of-b", b))
	x.budget(t, "of-none")
	foreign := x.budget(t, "of-another-kind")
	if _, err := x.budgets.Modify(t.Context(), object.KeyOf(foreign), func(p *schedulingv1.PodDisruptionBudget) error {
		p.Metadata.OwnerReferences = []*metav1.OwnerReference{{ApiVersion: "v1", Kind: "Pod", Name: "p", Uid: "gone"}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x.deleteNamespace(t, "a", "")
	x.follow(t, func(have map[string]int) bool { return have["of-both"] == 1 })
	x.deleteNamespace(t, "b", "")
	x.follow(t, func(have map[string]int) bool { return len(have) == 2 })
	for _, name := range []string{"of-none", "of-another-kind"} {
		if _, ok := x.budgets.Lookup("default", name); !ok {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestDependentsRemainIfTheirOwnerOrphansOrKeepsThem(t *testing.T) {
	x := newTables(etcdtest.Store(t))
	x.run(t.Context(), t, true)
	keeper, err := x.services.Create(t.Context(), &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	orphaning := x.namespace(t, "a")
	x.budget(t, "x", keeper)
	x.budget(t, "y", orphaning, x.budget(t, "other"))
	gone := make(chan string, 2)
	x.namespaces.Subscribe(func(ch resource.Change[*schedulingv1.Namespace]) {
		if ch.Deleted {
			gone <- "a"
		}
	})
	x.services.Subscribe(func(ch resource.Change[*schedulingv1.Service]) {
		if ch.Deleted {
			gone <- "s"
		}
	})
	x.deleteNamespace(t, "a", resource.Orphan)
	if _, err := x.services.Delete(t.Context(), "default", "s", nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatal("an owner still exists")
		}
	}
	x.follow(t, func(have map[string]int) bool { return have["x"] == 0 && have["y"] == 1 && len(have) == 3 })
	// A service that went without its finalizer keeps its dependents, too.
	x.budget(t, "z", &schedulingv1.Service{ApiVersion: "v1", Kind: "Service", Metadata: &metav1.ObjectMeta{
		Name: "never", Uid: "never",
	}})
	x.follow(t, func(have map[string]int) bool { n, ok := have["z"]; return ok && n == 0 })
}

// A watch that breaks shows an owner that was deleted and created again in the meantime only as the second one.
func TestDependentsOfAnOwnerThatWasReplacedUnseenAreCollected(t *testing.T) {
	st := etcdtest.Store(t)
	x, away := newTables(st), newTables(st)
	away.run(t.Context(), t, false)
	go func() { _ = x.budgets.Run(t.Context()) }()
	go func() { _ = x.services.Run(t.Context()) }()
	watched, lose := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { _ = x.namespaces.Run(watched); close(stopped) }()
	if err := x.namespaces.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := x.namespace(t, "a")
	loops := controller.New(slog.New(slog.DiscardHandler))
	Add(loops, slog.New(slog.DiscardHandler), x.kinds()...)
	go func() { _ = loops.Lead(t.Context()) }()
	x.budget(t, "old", first)
	// Once a budget without an owner is collected, the collector has decided on the one before it.
	x.budget(t, "probe", &schedulingv1.Namespace{ApiVersion: "v1", Kind: "Namespace", Metadata: &metav1.ObjectMeta{
		Name: "never", Uid: "never",
	}})
	x.gone(t, "probe")
	lose()
	<-stopped

	away.deleteNamespace(t, "a", "")
	second := away.namespace(t, "a")
	changes := make(chan resource.Change[*schedulingv1.Namespace], 10)
	x.namespaces.Subscribe(func(ch resource.Change[*schedulingv1.Namespace]) { changes <- ch })
	<-changes // what the cache has from before
	away.budget(t, "new", second)
	go func() { _ = x.namespaces.Run(t.Context()) }()
	x.gone(t, "old")
	for i, want := range []*schedulingv1.Namespace{first, second} {
		if ch := <-changes; ch.Deleted != (i == 0) || ch.Object.GetMetadata().GetUid() != want.GetMetadata().GetUid() {
			t.Errorf("change %v: want the deletion of the first and the creation of the second", ch)
		}
	}
	if _, ok := x.budgets.Lookup("default", "new"); !ok {
		t.Error("the dependent of the second owner is gone")
	}
}

// lagging returns tables of which that of the budgets shows nothing new until it is released.
func lagging(t *testing.T, st *store.Store) (x *tables, release func()) {
	t.Helper()
	client, hold := etcdtest.LateClient(t)
	x = newTables(st)
	x.budgets = newTables(store.New(client, st.Prefix())).budgets
	x.run(t.Context(), t, false)
	return x, hold()
}

// The caches of two kinds show different moments: that of the dependents may lag behind that of the owner.
func TestADependentThatTheCacheDoesNotShowYetIsReleasedBeforeItsOwner(t *testing.T) {
	st := etcdtest.Store(t)
	away := newTables(st)
	away.run(t.Context(), t, false)
	x, release := lagging(t, st)
	away.budget(t, "x", away.namespace(t, "a"))
	x.deleteNamespace(t, "a", resource.Orphan)

	c := &Collector{log: slog.New(slog.DiscardHandler), kinds: x.kinds()}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.reconcile(short, "namespaces|a"); err == nil {
		t.Error("the owner was released though the cache of its dependents is behind")
	}
	release()
	if _, err := c.reconcile(t.Context(), "namespaces|a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconcile(t.Context(), "poddisruptionbudgets.policy|default/x"); err != nil {
		t.Fatal(err)
	}
	b, err := away.budgets.Get(t.Context(), "default", "x")
	if err != nil || len(b.GetMetadata().GetOwnerReferences()) > 0 {
		t.Errorf("the dependent is %v, %v; want it without its owner", b, err)
	}
	if _, err := away.namespaces.Get(t.Context(), "", "a"); rpcerr.Reason(err) !=
		metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("the owner: %v, want it gone", err)
	}
}

// A leader before may have deleted an owner whose dependents this process does not know yet.
func TestTheCollectorBeginsWithAllThatWasWrittenBefore(t *testing.T) {
	for _, k := range newTables(etcdtest.Store(t)).kinds() {
		if _, ok := any(k).(interface {
			CatchUp(ctx context.Context) error
		}); !ok {
			t.Errorf("%s are not caught up with", k.Type().GetPlural())
		}
	}
}

func TestWhatItsOwnerReleasedSinceThenRemains(t *testing.T) {
	x := newTables(etcdtest.Store(t))
	x.run(t.Context(), t, false)
	c := &Collector{log: slog.New(slog.DiscardHandler), kinds: x.kinds()}
	gone := &schedulingv1.Namespace{ApiVersion: "v1", Kind: "Namespace", Metadata: &metav1.ObjectMeta{
		Name: "web", Uid: "gone",
	}}
	for _, name := range []string{"stays", "goes"} {
		seen := x.budget(t, name, gone)
		if name == "stays" {
			if _, err := x.budgets.Modify(t.Context(), object.KeyOf(seen),
				func(b *schedulingv1.PodDisruptionBudget) error {
					b.Metadata.OwnerReferences = nil
					return nil
				}); err != nil {
				t.Fatal(err)
			}
		}
		wake, err := c.collect(t.Context(), x.kinds()[2], seen)
		if again := errors.Is(err, store.ErrConflict); !wake.IsZero() || err != nil && !again || again != (name == "stays") {
			t.Errorf("%s: decided on again: %v, at %v: %v", name, again, wake, err)
		}
		_, err = x.budgets.Get(t.Context(), "default", name)
		if there := rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND; there != (name == "stays") {
			t.Errorf("%s: it exists: %v", name, there)
		}
	}
}

// A reference names no namespace: the owner is in that of the object.
func TestAnObjectWithoutANamespaceIsNotCollectedForAnOwnerThatHasOne(t *testing.T) {
	x := newTables(etcdtest.Store(t))
	x.run(t.Context(), t, false)
	r := object.OwnedBy(x.budget(t, "b"))
	c := &Collector{log: slog.New(slog.DiscardHandler), kinds: x.kinds()}
	if o, err := c.owner(t.Context(), "", r); err != nil || o.Gone {
		t.Errorf("owner = %v, %v", o, err)
	}
	r.Name = "another"
	if o, err := c.owner(t.Context(), "default", r); err != nil || !o.Gone {
		t.Errorf("one that does not exist in the namespace of the object = %v, %v", o, err)
	}
}

// A cache that does not show an owner yet is not believed.
func TestOnlyEtcdSaysThatAnOwnerIsGone(t *testing.T) {
	st := etcdtest.Store(t)
	x, away := newTables(st), newTables(st)
	away.run(t.Context(), t, false)
	child := away.budget(t, "x", away.namespace(t, "a"))
	c := &Collector{log: slog.New(slog.DiscardHandler), kinds: x.kinds()} // its caches are empty
	o, err := c.owner(t.Context(), "default", child.GetMetadata().GetOwnerReferences()[0])
	if err != nil || o.Gone {
		t.Errorf("owner = %v, %v", o, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o, err := c.owner(ctx, "default", child.GetMetadata().GetOwnerReferences()[0]); err == nil {
		t.Errorf("etcd did not answer, yet the owner is %v", o)
	}
}

// The kind of an owner may join after its dependents, when its definition is read later.
func TestTheDependentsOfAKindThatJoinsLaterAreCollected(t *testing.T) {
	x := newTables(etcdtest.Store(t))
	x.run(t.Context(), t, false)
	kinds := x.kinds()
	loops := controller.New(slog.New(slog.DiscardHandler))
	c := Add(loops, slog.New(slog.DiscardHandler), kinds[1:]...)
	go func() { _ = loops.Lead(t.Context()) }()
	x.budget(t, "of-a-namespace", &schedulingv1.Namespace{
		ApiVersion: "v1", Kind: "Namespace", Metadata: &metav1.ObjectMeta{Name: "never", Uid: "never"},
	})
	// Once a budget without an owner is collected, the collector has decided on the one before it.
	x.budget(t, "probe", &schedulingv1.PodDisruptionBudget{
		ApiVersion: "policy/v1", Kind: "PodDisruptionBudget", Metadata: &metav1.ObjectMeta{Name: "never", Uid: "never"},
	})
	x.gone(t, "probe")
	if _, ok := x.budgets.Lookup("default", "of-a-namespace"); !ok {
		t.Fatal("an owner of an unknown kind was not assumed to exist")
	}
	c.Join(t.Context(), kinds[0])
	x.gone(t, "of-a-namespace")
}
