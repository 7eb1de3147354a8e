package service_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"

	"github.com/windlass-dev/windlass/services/provider-inventory/service"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// long is a silence that no test reaches.
const long = time.Hour

// inventory is the replicas of one provider over the embedded etcd, with real certificates and real interceptors.
type inventory struct {
	t       *testing.T
	ground  *servetest.Ground
	tls     string // of all replicas: they share the key ring
	silence time.Duration
	host    string // of the next replica
}

// replica is one process.
type replica struct {
	inventory *inventory
	address   string
	stop      func()
	provider  providerv1.ProviderServiceClient // as machine-api
	hosts     hostv1.HostServiceClient         // as an administrator
	operator  func(context.Context) clusteroperator.State
}

func newInventory(t *testing.T, silence time.Duration) *inventory {
	t.Helper()
	servetest.Clear(t, etcdtest.Client(t))
	in := &inventory{t: t, ground: servetest.New(t), silence: silence}
	in.tls = filepath.Dir(in.ground.Files(servetest.Service(topology.ProviderInventory)).Cert)
	if _, err := store.AddKey(filepath.Join(in.tls, serve.RecordKeysFile), time.Now()); err != nil {
		t.Fatal(err)
	}
	return in
}

// start runs a replica.
func (in *inventory) start() *replica {
	in.t.Helper()
	p := in.ground.Process(serve.Config{Name: topology.ProviderInventory, TLSDir: in.tls})
	parts, err := service.Build(p, etcdtest.Client(in.t), service.Options{
		Cluster: "c", Silence: in.silence, Host: in.host,
	})
	if err != nil {
		in.t.Fatal(err)
	}
	r := &replica{inventory: in, address: p.Address(), operator: p.Operator}
	r.stop = servetest.Run(in.t, p, parts...)
	r.provider = providerv1.NewProviderServiceClient(in.ground.Dial(r.address, servetest.Service(topology.MachineAPI)))
	r.hosts = hostv1.NewHostServiceClient(in.ground.Dial(r.address, servetest.Admin()))
	return r
}

