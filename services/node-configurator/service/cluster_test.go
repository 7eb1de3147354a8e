package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/maintenance"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// cluster is a node-configurator with an eviction-controller that keeps nodes and drains as the real one does.
type cluster struct {
	t         *testing.T
	ground    *servetest.Ground
	settle    time.Duration
	nodes     *resource.Table[*nodev1.Node]
	drains    *resource.Table[*nodev1.Drain]
	evictions string // address of eviction-controller
	updates   string // address of update-orchestrator
	windows   *resource.Table[*updatev1.MaintenanceWindow]
	dir       string
	address   string
	guardian  string
	admin     *grpc.ClientConn
	operator  func(context.Context) clusteroperator.State
	stop      func()

	mu     sync.Mutex
	held   map[string]bool // nodes whose drains do not succeed
	risk   bool            // the guardian refuses the permit
	taking func()          // called once, when the permit is asked for next
	freed  int             // times that the permit was given back
	holder string          // of the permit, if it was taken beside a drain
	deaf   bool            // the guardian does not answer that it is given back
	asked  int             // how often it was asked
	peak   int             // most nodes that were unschedulable at once
	agents map[string]*agent
}

// start runs both over the embedded etcd, with real certificates and real interceptors.
func start(t *testing.T) *cluster {
	t.Helper()
	return startSettling(t, 50*time.Millisecond)
}

func startSettling(t *testing.T, settle time.Duration) *cluster {
	t.Helper()
	c := &cluster{
		t: t, ground: servetest.New(t), settle: settle, dir: t.TempDir(), held: map[string]bool{},
		agents: map[string]*agent{},
	}
	servetest.Clear(t, etcdtest.Client(t))
	c.startEvictions()
	c.startUpdates(true)
	p := c.ground.Process(serve.Config{Name: etcdGuardian})
	etcdv1.RegisterQuorumServiceServer(p.Services, &guard{c: c})
	c.guardian = p.Address()
	servetest.Run(t, p)
	c.startConfigurator()
	return c
}

// guard is the guardian: it gives the permit unless the quorum is at risk.
type guard struct {
	etcdv1.UnimplementedQuorumServiceServer
	c *cluster
}

func (g *guard) AcquireDisruptionPermit(_ context.Context, r *etcdv1.AcquireDisruptionPermitRequest) (
	*etcdv1.DisruptionPermit, error,
) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	g.c.asked++
	if f := g.c.taking; f != nil {
		g.c.taking = nil
		g.c.mu.Unlock()
		f()
		g.c.mu.Lock()
	}
	if g.c.risk {
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_QUORUM_AT_RISK, "machine "+r.GetMachine().GetName(),
			"member m9 does not answer")
	}
	if d, ok := g.c.drains.Lookup("", plan.DrainName(r.GetMachine().GetName())); !ok || !plan.Emptied(d) {
		g.c.holder = identity.ServiceUser("node-configurator")
	}
	return &etcdv1.DisruptionPermit{Machine: r.GetMachine(), Held: true}, nil
}

func (g *guard) ReleaseDisruptionPermit(_ context.Context, r *etcdv1.ReleaseDisruptionPermitRequest) (
	*etcdv1.ReleaseDisruptionPermitResponse, error,
) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	if g.c.deaf {
		return nil, rpcerr.Unavailable("no majority of etcd answers")
	}
	if g.c.holder != "" && (r.GetHolder() == "" || r.GetHolder() == g.c.holder) {
		g.c.freed++
		g.c.holder = ""
	}
	return &etcdv1.ReleaseDisruptionPermitResponse{}, nil
}

