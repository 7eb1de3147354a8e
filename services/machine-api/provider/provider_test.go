package provider

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
)

// plugin is a provider that says what the test wants it to say.
type plugin struct {
	providerv1.UnimplementedProviderServiceServer

	mu        sync.Mutex
	instances []*providerv1.Instance
	away      bool
	cut       chan struct{} // closed to break all watches off
}

func (p *plugin) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.cut)
	p.cut = make(chan struct{})
}

func (p *plugin) GetProviderInfo(context.Context, *providerv1.GetProviderInfoRequest) (
	*providerv1.GetProviderInfoResponse, error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, status.Error(codes.Unavailable, "away")
	}
	return &providerv1.GetProviderInfoResponse{
		ProviderSpecKinds:   []string{"TestSpec"},
		FailureDomainFields: map[string]string{"zone": "rack"},
	}, nil
}

func (p *plugin) GetInstance(_ context.Context, r *providerv1.GetInstanceRequest) (*providerv1.Instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.instances {
		if i.MachineUid == r.GetRequestToken() {
			return i, nil
		}
	}
	return nil, status.Error(codes.NotFound, "none")
}

func (p *plugin) WatchInstances(_ *providerv1.WatchInstancesRequest,
	s grpc.ServerStreamingServer[providerv1.WatchInstancesResponse],
) error {
	p.mu.Lock()
	instances, cut := p.instances, p.cut
	p.mu.Unlock()
	for _, i := range instances {
		if err := s.Send(&providerv1.WatchInstancesResponse{Instance: i}); err != nil {
			return err
		}
	}
	if err := s.Send(&providerv1.WatchInstancesResponse{Synced: true}); err != nil {
		return err
	}
	select {
	case <-cut:
		return status.Error(codes.Unavailable, "cut")
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func start(t *testing.T, p *plugin) (s *Set, heard <-chan string) {
	t.Helper()
	p.cut = make(chan struct{})
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	providerv1.RegisterProviderServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	s = New(map[string]grpc.ClientConnInterface{"provider-test": conn}, slog.New(slog.DiscardHandler))
	ch := make(chan string, 100)
	s.Subscribe(func(uid string) { ch <- uid })
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); group.Wait(); _ = conn.Close(); server.Stop() })
	return s, ch
}

// await waits until a machine's uid is reported and ok holds.
func await(t *testing.T, heard <-chan string, ok func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-heard:
		case <-limit:
			t.Fatal("it was never reported")
		}
	}
}

func TestWhatHappensWhileAProviderIsAwayIsNoticed(t *testing.T) {
	a, b := &providerv1.Instance{MachineUid: "a", State: "Running"}, &providerv1.Instance{
		MachineUid: "b", State: "Running",
	}
	p := &plugin{instances: []*providerv1.Instance{a}}
	s, heard := start(t, p)
	has := func(uid string) bool { return s.Instance(machine(uid)) != nil }
	await(t, heard, func() bool { return has("a") })
	p.set(func() { p.instances = []*providerv1.Instance{b} })
	await(t, heard, func() bool { return has("b") && !has("a") })
}

func machine(uid string) *machinev1.Machine {
	return &machinev1.Machine{Metadata: &metav1.ObjectMeta{Uid: uid}, Spec: &machinev1.MachineSpec{
		ProviderSpec: &machinev1.ProviderSpec{
			Value: &structpb.Struct{Fields: map[string]*structpb.Value{"kind": structpb.NewStringValue("TestSpec")}},
		},
	}}
}

func TestWhatAnotherProviderSaysOfAMachineDoesNotCount(t *testing.T) {
	s, heard := start(t, &plugin{instances: []*providerv1.Instance{{MachineUid: "a", State: "Running"}}})
	foreign := machine("a")
	foreign.Spec.ProviderSpec.Value.Fields["kind"] = structpb.NewStringValue("Other")
	await(t, heard, func() bool { return s.Instance(machine("a")) != nil })
	if i := s.Instance(foreign); i != nil {
		t.Errorf("Instance = %v, of a provider that did not make it", i)
	}
}

func TestOnlyTheProviderSaysThatThereIsNoInstance(t *testing.T) {
	p := &plugin{away: true}
	s, _ := start(t, p)
	m := machine("a")
	if _, absent, err := s.Look(t.Context(), m); absent || err == nil {
		t.Errorf("Look = absent %v, %v while the provider is silent, want an error", absent, err)
	}
	if _, known := s.DomainFields(m.Spec.ProviderSpec.Value); known {
		t.Error("what a silent provider understands cannot be known")
	}
	p.set(func() { p.away = false })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for known := false; !known; _, known = s.DomainFields(m.Spec.ProviderSpec.Value) {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			return
		}
	}
	if _, absent, err := s.Look(t.Context(), m); !absent || err != nil {
		t.Errorf("Look = absent %v, %v, want absent", absent, err)
	}
	m.Spec.ProviderSpec.Value.Fields["kind"] = structpb.NewStringValue("Other")
	if _, err := s.For(m.Spec.ProviderSpec.Value); !errors.Is(err, ErrUnknownKind) {
		t.Errorf("For = %v, want ErrUnknownKind", err)
	}
}
