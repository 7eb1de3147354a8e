package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

const patience = 2 * time.Minute // for what must happen; a busy machine needs some of it

// cluster is the nodes of another service.
type cluster struct {
	*resource.Cache[*nodev1.Node]
	late chan struct{} // what all but the first to catch up wait for, if it is not nil
	once sync.Once
	made string // a node that is not in the copy yet
}

func clusterOf(names ...string) *cluster {
	c := &cluster{Cache: resource.NewCache[*nodev1.Node]()}
	var nodes []*nodev1.Node
	for _, name := range names {
		nodes = append(nodes, &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}})
	}
	c.Replace(nodes, 1)
	return c
}

func (c *cluster) HasNode(name string) bool {
	_, ok := c.Lookup("", name)
	return ok
}

func (c *cluster) Exists(_ context.Context, name string) (bool, error) {
	return name == c.made || c.HasNode(name), nil
}

func (c *cluster) CatchUp(ctx context.Context) error {
	first := c.late == nil
	c.once.Do(func() { first = true })
	if first {
		return nil
	}
	select {
	case <-c.late:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// remove deletes a node.
func (c *cluster) remove(name string) {
	node, _ := c.Lookup("", name)
	c.Step(c.Revision()+1, []resource.Change[*nodev1.Node]{
		{Key: object.Key{Name: name}, Object: node, Previous: node, Existed: true, Deleted: true},
	})
}

// followed returns tables over a store, whose caches are kept up to date.
func followed(t *testing.T, nodes *cluster, st *store.Store) *kinds.Tables {
	t.Helper()
	tables := kinds.New(kinds.Config{
		Store: st, Validator: protovalidate.GlobalValidator, Nodes: nodes,
		MayBind: func(identity.Caller, string, string) bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return tables
}

// deleted returns a function that waits for the deletion, from now on, of an object.
func deleted[T object.Object](t *testing.T, table *resource.Table[T], key object.Key) (wait func()) {
	gone := make(chan struct{})
	table.Subscribe(func(ch resource.Change[T]) {
		if ch.Deleted && ch.Key == key {
			close(gone)
		}
	})
	return func() {
		t.Helper()
		select {
		case <-gone:
		case <-time.After(patience):
			left, _ := table.Lookup(key.Namespace, key.Name)
			t.Fatalf("it still exists: %v", left)
		}
	}
}

func pod(name, node string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: &schedulingv1.PodSpec{
			NodeName: node, Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
		},
	}
}

// served is a service whose methods are called directly.
type served struct {
	desc *grpc.ServiceDesc
	impl any
}

func (s *served) RegisterService(desc *grpc.ServiceDesc, impl any) { s.desc, s.impl = desc, impl }

func (s *served) call(ctx context.Context, name string, r proto.Message) error {
	i := slices.IndexFunc(s.desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	_, err := s.desc.Methods[i].Handler(s.impl, ctx, func(m any) error {
		proto.Merge(m.(proto.Message), r)
		return nil
	}, nil)
	return err
}

// TestANamespaceGoesHoweverItsDeletionWasAskedFor deletes a namespace with the propagation Orphan: its contents cannot
// remain without it, so they go all the same.
func TestANamespaceGoesHoweverItsDeletionWasAskedFor(t *testing.T) {
	tables := followed(t, clusterOf(), etcdtest.Store(t))
	var s served
	if err := resource.Register(&s, &schedulingv1.NamespaceService_ServiceDesc, nil, tables.Namespaces); err != nil {
		t.Fatal(err)
	}
	gone := deleted(t, tables.Namespaces, object.Key{Name: "mine"})
	go func() { _ = NewGarbage(tables, clusterOf(), quiet{}, slog.New(slog.DiscardHandler)).Lead(t.Context()) }()
	if _, err := tables.Namespaces.Create(t.Context(), &schedulingv1.Namespace{
		Metadata: &metav1.ObjectMeta{Name: "mine"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Budgets.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "mine", Name: "b"},
		Spec:     &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.call(t.Context(), "DeleteNamespace", &schedulingv1.DeleteNamespaceRequest{
		Name: "mine", PropagationPolicy: "Orphan",
	}); err != nil {
		t.Fatal(err)
	}
	gone()
	if n := len(tables.Budgets.Keys()); n != 0 {
		t.Errorf("%d budgets are left", n)
	}
}

// A namespace may go while another process, whose cache still has it, creates something in it.
func TestContentsOfANamespaceThatIsGoneGo(t *testing.T) {
	st := etcdtest.Store(t)
	away := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.PodDisruptionBudget]{})
	tables := followed(t, clusterOf(), st)
	go func() { _ = away.Run(t.Context()) }()
	gone := deleted(t, tables.Budgets, object.Key{Namespace: "never", Name: "b"})
	go func() { _ = NewGarbage(tables, clusterOf(), quiet{}, slog.New(slog.DiscardHandler)).Lead(t.Context()) }()
	for _, ns := range []string{"default", "never"} { // default always exists, even before the collector creates it
		if _, err := away.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Namespace: ns, Name: "b"},
			Spec:     &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	gone()
	if _, ok := tables.Budgets.Lookup("default", "b"); !ok {
		t.Error("that of a built-in namespace is gone, too")
	}
}

// The caches of two kinds show different moments. A namespace that is gone while some of its contents are left would
// give them to the next namespace of its name.
func TestANamespaceStaysUntilAllThatIsInItIsGone(t *testing.T) {
	st := etcdtest.Store(t)
	away := resource.NewTable(st, protovalidate.GlobalValidator, resource.Config[*schedulingv1.PodDisruptionBudget]{})
	go func() { _ = away.Run(t.Context()) }()
	client, hold := etcdtest.LateClient(t)
	tables := followed(t, clusterOf(), store.New(client, st.Prefix()))
	if _, err := tables.Namespaces.Create(t.Context(), &schedulingv1.Namespace{
		Metadata: &metav1.ObjectMeta{Name: "mine"},
	}); err != nil {
		t.Fatal(err)
	}
	deleting, err := tables.Namespaces.Delete(t.Context(), "", "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := NewGarbage(tables, clusterOf(), quiet{}, slog.New(slog.DiscardHandler))
	if err := g.changeNamespace(t.Context(), deleting, func(*metav1.ObjectMeta) {}); err != nil { // its phase
		t.Fatal(err)
	}
	release := hold()
	if _, err := away.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "mine", Name: "b"},
		Spec:     &schedulingv1.PodDisruptionBudgetSpec{MinAvailable: structpb.NewNumberValue(1)},
	}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = g.reconcileNamespace(short, "mine")
	ns, getErr := tables.Namespaces.Get(t.Context(), "", "mine")
	if err == nil || getErr != nil || len(ns.GetMetadata().GetFinalizers()) == 0 {
		t.Errorf("it was let go though its contents are not known: %v; it is %v, %v", err, ns, getErr)
	}
	release()
	gone := deleted(t, tables.Namespaces, object.Key{Name: "mine"})
	go func() { _ = g.Lead(t.Context()) }()
	gone()
	if _, err := away.Get(t.Context(), "mine", "b"); rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		t.Errorf("the budget: %v, want it gone with its namespace", err)
	}
}

// The nodes may change between the beginnings of two loops: what one has seen already reaches the other no more.
func TestPodsOfANodeThatIsGoneGo(t *testing.T) {
	nodes := clusterOf("stays", "goes")
	nodes.late = make(chan struct{})
	tables := followed(t, nodes, etcdtest.Store(t))
	g := NewGarbage(tables, nodes, quiet{}, slog.New(slog.DiscardHandler))
	for name, node := range map[string]string{
		"a": "", "b": "", "before": "", "c": "stays", "d": "", "early": "joins",
	} {
		if _, err := tables.Pods.Create(t.Context(), pod(name, node)); err != nil {
			t.Fatal(err)
		}
	}
	var gone []func()
	for _, bound := range [][2]string{{"before", "gone"}, {"a", "goes"}, {"b", "goes"}} {
		key := object.Key{Namespace: "default", Name: bound[0]}
		if _, err := tables.Pods.Modify(t.Context(), key, func(p *schedulingv1.Pod) error {
			return tables.Bind(p, "", bound[1])
		}, resource.WriteOptions{Own: true}); err != nil {
			t.Fatal(err)
		}
		gone = append(gone, deleted(t, tables.Pods, key))
	}
	go func() { _ = g.Lead(t.Context()) }()
	gone[0]() // so what removes pods runs
	nodes.remove("goes")
	close(nodes.late)
	gone[1]()
	gone[2]()
	if left := tables.Pods.Keys(); !slices.Equal(left, []string{"default/c", "default/d", "default/early"}) {
		t.Errorf("left are %v", left)
	}
}

// A node that its owner has made again, and that is not in the copy yet, may be deleted before it is.
func TestAPodWhoseNodeIsNotInTheCopyIsDecidedAgain(t *testing.T) {
	nodes := clusterOf()
	nodes.made = "again"
	tables := followed(t, nodes, etcdtest.Store(t))
	if _, err := tables.Pods.Create(t.Context(), pod("a", "again")); err != nil {
		t.Fatal(err)
	}
	g := NewGarbage(tables, nodes, quiet{}, slog.New(slog.DiscardHandler))
	if _, err := g.reconcileStranded(t.Context(), "default/a"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("it is not decided again: %v", err)
	}
}