// startUpdates runs update-orchestrator, which has the maintenance windows; one of an earlier release serves none.
func (c *cluster) startUpdates(windows bool) {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: updateOrchestrator})
	st := store.New(etcdtest.Client(c.t), "/windlass/update-orchestrator/")
	c.windows = resource.NewTable(st, p.Validator, resource.Config[*updatev1.MaintenanceWindow]{
		Validate: maintenance.Faults,
	})
	if windows {
		if err := resource.Register(p.Services, &updatev1.MaintenanceWindowService_ServiceDesc, nil, c.windows); err != nil {
			c.t.Fatal(err)
		}
	}
	c.updates = p.Address()
	servetest.Run(c.t, p, c.windows.Run)
	if err := c.windows.WaitSynced(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) startEvictions() {
	c.t.Helper()
	p := c.ground.Process(serve.Config{Name: evictionController})
	st := store.New(etcdtest.Client(c.t), "/windlass/eviction-controller/")
	c.nodes = resource.NewTable(st, p.Validator, resource.Config[*nodev1.Node]{KeepStatus: true})
	c.drains = resource.NewTable(st, p.Validator, resource.Config[*nodev1.Drain]{
		Finalizers: []string{"windlass.dev/drain"},
	})
	for _, err := range []error{
		resource.Register(p.Services, &nodev1.NodeService_ServiceDesc, nil, c.nodes),
		resource.Register(p.Services, &nodev1.DrainService_ServiceDesc, nil, c.drains),
	} {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	changed := make(chan string, 1024)
	c.drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) { changed <- ch.Key.Name })
	c.evictions = p.Address()
	servetest.Run(c.t, p, c.nodes.Run, c.drains.Run, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case name := <-changed:
				c.drain(ctx, name)
			}
		}
	})
	for _, wait := range []func(context.Context) error{c.nodes.WaitSynced, c.drains.WaitSynced} {
		if err := wait(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
}

// drain takes a drain one step further: it cordons, succeeds unless it is held, and uncordons when it is deleted.
func (c *cluster) drain(ctx context.Context, name string) {
	d, ok := c.drains.Lookup("", name)
	if !ok {
		return
	}
	node := d.GetSpec().GetNodeName()
	deleting := object.Deleting(d)
	_, _ = c.nodes.Modify(ctx, object.Key{Name: node}, func(n *nodev1.Node) error {
		if n.Spec == nil {
			n.Spec = &nodev1.NodeSpec{}
		}
		n.Spec.Unschedulable = proto.Bool(!deleting)
		return nil
	})
	down := 0
	for _, n := range c.nodes.All() {
		if n.GetSpec().GetUnschedulable() {
			down++
		}
	}
	c.mu.Lock()
	held := c.held[node]
	c.peak = max(c.peak, down)
	c.mu.Unlock()
	next := object.Clone(d)
	switch {
	case deleting:
		next.Metadata.Finalizers = nil
		_, _ = c.drains.Update(ctx, next)
	case !held && d.GetStatus().GetPhase() != "Succeeded":
		next.Status = &nodev1.DrainStatus{Phase: proto.String("Succeeded")}
		_, _ = c.drains.UpdateStatus(ctx, next)
	}
}

// most returns how many nodes were unschedulable at once at most.
func (c *cluster) most() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}

func (c *cluster) hold(node string, held bool) {
	c.mu.Lock()
	c.held[node] = held
	c.mu.Unlock()
	if _, ok := c.drains.Lookup("", plan.DrainName(node)); ok && !held {
		c.drain(c.t.Context(), plan.DrainName(node))
	}
}

func (c *cluster) startConfigurator() {
	c.t.Helper()
	cfg := config{settle: c.settle, Config: serve.Config{Name: "node-configurator"}}
	p := c.ground.Process(serve.Config{Name: "node-configurator", Dir: c.dir, Peers: map[string]string{
		evictionController: c.evictions, etcdGuardian: c.guardian, updateOrchestrator: c.updates,
	}})
	parts, err := build(p, etcdtest.Client(c.t), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address, c.operator = p.Address(), p.Operator
	c.admin = c.as(servetest.Admin())
	c.stop = servetest.Run(c.t, p, parts...)
}

// restart kills the configurator and starts another one. Agents find it again.
func (c *cluster) restart() {
	c.t.Helper()
	c.stop()
	c.startConfigurator()
	for _, a := range c.agents {
		a.connect()
	}
}

// as returns a connection to the configurator as a user.
func (c *cluster) as(r identity.Request) *grpc.ClientConn {
	c.t.Helper()
	return c.ground.Dial(c.address, r)
}

func (c *cluster) configs() configv1.MachineConfigServiceClient {
	return configv1.NewMachineConfigServiceClient(c.admin)
}

func (c *cluster) pools() configv1.MachineConfigPoolServiceClient {
	return configv1.NewMachineConfigPoolServiceClient(c.admin)
}

// agent speaks for a node as a machine that applies whatever it is ordered, after a restart if that is asked for.
type agent struct {
	c    *cluster
	node string
	conn *grpc.ClientConn
	end  context.CancelFunc

	mu      sync.Mutex
	boot    int
	current string
	failing string // file whose configurations cannot be taken up
	reboots int
	orders  []*configv1.FollowConfigResponse
}

// join makes a ready node of a role, and its agent.
func (c *cluster) join(name, role string) *agent {
	c.t.Helper()
	_, err := c.nodes.Create(c.t.Context(), &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"node-role.kubernetes.io/" + role: ""},
			Annotations: map[string]string{nodeid.MachineUID: servetest.NodeUID(name), nodeid.MachineRole: machineRole(role)},
		},
		Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	a := &agent{c: c, node: name}
	c.agents[name] = a
	a.connect()
	return a
}