// leads waits until the replica answers about instances.
func (r *replica) leads() *replica {
	t := r.inventory.t
	t.Helper()
	servetest.Await(t, func() string {
		if _, err := r.provider.ListInstances(t.Context(), &providerv1.ListInstancesRequest{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return r
}

// register registers a host.
func (r *replica) register(name, address, zone string, roles ...string) *hostv1.Host {
	t := r.inventory.t
	t.Helper()
	if len(roles) == 0 {
		roles = []string{"worker"}
	}
	h, err := r.hosts.RegisterHost(t.Context(), &hostv1.RegisterHostRequest{
		Name: name, Address: address, Zone: zone, Roles: roles,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// join registers a host and has its agent attend, and waits until it is Available.
func (r *replica) join(name, address string) *agent {
	r.inventory.t.Helper()
	r.register(name, address, "a")
	a := r.inventory.attend(name, r)
	r.phase(name, "Available")
	return a
}

func (r *replica) host(name string) *hostv1.Host {
	t := r.inventory.t
	t.Helper()
	h, err := r.hosts.GetHost(t.Context(), &hostv1.GetHostRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// phase waits until a host has a phase.
func (r *replica) phase(name, want string) *hostv1.Host {
	r.inventory.t.Helper()
	var h *hostv1.Host
	servetest.Await(r.inventory.t, func() string {
		if h = r.host(name); h.GetStatus().GetPhase() != want {
			return "host " + name + " is " + h.GetStatus().String() + ", not " + want
		}
		return ""
	})
	return h
}

// spec is a provider spec for hosts of a zone; empty for all.
func spec(zone string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"apiVersion": structpb.NewStringValue("windlass.dev/v1"),
		"kind":       structpb.NewStringValue("InventoryMachineProviderSpec"), "zone": structpb.NewStringValue(zone),
	}}
}

// request is a request for a machine's instance. The machine's name is its uid and its token, too.
func request(machine string, fence int64) *providerv1.CreateInstanceRequest {
	return &providerv1.CreateInstanceRequest{
		RequestToken: machine, Fence: fence, ProviderSpec: spec(""),
		Machine: &metav1.ObjectReference{Kind: "Machine", Name: machine, Uid: machine},
		Bootstrap: &providerv1.Bootstrap{
			Endpoints: []string{"192.0.2.9:6443"}, Token: "secret-of-" + machine,
			Role: "worker",
		},
	}
}

func (r *replica) create(machine string) *providerv1.Instance {
	t := r.inventory.t
	t.Helper()
	i, err := r.provider.CreateInstance(t.Context(), request(machine, 1))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (r *replica) delete(machine string) {
	t := r.inventory.t
	t.Helper()
	if _, err := r.provider.DeleteInstance(t.Context(), &providerv1.DeleteInstanceRequest{
		RequestToken: machine, Fence: 1,
	}); err != nil {
		t.Fatal(err)
	}
}

// silent has an agent be silent until its host is Lost. It returns another replica in place of r, which leads and has
// no message of the agent.
func (r *replica) silent(a *agent) *replica {
	in := r.inventory
	in.t.Helper()
	a.mute.Store(true)
	r.stop()
	in.silence = 100 * time.Millisecond
	short := in.start().leads()
	short.phase(a.name, "Lost")
	short.stop()
	in.silence = long
	return in.start().leads()
}

// back has the agent of a host attend again, as after a restart of the host.
func (a *agent) back(r *replica) *agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := newAgent(a.name)
	b.machine, b.report = a.machine, a.report
	return b.attend(r)
}

// state returns the state of a machine's instance; empty if it does not exist.
func (r *replica) state(machine string) string {
	t := r.inventory.t
	t.Helper()
	i, err := r.provider.GetInstance(t.Context(), &providerv1.GetInstanceRequest{RequestToken: machine})
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return i.GetState()
}

// awaitState waits until a machine's instance has a state.
func (r *replica) awaitState(machine, want string) {
	r.inventory.t.Helper()
	servetest.Await(r.inventory.t, func() string {
		if got := r.state(machine); got != want {
			return "the instance of " + machine + " is " + got + ", not " + want
		}
		return ""
	})
}

// agent is the agent of a host, as another program has it: it attends, carries out its orders, and repeats its last
// report on each stream.
type agent struct {
	name string
	mute atomic.Bool // it is silent

	mu      sync.Mutex
	fails   *hostv1.HostReport // how orders fail; nil: they do not
	machine string             // that runs
	report  *hostv1.HostReport
	orders  []*hostv1.HostOrder // each one once
	reset   func()              // ends the present stream
}

// attend runs the agent of a host until the test ends.
func (in *inventory) attend(name string, to *replica) *agent {
	return newAgent(name).attend(to)
}

// uid returns the uid of a host.
func (r *replica) uid(name string) (uid string) {
	r.inventory.t.Helper()
	servetest.Await(r.inventory.t, func() string {
		h, err := r.hosts.GetHost(context.Background(), &hostv1.GetHostRequest{Name: name})
		if err != nil {
			return err.Error()
		}
		uid = h.GetMetadata().GetUid()
		return ""
	})
	return uid
}

func newAgent(name string) *agent { return &agent{name: name, reset: func() {}} }

func (a *agent) attend(to *replica) *agent {
	in := to.inventory
	ctx, cancel := context.WithCancel(context.Background())
	client := hostv1.NewHostServiceClient(in.ground.Dial(to.address, servetest.Host(a.name, to.uid(a.name))))
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			if !a.mute.Load() {
				a.stream(ctx, client)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	in.t.Cleanup(func() { cancel(); group.Wait() })
	return a
}

// stream attends once.
func (a *agent) stream(ctx context.Context, client hostv1.HostServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.reset = cancel
	first := &hostv1.AttendHostRequest{Name: a.name, Report: a.report, Facts: a.facts()}
	a.mu.Unlock()
	s, err := client.AttendHost(ctx)
	if err != nil || s.Send(first) != nil {
		return
	}
	orders := make(chan *hostv1.HostOrder)
	go func() {
		defer cancel()
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			if m.GetOrder() == nil {
				continue
			}
			select {
			case orders <- m.GetOrder():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		m := &hostv1.AttendHostRequest{Name: a.name}
		select {
		case <-ctx.Done():
			return
		case o := <-orders:
			m.Report, m.Facts = a.obey(o)
		case <-time.After(20 * time.Millisecond):
		}
		if a.mute.Load() || s.Send(m) != nil {
			return
		}
	}
}

func (a *agent) facts() *hostv1.HostFacts {
	return &hostv1.HostFacts{
		BootId: "boot-1", AgentVersion: "v1", MachineUid: a.machine,
		Capacity: map[string]*structpb.Value{"cpu": structpb.NewStringValue("8")},
	}
}

func (a *agent) obey(o *hostv1.HostOrder) (*hostv1.HostReport, *hostv1.HostFacts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.orders = append(a.orders, o)
	r := &hostv1.HostReport{OrderId: o.GetId(), Done: true, Stopped: true}
	if f := a.fails; f != nil {
		r.Done, r.Stopped, r.Message = false, f.GetStopped(), f.GetMessage()
	}
	switch {
	case r.GetDone() && o.GetType() == hostv1.HostOrder_TYPE_CLAIM:
		a.machine = o.GetMachineRef().GetUid()
	case r.GetStopped():
		a.machine = ""
	}
	a.report = r
	return r, a.facts()
}

// failing has orders fail as a report says; nil: they do not. The agent attends again, as after a restart.
func (a *agent) failing(r *hostv1.HostReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fails = r; a.report != nil && !a.report.GetDone() {
		a.report = nil
	}
	a.reset()
}

// last returns the newest order; nil without one.
func (a *agent) last() *hostv1.HostOrder {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.orders) == 0 {
		return nil
	}
	return a.orders[len(a.orders)-1]
}

// runs returns the uid of the machine that runs on the host.
func (a *agent) runs() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine
}
