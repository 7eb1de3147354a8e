package controller

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
	"github.com/windlass-dev/windlass/services/node-configurator/server"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// noEvents drops events.
type noEvents struct{}

func (noEvents) Event(object.Object, string, string, string) {}

// clock is set by a test.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) get() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bench is a controller and the server of Plan RPCs over the same views, and an eviction-controller. The controller
// decides only when a test calls it.
type bench struct {
	*testing.T
	clock  *clock
	tables *kinds.Tables
	nodes  *resource.Table[*nodev1.Node] // of eviction-controller
	// Those of update-orchestrator, and their copy.
	windows *resource.Table[*updatev1.MaintenanceWindow]
	seen    *informer.Informer[*updatev1.MaintenanceWindow]
	peer    *Peer
	views   *Views
	c       *Controller
	pools   *server.Pools
}

const settles = time.Minute

func newBench(t *testing.T) *bench {
	t.Helper()
	log, ground := slog.New(slog.DiscardHandler), servetest.New(t)
	servetest.Clear(t, etcdtest.Client(t))
	p := ground.Process(serve.Config{Name: "eviction-controller"})
	st := store.New(etcdtest.Client(t), "/windlass/eviction-controller/")
	b := &bench{T: t, clock: &clock{now: time.Now().UTC()}}
	b.nodes = resource.NewTable(st, p.Validator, resource.Config[*nodev1.Node]{KeepStatus: true})
	drains := resource.NewTable(st, p.Validator, resource.Config[*nodev1.Drain]{})
	b.must(resource.Register(p.Services, &nodev1.NodeService_ServiceDesc, nil, b.nodes))
	b.must(resource.Register(p.Services, &nodev1.DrainService_ServiceDesc, nil, drains))
	b.windows = resource.NewTable(st, p.Validator, resource.Config[*updatev1.MaintenanceWindow]{
		Validate: maintenance.Faults,
	})
	b.must(resource.Register(p.Services, &updatev1.MaintenanceWindowService_ServiceDesc, nil, b.windows))
	address := p.Address()
	servetest.Run(t, p, b.nodes.Run, drains.Run, b.windows.Run)
	conn := ground.Dial(address, servetest.Admin())
	nodes, err := informer.New[*nodev1.Node](conn, log)
	b.must(err)
	drainsCopy, err := informer.New[*nodev1.Drain](conn, log)
	b.must(err)
	b.peer = NewPeer(conn, nodes, drainsCopy)
	b.tables = kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, nodes, log)
	b.seen, err = informer.New[*updatev1.MaintenanceWindow](conn, log)
	b.must(err)
	b.views = NewViews(b.tables, b.peer, b.seen, settles, b.clock.get)
	b.c = New(Config{Tables: b.tables, Peer: b.peer, Views: b.views, Events: noEvents{}, Log: log})
	b.pools = server.NewPools(b.tables, b.views)
	for _, run := range []func(context.Context) error{
		nodes.Run, drainsCopy.Run, b.seen.Run, b.tables.Configs.Run, b.tables.Pools.Run,
	} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{
		nodes.WaitSynced, drainsCopy.WaitSynced, b.seen.WaitSynced, b.tables.Configs.WaitSynced, b.tables.Pools.WaitSynced,
	} {
		b.must(wait(t.Context()))
	}
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// config creates a machine configuration, and waits until the views know that one has changed.
func (b *bench) config(name string) {
	b.Helper()
	doc := fmt.Sprintf(`{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/%s"}]}}`, name)
	file := &structpb.Struct{}
	b.must(file.UnmarshalJSON([]byte(doc)))
	_, err := b.tables.Configs.Create(b.Context(), &configv1.MachineConfig{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{plan.RoleLabel: "worker"}},
		Spec:     &configv1.MachineConfigSpec{Config: file},
	})
	b.must(err)
	servetest.Await(b.T, func() string {
		b.views.mu.Lock()
		defer b.views.mu.Unlock()
		if !b.views.changed.Equal(b.clock.get()) {
			return "the change is not known yet"
		}
		return ""
	})
}

// worker creates a node that is ready.
func (b *bench) worker(name string) {
	b.Helper()
	_, err := b.nodes.Create(b.Context(), &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/worker": ""}},
		Status:   &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	})
	b.must(err)
	b.node(name, func(n *nodev1.Node) { n.Spec = &nodev1.NodeSpec{} })
}

// pool creates the pool of the workers.
func (b *bench) pool() {
	b.Helper()
	_, err := b.tables.Pools.Create(b.Context(), &configv1.MachineConfigPool{
		Metadata: &metav1.ObjectMeta{Name: "worker"}, Spec: &configv1.MachineConfigPoolSpec{
			MachineConfigSelector: &metav1.LabelSelector{MatchLabels: map[string]string{plan.RoleLabel: "worker"}},
			NodeSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"node-role.kubernetes.io/worker": ""}},
		},
	})
	b.must(err)
}

// node changes a node at eviction-controller, and waits until its copy shows that.
func (b *bench) node(name string, f func(n *nodev1.Node)) {
	b.Helper()
	n, err := b.nodes.Modify(b.Context(), object.Key{Name: name}, func(n *nodev1.Node) error { f(n); return nil })
	b.must(err)
	revision, err := resource.ParseRevision(n.GetMetadata().GetResourceVersion())
	b.must(err)
	b.must(b.peer.Nodes.WaitRevision(b.Context(), revision))
}

func (b *bench) plan() *configv1.PlanMachineConfigPoolResponse {
	b.Helper()
	r, err := b.pools.PlanMachineConfigPool(b.Context(), &configv1.PlanMachineConfigPoolRequest{Name: "worker"})
	b.must(err)
	return r
}

