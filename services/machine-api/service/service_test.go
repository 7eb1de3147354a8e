package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/services/machine-api/join"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const patience = time.Minute

// cluster is machine-api as it is started, between an eviction-controller of tables alone and a provider that keeps
// instances in memory, all of them behind mutual TLS and the default policy.
type cluster struct {
	t   *testing.T
	pki string
	ca  *identity.Authority

	nodes *resource.Table[*nodev1.Node]
	api   string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, pki: t.TempDir()}
	for _, name := range []string{join.AuthorityWindlass} {
		a, err := identity.NewAuthority(name, time.Hour)
		c.must(err)
		c.must(a.Save(c.pki))
		if name == join.AuthorityWindlass {
			c.ca = a
		}
	}
	eviction, evictionParts := c.eviction()
	clouds := c.process("provider-local", nil)
	providerv1.RegisterProviderServiceServer(clouds.GRPC,
		&cloud{nodes: c.nodes, instances: map[string]*providerv1.Instance{}, changed: make(chan struct{})})
	p := c.process(name, map[string]string{evictionPeer: eviction.Address(), "provider-local": clouds.Address()})
	signer, err := join.LoadSigner(c.pki, time.Hour)
	c.must(err)
	cfg := config{
		Config:   serve.Config{Name: name, Peers: map[string]string{evictionPeer: "", "provider-local": ""}},
		gateways: []string{"127.0.0.1:6443"}, platform: "Local", infrastructureName: "tide",
	}
	parts, err := build(p, cfg, signer)
	c.must(err)
	c.run(eviction, evictionParts...)
	c.run(clouds)
	c.run(p, parts...)
	c.api = p.Address()
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) eviction() (*serve.Process, []func(context.Context) error) {
	p := c.process(evictionPeer, nil)
	st := etcdtest.Store(c.t)
	c.nodes = resource.NewTable(st, p.Validator, resource.Config[*nodev1.Node]{KeepStatus: true})
	drains := resource.NewTable(st, p.Validator, resource.Config[*nodev1.Drain]{})
	c.must(resource.Register(p.Services, &nodev1.NodeService_ServiceDesc, nil, c.nodes))
	c.must(resource.Register(p.Services, &nodev1.DrainService_ServiceDesc, nil, drains))
	return p, []func(context.Context) error{c.nodes.Run, drains.Run, func(ctx context.Context) error {
		queue := make(chan object.Key, 100)
		drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) { queue <- ch.Key })
		for {
			select {
			case <-ctx.Done():
				return nil
			case k := <-queue:
				// One that is gone already needs nothing.
				_, _ = drains.Modify(ctx, k, func(d *nodev1.Drain) error {
					d.Status = &nodev1.DrainStatus{Phase: proto.String("Succeeded")}
					return nil
				})
			}
		}
	}}
}

// process returns a process with a certificate of its own; its etcd is the test's.
func (c *cluster) process(name string, peers map[string]string) *serve.Process {
	c.t.Helper()
	dir := c.t.TempDir()
	c.issue(dir, identity.Request{
		CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		Server: true, Client: true,
	})
	p, err := serve.New(serve.Config{
		Name: name, Listen: "127.0.0.1:0", Dir: filepath.Join(dir, "data"), TLSDir: dir,
		Peers: peers,
	}, slog.New(slog.DiscardHandler))
	c.must(err)
	c.t.Cleanup(func() { _ = p.Close() })
	p.Etcd = etcdtest.Client(c.t)
	return p
}

func (c *cluster) issue(dir string, r identity.Request) {
	c.t.Helper()
	cert, key, err := c.ca.Issue(r)
	c.must(err)
	for file, content := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": c.ca.PEM()} {
		c.must(os.WriteFile(filepath.Join(dir, file), content, 0o600))
	}
}

func (c *cluster) run(p *serve.Process, parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	p.Etcd = nil // its list of members would be that of the test's own sockets, written to disk for nothing
	group.Go(func() {
		if err := p.Run(ctx, parts...); err != nil {
			c.t.Errorf("a process ended: %v", err)
		}
	})
	c.t.Cleanup(func() { cancel(); group.Wait() })
}

