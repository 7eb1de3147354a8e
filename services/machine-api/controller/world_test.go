package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/join"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const patience = time.Minute // for a condition that is to come about; a busy machine needs some of it

// world is machine-api's controllers with everything around them: real tables in etcd, nodes and drains served by real
// tables over gRPC, and a provider that keeps state.
type world struct {
	t      *testing.T
	store  *store.Store
	tables *kinds.Tables
	nodes  *resource.Table[*nodev1.Node]
	drains *resource.Table[*nodev1.Drain]
	cloud  *cloud
	conns  map[string]*grpc.ClientConn

	servers  map[string]*grpc.Server
	guardian grpc.ClientConnInterface // nil unless a test has one

	stop func() // stops the controllers that run

	mu      sync.Mutex
	refused map[string]error // calls to eviction-controller that fail, by the name of the method
}

func newWorld(t *testing.T) *world {
	t.Helper()
	st := etcdtest.Store(t)
	policy, err := identity.LoadPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	v := protovalidate.GlobalValidator
	w := &world{
		t: t, store: st, tables: kinds.New(st, v, policy, quiet()),
		nodes:  resource.NewTable(st, v, resource.Config[*nodev1.Node]{KeepStatus: true, Log: quiet()}),
		drains: resource.NewTable(st, v, resource.Config[*nodev1.Drain]{Log: quiet()}),
		conns:  map[string]*grpc.ClientConn{}, servers: map[string]*grpc.Server{},
	}
	w.cloud = newCloud(w)
	background(t, w.nodes.Run, w.drains.Run)
	for _, k := range w.tables.All() {
		background(t, k.Run)
		must(t, k.WaitSynced(t.Context()))
	}
	w.serve("eviction", func(s *grpc.Server) {
		must(t, resource.Register(s, &nodev1.NodeService_ServiceDesc, nil, w.nodes))
		must(t, resource.Register(s, &nodev1.DrainService_ServiceDesc, nil, w.drains))
	})
	w.serve("provider", func(s *grpc.Server) { providerv1.RegisterProviderServiceServer(s, w.cloud) })
	_, err = w.tables.Infrastructure.Create(t.Context(), &machinev1.Infrastructure{
		Metadata: &metav1.ObjectMeta{Name: "cluster"},
	})
	must(t, err)
	_, err = w.tables.Infrastructure.Modify(t.Context(), object.Key{Name: "cluster"},
		func(i *machinev1.Infrastructure) error {
			i.Status = &machinev1.InfrastructureStatus{InfrastructureName: "test-x7k2p"}
			return nil
		})
	must(t, err)
	background(t, w.drainNodes)
	return w
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// background runs parts until the test ends and waits for them.
func background(t *testing.T, parts ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, p := range parts {
		group.Go(func() {
			if err := p(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("a part ended: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(stop)
	return stop
}

func (w *world) serve(name string, register func(*grpc.Server)) {
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer(grpc.UnaryInterceptor(w.intercept), grpc.StreamInterceptor(w.interceptStream))
	register(s)
	go func() { _ = s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close(); s.Stop() })
	w.conns[name], w.servers[name] = conn, s
}

// refuse has calls of a method fail; nil lets them succeed again.
func (w *world) refuse(method string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == nil {
		w.refused = map[string]error{}
	}
	w.refused[method] = err
}

func (w *world) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
	error,
) {
	if err := w.refusal(info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (w *world) interceptStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) error {
	if err := w.refusal(info.FullMethod); err != nil {
		return err
	}
	return next(srv, s)
}

func (w *world) refusal(method string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused[path.Base(method)]
}

// start runs the controllers, as a new process would, with changes to what they depend on.
func (w *world) start(change ...func(*Config)) *Controller {
	c, parts := w.controllers(change...)
	w.stop = background(w.t, append(parts, c.Lead)...)
	return c
}

// controllers returns the controllers of a process that does not lead yet, and what they follow.
func (w *world) controllers(change ...func(*Config)) (*Controller, []func(context.Context) error) {
	nodes, err := informer.New[*nodev1.Node](w.conns["eviction"], quiet())
	must(w.t, err)
	drains, err := informer.New[*nodev1.Drain](w.conns["eviction"], quiet())
	must(w.t, err)
	providers := provider.New(map[string]grpc.ClientConnInterface{"provider-test": w.conns["provider"]}, nil, quiet())
	cfg := Config{
		Tables: w.tables, Providers: providers, Nodes: nodes, Drains: drains, Eviction: w.conns["eviction"],
		CatchUpNodes: nodes.CatchUp, Guardian: w.guardian,
		Bootstrap: join.NewTokens(w.store, w.tables.Machines, func() string { return "sha256:00" },
			func() []string { return []string{"127.0.0.1:6443"} }),
		Events: noEvents{}, Log: quiet(),
	}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg), []func(context.Context) error{nodes.Run, drains.Run, providers.Run}
}

type noEvents struct{}

func (noEvents) Event(object.Object, string, string, string) {}

// drainNodes completes every drain, as long as the world lets drains succeed.
func (w *world) drainNodes(ctx context.Context) error {
	queue := make(chan object.Key, 100)
	w.drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) { queue <- ch.Key })
	for {
		select {
		case <-ctx.Done():
			return nil
		case k := <-queue:
			_, err := w.drains.Modify(ctx, k, func(d *nodev1.Drain) error {
				d.Status = &nodev1.DrainStatus{Phase: proto.String("Succeeded"), Message: proto.String("no pods on this node")}
				if reason := w.cloud.drainFault(); reason != "" {
					d.Status = &nodev1.DrainStatus{Phase: proto.String("Failed"), Message: proto.String(reason)}
				}
				return nil
			})
			if err != nil && status.Code(err) != codes.NotFound && ctx.Err() == nil {
				return err
			}
		}
	}
}

// eventually waits until ok returns nil.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %v", patience, err)
		}
	}
}