// targeted returns the nodes with the target that the pool has now.
func (b *bench) targeted() []string {
	pool, _ := b.tables.Pools.Lookup("", "worker")
	var out []string
	for _, n := range b.nodes.All() {
		if n.GetMetadata().GetAnnotations()[plan.DesiredConfig] == pool.GetSpec().GetConfiguration().GetName() {
			out = append(out, n.GetMetadata().GetName())
		}
	}
	return out
}

// compare has the controller decide, and compares what it did with the plan from before, and what it waits for with the
// plan from after. It returns the plan from before.
func (b *bench) compare() *configv1.PlanMachineConfigPoolResponse {
	b.Helper()
	before, had := b.plan(), b.targeted()
	_, err := b.c.ReconcilePool(b.Context(), "worker")
	b.must(err)
	did := slices.DeleteFunc(b.targeted(), func(n string) bool {
		return len(before.GetNext()) == 0 && slices.Contains(had, n)
	})
	if next := slices.Sorted(slices.Values(before.GetNext())); !slices.Equal(next, did) {
		b.Errorf("the plan is to begin with %v, begun have %v", next, did)
	}
	_, err = b.c.ReconcilePool(b.Context(), "worker") // the status follows the nodes
	b.must(err)
	after := b.plan()
	pool, _ := b.tables.Pools.Lookup("", "worker")
	if diff := cmp.Diff(pool.GetStatus(), after.GetStatus(), protocmp.Transform()); diff != "" {
		b.Errorf("status (-stored +planned):\n%s", diff)
	}
	if len(after.GetActions()) > 0 {
		b.Errorf("actions are left: %v", after.GetActions())
	}
	if diff := cmp.Diff(names(before), names(after)); diff != "" {
		b.Errorf("held back (-before +after):\n%s", diff)
	}
	return before
}

func names(r *configv1.PlanMachineConfigPoolResponse) []string {
	var out []string
	for _, h := range r.GetHeldBack() {
		out = append(out, h.GetAction()+" "+h.GetObject().GetName())
	}
	return out
}

// TestAPoolIsDecidedAboutWhenItsWindowOpens has the controller say when it looks again: at the opening, and then the
// nodes begin.
func TestAPoolIsDecidedAboutWhenItsWindowOpens(t *testing.T) {
	b := newBench(t)
	w, err := b.windows.Create(t.Context(), &updatev1.MaintenanceWindow{
		Metadata: &metav1.ObjectMeta{Name: "nights"}, Spec: &updatev1.MaintenanceWindowSpec{
			Schedule: fmt.Sprintf("0 %d * * *", b.clock.get().Add(6*time.Hour).Hour()), Duration: "1h",
		},
	})
	b.must(err)
	revision, err := resource.ParseRevision(w.GetMetadata().GetResourceVersion())
	b.must(err)
	b.must(b.seen.WaitRevision(t.Context(), revision))
	b.config("50-base")
	b.pool()
	b.worker("w1")
	b.clock.pass(settles)
	b.compare() // its first configuration
	b.node("w1", func(n *nodev1.Node) {
		n.Metadata.Annotations[plan.CurrentConfig] = n.Metadata.Annotations[plan.DesiredConfig]
		n.Metadata.Annotations[plan.State] = "Done"
	})
	b.config("60-more")
	b.clock.pass(settles)
	if p := b.compare(); len(p.GetNext()) > 0 {
		t.Fatalf("%v begin while the window is closed", p.GetNext())
	}
	times, err := maintenance.At(w, b.clock.get())
	b.must(err)
	again, err := b.c.ReconcilePool(t.Context(), "worker")
	b.must(err)
	if !again.Equal(times.Opens) {
		t.Errorf("it is decided again at %v, the window opens at %v", again, times.Opens)
	}
	b.clock.pass(times.Opens.Sub(b.clock.get()))
	if p := b.compare(); !slices.Equal(p.GetNext(), []string{"w1"}) {
		t.Errorf("%v begin when the window opens", p.GetNext())
	}
}

// TestThePlanIsWhatIsDone asks for plans of a pool, has the controller decide about the same state, and asks again:
// each plan names the nodes that the controller has begin, and then what it waits for.
func TestThePlanIsWhatIsDone(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"w1", "w2", "w3"} {
		b.worker(name)
	}
	b.pool()

	b.config("50-base")
	if r := b.compare(); len(r.GetNext()) > 0 {
		t.Errorf("while changes settle the plan is to begin with %v", r.GetNext())
	}
	pool, _ := b.tables.Pools.Lookup("", "worker")
	if wake, err := b.c.ReconcilePool(t.Context(), "worker"); err != nil || !wake.Equal(b.clock.get().Add(settles)) ||
		pool.GetSpec().GetConfiguration() != nil {
		t.Errorf("while changes settle the controller waits until %v, %v, and the pool is %v", wake, err, pool)
	}

	b.clock.pass(settles)
	if r := b.compare(); len(r.GetNext()) != 3 {
		t.Errorf("nodes without a configuration: the plan is to begin with %v", r.GetNext())
	}
	for _, name := range b.targeted() {
		b.node(name, func(n *nodev1.Node) {
			marks := n.Metadata.Annotations
			marks[plan.CurrentConfig], marks[plan.State] = marks[plan.DesiredConfig], "Done"
		})
	}
	if r := b.compare(); len(r.GetNext()) > 0 || len(r.GetHeldBack()) > 0 {
		t.Errorf("a pool that is updated: the plan is %v", r)
	}

	b.config("60-more")
	b.clock.pass(settles)
	if r := b.compare(); len(r.GetNext()) != 1 || len(r.GetHeldBack()) != 2 {
		t.Errorf("a change: the plan is %v", r)
	}
}