// as connects to machine-api with a certificate.
func (c *cluster) as(uri, name string, groups ...string) *grpc.ClientConn {
	c.t.Helper()
	dir := c.t.TempDir()
	c.issue(dir, identity.Request{CommonName: name, Organizations: groups, URI: uri, Client: true})
	tls, err := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt"),
	}.ClientTLS("127.0.0.1")
	c.must(err)
	conn, err := grpc.NewClient(c.api, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
	c.must(err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (c *cluster) admin() *grpc.ClientConn {
	return c.as(identity.UserURI("ada"), "ada", identity.GroupMasters)
}

func (c *cluster) eventually(ok func() error) {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("not within %v: %v", patience, err)
		}
	}
}

// cloud is a provider whose instances run at once and whose nodes register by themselves.
type cloud struct {
	providerv1.UnimplementedProviderServiceServer
	nodes *resource.Table[*nodev1.Node]

	mu        sync.Mutex
	instances map[string]*providerv1.Instance
	changed   chan struct{}
}

func (c *cloud) move() { close(c.changed); c.changed = make(chan struct{}) }

func (c *cloud) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	return &providerv1.GetProviderInfoResponse{ProviderSpecKinds: []string{"TestSpec"}}, nil
}

func (c *cloud) ValidateProviderSpec(_ context.Context, r *providerv1.ValidateProviderSpecRequest) (
	*providerv1.ValidateProviderSpecResponse, error,
) {
	if r.GetProviderSpec().GetFields()["sise"] != nil {
		return nil, rpcerr.Invalid(object.Fault{Path: "sise", Description: "unknown field"})
	}
	if r.GetProviderSpec().GetFields()["away"] != nil {
		return nil, rpcerr.Unavailable("the cloud does not answer")
	}
	return &providerv1.ValidateProviderSpecResponse{}, nil
}

func (c *cloud) CreateInstance(ctx context.Context, r *providerv1.CreateInstanceRequest) (*providerv1.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := &providerv1.Instance{
		ProviderId: "test://" + r.GetMachine().GetName(), MachineName: r.GetMachine().GetName(),
		MachineUid: r.GetRequestToken(), State: "Running",
		Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: fmt.Sprintf("127.0.0.%d", 77+len(c.instances))}},
	}
	c.instances[r.GetRequestToken()] = i
	c.move()
	_, err := c.nodes.Create(ctx, &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: i.MachineName}, Spec: &nodev1.NodeSpec{
		ProviderId: i.ProviderId,
	}})
	return i, err
}

func (c *cloud) GetInstance(_ context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.instances[r.GetRequestToken()]; ok {
		return i, nil
	}
	return nil, rpcerr.NotFound("Instance", r.GetRequestToken())
}

func (c *cloud) DeleteInstance(_ context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, r.GetRequestToken())
	c.move()
	return &providerv1.DeleteInstanceResponse{}, nil
}