func (w *world) machine(name string) *machinev1.Machine {
	m, _ := w.tables.Machines.Lookup("openshift-machine-api", name)
	return m
}

func (w *world) phase(name, phase string) *machinev1.Machine {
	w.t.Helper()
	eventually(w.t, func() error {
		if got := w.machine(name).GetStatus().GetPhase(); got != phase {
			return fmt.Errorf("machine %s is in phase %q, want %q: %v", name, got, phase, w.machine(name))
		}
		return nil
	})
	return w.machine(name)
}

func (w *world) gone(name string) {
	w.t.Helper()
	eventually(w.t, func() error {
		if m := w.machine(name); m != nil {
			return fmt.Errorf("machine %s is still there: %v", name, m.GetStatus())
		}
		return nil
	})
}

func (w *world) create(m *machinev1.Machine) *machinev1.Machine {
	w.t.Helper()
	out, err := w.tables.Machines.Create(w.t.Context(), m)
	must(w.t, err)
	return out
}

func (w *world) delete(name string) {
	w.t.Helper()
	_, err := w.tables.Machines.Delete(w.t.Context(), "openshift-machine-api", name, nil)
	must(w.t, err)
}

func (w *world) change(name string, f func(*machinev1.Machine)) {
	w.t.Helper()
	_, err := w.tables.Machines.Modify(w.t.Context(), object.Key{Namespace: "openshift-machine-api", Name: name},
		func(m *machinev1.Machine) error { f(m); return nil })
	must(w.t, err)
}

func newMachine(name string, change ...func(*machinev1.Machine)) *machinev1.Machine {
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "openshift-machine-api"},
		Spec:     &machinev1.MachineSpec{ProviderSpec: &machinev1.ProviderSpec{Value: settings("a")}},
	}
	for _, f := range change {
		f(m)
	}
	return m
}

func settings(zone string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"kind": structpb.NewStringValue("TestSpec"),
		"zone": structpb.NewStringValue(zone),
	}}
}

// cloud is a provider: its instances boot at once, and their nodes register by themselves.
type cloud struct {
	providerv1.UnimplementedProviderServiceServer
	w *world

	mu        sync.Mutex
	instances map[string]*providerv1.Instance // by request token
	used      map[string]bool                 // request tokens of deleted instances
	hang      func(machine string) bool       // creations that are not answered before their limit
	hanging   chan struct{}                   // closed to have the hanging creations carried out
	kinds     []string                        // of provider specs that it understands
	calls     int                             // creations that have begun
	watchers  []chan *providerv1.WatchInstancesResponse
	made      int
	deletions []time.Time // of every DeleteInstance
	fault     error       // of creations
	silent    bool        // nodes do not join
	stuck     string      // why drains fail
	away      error       // of every call about an instance
	mute      bool        // changes of instances are not sent to watches
	address   string      // of every new instance; empty gives each its own
}

func newCloud(w *world) *cloud {
	return &cloud{
		w: w, instances: map[string]*providerv1.Instance{}, used: map[string]bool{}, hanging: make(chan struct{}),
		hang: func(string) bool { return false }, kinds: []string{"TestSpec"},
	}
}

func (c *cloud) set(f func(*cloud)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *cloud) drainFault() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stuck
}

func (c *cloud) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.instances)
}

func (c *cloud) creations() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

func (c *cloud) firstDeletion() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.deletions) == 0 {
		return time.Time{}, false
	}
	return c.deletions[0], true
}