// machineRole returns the role of the machine of a node with a role.
func machineRole(role string) string {
	if role == "master" {
		return role
	}
	return "worker"
}

func (a *agent) connect() {
	a.c.t.Helper()
	if a.end != nil {
		a.end()
	}
	a.conn = a.c.as(servetest.Node(a.node))
	ctx, cancel := context.WithCancel(a.c.t.Context())
	a.end = cancel
	client := configv1.NewConfigAgentServiceClient(a.conn)
	go func() {
		for ctx.Err() == nil {
			a.follow(ctx, client)
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

func (a *agent) follow(ctx context.Context, client configv1.ConfigAgentServiceClient) {
	stream, err := client.FollowConfig(ctx, &configv1.FollowConfigRequest{NodeName: a.node, RenewsServices: true})
	if err != nil {
		return
	}
	for {
		order, err := stream.Recv()
		if err != nil {
			return
		}
		a.mu.Lock()
		a.orders = append(a.orders, order)
		a.mu.Unlock()
		a.obey(ctx, client, order)
	}
}

func (a *agent) obey(ctx context.Context, client configv1.ConfigAgentServiceClient,
	order *configv1.FollowConfigResponse,
) {
	want := order.GetMachineConfig().GetMetadata().GetName()
	if want == "" || !order.GetApply() {
		return
	}
	report := func(state, reason string) {
		a.mu.Lock()
		r := &configv1.ReportConfigRequest{
			NodeName: a.node, CurrentConfig: a.current, DesiredConfig: want, State: state, Reason: reason,
			BootId: fmt.Sprint("boot-", a.boot),
		}
		a.mu.Unlock()
		for range 50 {
			if _, err := client.ReportConfig(ctx, r); err == nil || ctx.Err() != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	a.mu.Lock()
	bad := a.failing != "" && slices.Contains(pathsOf(order.GetMachineConfig()), a.failing)
	same := a.current == want
	a.mu.Unlock()
	if bad {
		report("Degraded", "cannot write "+a.failing)
		return
	}
	if !same {
		report("Working", "")
		if order.GetReboot() {
			report("Rebooting", "the machine restarts")
		}
		a.mu.Lock()
		a.current = want
		if order.GetReboot() {
			a.boot++
			a.reboots++
		}
		a.mu.Unlock()
	}
	report("Done", "")
}

func (a *agent) restarts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reboots
}

func (a *agent) fail(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failing = path
}

func pathsOf(cfg *configv1.MachineConfig) []string {
	var out []string
	files := cfg.GetSpec().GetConfig().GetFields()["storage"].GetStructValue().GetFields()["files"]
	for _, f := range files.GetListValue().GetValues() {
		out = append(out, f.GetStructValue().GetFields()["path"].GetStringValue())
	}
	return out
}

// machineConfig is a configuration of one file for a role.
func machineConfig(name, role, path, content string) *configv1.MachineConfig {
	s, err := structpb.NewStruct(map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"storage": map[string]any{"files": []any{
			map[string]any{"path": path, "mode": 420, "contents": map[string]any{"source": "data:," + content}},
		}},
	})
	if err != nil {
		panic(err)
	}
	return &configv1.MachineConfig{
		Metadata: &metav1.ObjectMeta{Name: name, Labels: map[string]string{plan.RoleLabel: role}},
		Spec:     &configv1.MachineConfigSpec{Config: s},
	}
}

func poolFor(role string) *configv1.MachineConfigPool {
	return &configv1.MachineConfigPool{
		Metadata: &metav1.ObjectMeta{Name: role},
		Spec: &configv1.MachineConfigPoolSpec{
			MachineConfigSelector: &metav1.LabelSelector{MatchLabels: map[string]string{plan.RoleLabel: role}},
			NodeSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"node-role.kubernetes.io/" + role: ""}},
		},
	}
}

func (c *cluster) apply(cfg *configv1.MachineConfig) {
	c.t.Helper()
	if _, err := c.configs().ApplyMachineConfig(c.t.Context(), &configv1.ApplyMachineConfigRequest{
		Name: cfg.GetMetadata().GetName(), MachineConfig: cfg,
	}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) applyPool(p *configv1.MachineConfigPool) {
	c.t.Helper()
	if _, err := c.pools().ApplyMachineConfigPool(c.t.Context(), &configv1.ApplyMachineConfigPoolRequest{
		Name: p.GetMetadata().GetName(), MachineConfigPool: p,
	}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) pool(name string) *configv1.MachineConfigPool {
	c.t.Helper()
	p, err := c.pools().GetMachineConfigPool(c.t.Context(), &configv1.GetMachineConfigPoolRequest{Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// awaitUpdated waits until a pool of so many nodes has another configuration than before, everywhere, and returns its
// name.
func (c *cluster) awaitUpdated(name string, nodes int, before string) string {
	c.t.Helper()
	target := ""
	servetest.Await(c.t, func() string {
		p := c.pool(name)
		target = p.GetSpec().GetConfiguration().GetName()
		st := p.GetStatus()
		if target == "" || target == before || !object.IsTrue(st.GetConditions(), plan.ConditionUpdated) ||
			st.GetConfiguration().GetName() != target || int(st.GetUpdatedMachineCount()) != nodes ||
			int(st.GetReadyMachineCount()) != nodes || len(c.drains.All()) > 0 {
			return fmt.Sprintf("pool %v, drains %v", p, c.drains.All())
		}
		return ""
	})
	return target
}

func (c *cluster) awaitPool(name string, ok func(*configv1.MachineConfigPool) bool) *configv1.MachineConfigPool {
	c.t.Helper()
	var p *configv1.MachineConfigPool
	servetest.Await(c.t, func() string {
		if p = c.pool(name); !ok(p) {
			return p.String()
		}
		return ""
	})
	return p
}

// awaitDrain waits until the drain of a node is as it should be. It may be called from any goroutine.
func (c *cluster) awaitDrain(node string, ok func(d *nodev1.Drain, there bool) bool) {
	changed := make(chan struct{}, 1)
	c.drains.Subscribe(func(resource.Change[*nodev1.Drain]) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	for !ok(c.drains.Lookup("", plan.DrainName(node))) {
		<-changed
	}
}

// looked waits until a pool that has the default of maxUnavailable has been decided about from now on: it sets what it
// has, which changes nothing.
func (c *cluster) looked(name string) {
	c.t.Helper()
	before := c.pool(name).GetMetadata().GetGeneration()
	p := poolFor(name)
	p.Spec.MaxUnavailable = structpb.NewNumberValue(1)
	c.applyPool(p)
	c.awaitPool(name, func(p *configv1.MachineConfigPool) bool {
		return p.GetStatus().GetObservedGeneration() > before
	})
}

func (c *cluster) mark(node, key string) string {
	n, _ := c.nodes.Lookup("", node)
	return n.GetMetadata().GetAnnotations()[key]
}

func (c *cluster) events() []*eventv1.Event {
	c.t.Helper()
	list, err := eventv1.NewEventServiceClient(c.admin).ListEvents(c.t.Context(), &eventv1.ListEventsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return list.GetItems()
}