func (c *cloud) WatchInstances(_ *providerv1.WatchInstancesRequest,
	s grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	known := map[string]*providerv1.Instance{}
	for {
		c.mu.Lock()
		var out []*providerv1.WatchInstancesResponse
		for uid, i := range c.instances {
			if known[uid] == nil {
				out = append(out, &providerv1.WatchInstancesResponse{Instance: i})
				known[uid] = i
			}
		}
		for uid, i := range known {
			if c.instances[uid] == nil {
				out = append(out, &providerv1.WatchInstancesResponse{Instance: i, Deleted: true})
				delete(known, uid)
			}
		}
		changed := c.changed
		c.mu.Unlock()
		for _, m := range append(out, &providerv1.WatchInstancesResponse{Synced: true}) {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func set(name string, replicas int32) *machinev1.MachineSet {
	labels := map[string]string{"set": name}
	return &machinev1.MachineSet{
		Metadata: &metav1.ObjectMeta{Name: name},
		Spec: &machinev1.MachineSetSpec{
			Replicas: proto.Int32(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: &machinev1.MachineTemplateSpec{
				Metadata: &metav1.ObjectMeta{Labels: labels},
				Spec: &machinev1.MachineSpec{
					ProviderSpec: &machinev1.ProviderSpec{
						Value: &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue("TestSpec")}},
					},
				},
			},
		},
	}
}

func TestMachineAPI(t *testing.T) {
	c := newCluster(t)
	conn := c.admin()
	machines, sets := machinev1.NewMachineServiceClient(conn), machinev1.NewMachineSetServiceClient(conn)
	infrastructures := machinev1.NewInfrastructureServiceClient(conn)
	ctx := t.Context()
	c.eventually(func() error {
		i, err := infrastructures.GetInfrastructure(ctx, &machinev1.GetInfrastructureRequest{Name: "cluster"})
		if err == nil && i.GetStatus().GetInfrastructureName() != "tide" {
			err = fmt.Errorf("infrastructure = %v", i)
		}
		return err
	})
	_, err := sets.CreateMachineSet(ctx, &machinev1.CreateMachineSetRequest{MachineSet: set("workers", 2)})
	c.must(err)
	list := func() []*machinev1.Machine {
		l, err := machines.ListMachines(ctx, &machinev1.ListMachinesRequest{})
		c.must(err)
		return l.GetItems()
	}
	running := func(n int) {
		t.Helper()
		c.eventually(func() error {
			all := list()
			for _, m := range all {
				if m.GetStatus().GetPhase() != plan.PhaseRunning {
					return fmt.Errorf("machine %v", m)
				}
			}
			if len(all) != n {
				return fmt.Errorf("%d machines, want %d", len(all), n)
			}
			return nil
		})
	}
	running(2)

	t.Run("a plan is asked for before it is made", func(t *testing.T) {
		p, err := sets.PlanMachineSet(ctx, &machinev1.PlanMachineSetRequest{Name: "workers", Replicas: proto.Int32(1)})
		c.must(err)
		if len(p.GetDeletions()) != 1 || p.GetCreations() != 0 {
			t.Errorf("plan = %v, want one deletion", p)
		}
		m, err := machines.PlanMachine(ctx, &machinev1.PlanMachineRequest{Name: list()[0].Metadata.Name})
		c.must(err)
		if m.GetPhase() != plan.PhaseRunning || m.GetWaitsFor() != "its node to become ready" {
			t.Errorf("plan = %v", m)
		}
		given, err := machines.PlanMachine(ctx, &machinev1.PlanMachineRequest{
			Machine: &machinev1.Machine{Spec: list()[0].GetSpec()},
		})
		c.must(err)
		// it says that it has an instance, but none was given
		if len(given.GetActions()) != 0 || given.GetPhase() != plan.PhaseFailed {
			t.Errorf("plan = %v", given)
		}
		v, err := machines.ValidateHooks(ctx, &machinev1.ValidateHooksRequest{
			Name: list()[0].Metadata.Name,
			NewMachine: &machinev1.Machine{Spec: &machinev1.MachineSpec{
				LifecycleHooks: &machinev1.LifecycleHooks{PreDrain: []*machinev1.LifecycleHook{
					{Name: "HookA", Owner: "one"},
					{Name: "HookA", Owner: "two"},
				}},
			}},
		})
		c.must(err)
		if v.GetAllowed() || len(v.GetViolations()) != 1 ||
			v.GetViolations()[0].GetField() != "spec.lifecycleHooks.preDrain[1].name" {
			t.Errorf("violations = %v, want the duplicate", v)
		}
	})

	t.Run("orphans stay, and a dry run notes nothing", func(t *testing.T) {
		_, err := sets.DeleteMachineSet(ctx, &machinev1.DeleteMachineSetRequest{
			Name: "workers", PropagationPolicy: "Orphan",
			DryRun: "All",
		})
		c.must(err)
		s, err := sets.GetMachineSet(ctx, &machinev1.GetMachineSetRequest{Name: "workers"})
		c.must(err)
		if len(s.GetMetadata().GetFinalizers()) != 0 {
			t.Errorf("the dry run left %v", s.GetMetadata())
		}
		_, err = sets.DeleteMachineSet(ctx, &machinev1.DeleteMachineSetRequest{Name: "workers", PropagationPolicy: "Orphan"})
		c.must(err)
		c.eventually(func() error {
			_, err := sets.GetMachineSet(ctx, &machinev1.GetMachineSetRequest{Name: "workers"})
			if status.Code(err) != codes.NotFound {
				return errors.New("the set is still there")
			}
			return nil
		})
		running(2)
		for _, m := range list() {
			if len(m.GetMetadata().GetOwnerReferences()) != 0 {
				t.Errorf("machine %v still has an owner", m.GetMetadata())
			}
		}
	})

	t.Run("a set takes its machines along", func(t *testing.T) {
		_, err := sets.CreateMachineSet(ctx, &machinev1.CreateMachineSetRequest{MachineSet: set("workers", 2)})
		c.must(err)
		c.eventually(func() error {
			for _, m := range list() { // their number stays, or the set would have made others
				if object.ControllerOf(m) == nil {
					return fmt.Errorf("machine %s is not adopted", m.Metadata.Name)
				}
			}
			return nil
		})
		_, err = sets.DeleteMachineSet(ctx, &machinev1.DeleteMachineSetRequest{Name: "workers"})
		c.must(err)
		running(0)
	})

	t.Run("a caller without the right is refused", func(t *testing.T) {
		eve := c.as(identity.UserURI("eve"), "eve")
		_, err := machinev1.NewMachineServiceClient(eve).ListMachines(ctx, &machinev1.ListMachinesRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("ListMachines = %v, want PERMISSION_DENIED", err)
		}
		_, err = machinev1.NewJoinServiceClient(eve).Join(ctx, &machinev1.JoinRequest{
			Token: "x.y.z", AgentRequest: []byte("x"),
		})
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_BAD_TOKEN {
			t.Errorf("Join = %v, want BAD_TOKEN", err)
		}
		broker := c.as(identity.ServiceURI("hook-broker"), "hook-broker")
		if _, err := machinev1.NewMachineServiceClient(broker).ListMachines(ctx,
			&machinev1.ListMachinesRequest{}); err != nil {
			t.Errorf("hook-broker lists machines: %v", err)
		}
	})
}

func TestSettings(t *testing.T) {
	good := []string{
		"--pki", "p", "--dir", "d", "--tls-dir", "t", "--listen", "127.0.0.1:0", "--gateway",
		"127.0.0.1:6443", "--peer", "eviction-controller=127.0.0.1:1",
	}
	if _, err := parse(good, os.Stderr); err != nil {
		t.Errorf("parse = %v", err)
	}
	if c, err := parse(append(good[:12:12], "--gateway", "[fd00::1]:6443,gateway.example:6443"), os.Stderr); err != nil ||
		len(c.gateways) != 3 {
		t.Errorf("three gateways: %q, %v", c.gateways, err)
	}
	many := good[:12:12]
	for i := range 16 {
		many = append(many, "--gateway", fmt.Sprintf("127.0.0.2:%d", 6443+i))
	}
	for name, args := range map[string][]string{
		"nothing":          nil,
		"no gateway":       append(good[:8:8], good[10:]...),
		"17 gateways":      many,
		"one twice":        append(good[:12:12], "--gateway", "127.0.0.1:6443"),
		"no port":          append(good[:12:12], "--gateway", "127.0.0.1"),
		"every host":       append(good[:12:12], "--gateway", "0.0.0.0:6443"),
		"an empty gateway": append(good[:12:12], "--gateway", "127.0.0.2:6443,"),
		"a stray argument": append(good[:12:12], "x"),
		"no lifetime":      append(good[:12:12], "--certificate-lifetime", "0s"),
	} {
		if _, err := parse(args, os.Stderr); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