func (c *cloud) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &providerv1.GetProviderInfoResponse{
		Name: "test", Platform: "Local", ProviderSpecKinds: c.kinds,
		FailureDomainFields: map[string]string{"zone": "zone"},
	}, nil
}

func (c *cloud) CreateInstance(ctx context.Context, req *providerv1.CreateInstanceRequest) (*providerv1.Instance,
	error,
) {
	c.mu.Lock()
	c.calls++
	if hang := c.hang(req.GetMachine().GetName()); hang {
		c.mu.Unlock()
		<-c.hanging // it is carried out although nothing waits for the answer any more
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if i, ok := c.instances[req.GetRequestToken()]; ok {
		return i, nil
	}
	if c.used[req.GetRequestToken()] {
		return nil, status.Error(codes.FailedPrecondition, "the request token's instance was deleted")
	}
	if c.fault != nil {
		return nil, c.fault
	}
	c.made++
	i := &providerv1.Instance{
		ProviderId: "test://c/" + req.GetMachine().GetName(), MachineName: req.GetMachine().GetName(),
		MachineUid: req.GetRequestToken(), State: "Running",
		InstanceType: "small", Region: "here", Zone: req.GetProviderSpec().GetFields()["zone"].GetStringValue(),
		Addresses:  []*nodev1.NodeAddress{{Type: "InternalIP", Address: fmt.Sprintf("127.0.0.%d", c.made+9)}},
		CreateTime: timestamppb.Now(),
	}
	if c.address != "" {
		i.Addresses[0].Address = c.address
	}
	c.instances[req.GetRequestToken()] = i
	c.tell(&providerv1.WatchInstancesResponse{Instance: i})
	if !c.silent {
		go c.w.register(i)
	}
	return i, nil
}

// register has the node of an instance join, ready at once.
func (w *world) register(i *providerv1.Instance) {
	_, err := w.nodes.Create(context.Background(), &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: i.GetMachineName()},
		Spec:     &nodev1.NodeSpec{ProviderId: i.GetProviderId()},
		Status: &nodev1.NodeStatus{
			Conditions: []*nodev1.NodeCondition{
				{Type: "Ready", Status: "True", LastTransitionTime: timestamppb.New(time.Now().Add(-time.Second))},
			},
		},
	})
	if err != nil && status.Code(err) != codes.AlreadyExists && !errors.Is(err, context.Canceled) {
		w.t.Logf("register %s: %v", i.GetMachineName(), err)
	}
}

func (c *cloud) tell(m *providerv1.WatchInstancesResponse) {
	if c.mute {
		return
	}
	for _, w := range c.watchers {
		w <- proto.Clone(m).(*providerv1.WatchInstancesResponse)
	}
}

func (c *cloud) GetInstance(_ context.Context, req *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil {
		return nil, c.away
	}
	if i, ok := c.instances[req.GetRequestToken()]; ok {
		return i, nil
	}
	return nil, status.Error(codes.NotFound, "no such instance")
}

func (c *cloud) ListInstances(context.Context, *providerv1.ListInstancesRequest) (*providerv1.ListInstancesResponse,
	error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil {
		return nil, c.away
	}
	out := &providerv1.ListInstancesResponse{}
	for _, i := range c.instances {
		out.Instances = append(out.Instances, proto.CloneOf(i))
	}
	return out, nil
}

func (c *cloud) DeleteInstance(_ context.Context, req *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away != nil {
		return nil, c.away
	}
	c.deletions = append(c.deletions, time.Now())
	c.used[req.GetRequestToken()] = true
	c.vanish(req.GetRequestToken())
	return &providerv1.DeleteInstanceResponse{}, nil
}

// vanish takes an instance away. The lock is held.
func (c *cloud) vanish(token string) {
	if i, ok := c.instances[token]; ok {
		delete(c.instances, token)
		c.tell(&providerv1.WatchInstancesResponse{Instance: i, Deleted: true})
	}
}

func (c *cloud) WatchInstances(_ *providerv1.WatchInstancesRequest,
	s grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	c.mu.Lock()
	ch := make(chan *providerv1.WatchInstancesResponse, 1000)
	for _, i := range c.instances {
		ch <- &providerv1.WatchInstancesResponse{Instance: i}
	}
	ch <- &providerv1.WatchInstancesResponse{Synced: true}
	c.watchers = append(c.watchers, ch)
	c.mu.Unlock()
	for {
		select {
		case m := <-ch:
			if err := s.Send(m); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func labelled(labels map[string]string) func(*machinev1.Machine) {
	return func(m *machinev1.Machine) { m.Metadata.Labels = labels }
}

func names(list []*machinev1.Machine) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.GetMetadata().GetName())
	}
	slices.Sort(out)
	return out
}
