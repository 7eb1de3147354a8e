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
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
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
	twice     bool          // it ends its initial list twice
	fence     int64         // of its answers
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

func (p *plugin) DeleteInstance(_ context.Context, r *providerv1.DeleteInstanceRequest) (
	*providerv1.DeleteInstanceResponse, error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fence = max(p.fence, r.GetFence())
	return &providerv1.DeleteInstanceResponse{RequestToken: r.GetRequestToken(), Fence: p.fence}, nil
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
	ends := 1
	if p.twice {
		ends = 2
	}
	for range ends {
		if err := s.Send(&providerv1.WatchInstancesResponse{Synced: true}); err != nil {
			return err
		}
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
	return startAll(t, map[string]*plugin{"provider-test": p})
}

func startAll(t *testing.T, plugins map[string]*plugin) (s *Set, heard <-chan string) {
	t.Helper()
	conns := map[string]grpc.ClientConnInterface{}
	for name, p := range plugins {
		conns[name] = serve(t, p)
	}
	s = New(conns, nil, slog.New(slog.DiscardHandler))
	ch := make(chan string, 100)
	s.Subscribe(func(uid string) { ch <- uid })
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return s, ch
}

func serve(t *testing.T, p *plugin) *grpc.ClientConn {
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
	t.Cleanup(func() { _ = conn.Close(); server.Stop() })
	return conn
}

// await waits until a machine's uid is reported and ok holds.
func await(t *testing.T, heard <-chan string, ok func() bool) {
	t.Helper()
	limit := time.After(2 * time.Minute)
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
	if _, err := s.For(m.Spec.ProviderSpec.Value); !errors.Is(err, errUnknownKind) {
		t.Errorf("For = %v, want errUnknownKind", err)
	}
}

func TestAnInitialListThatEndsTwiceForgetsNothing(t *testing.T) {
	p := &plugin{instances: []*providerv1.Instance{{MachineUid: "a", State: "Running"}}, twice: true}
	s, heard := start(t, p)
	await(t, heard, func() bool { return s.Instance(machine("a")) != nil })
	p.set(func() { p.instances = append(p.instances, &providerv1.Instance{MachineUid: "b"}) })
	await(t, heard, func() bool { return s.Instance(machine("b")) != nil })
	if s.Instance(machine("a")) == nil {
		t.Error("the first instance was forgotten")
	}
}

func TestTheSecondProviderOfAKindIsNotInForce(t *testing.T) {
	first, second := &plugin{}, &plugin{away: true}
	s, _ := startAll(t, map[string]*plugin{"provider-one": first, "provider-two": second})
	m := machine("a")
	p := ofKind(t, s, m)
	second.set(func() { second.away = false })
	eventually(t, func() bool { return s.isContested("TestSpec") })
	if now, err := s.For(m.GetSpec().GetProviderSpec().GetValue()); err != nil || now != p {
		t.Errorf("For = %v, %v; want the one that was there first", now, err)
	}
	m.Spec.ProviderId = "test://a"
	if _, err := s.Of(m); !errors.Is(err, errContested) {
		t.Errorf("the provider of an instance that either may have made: %v, want errContested", err)
	}
	m.Metadata.Annotations = map[string]string{plan.AnnotationProvider: "provider-two"}
	if now, err := s.Of(m); err != nil || now.Name != "provider-two" {
		t.Errorf("Of = %v, %v; want the one that was asked", now, err)
	}
	m.Metadata.Annotations = map[string]string{plan.AnnotationProvider: "provider-three"}
	if _, err := s.Of(m); !errors.Is(err, errNotConnected) {
		t.Errorf("Of a provider without a connection: %v, want errNotConnected", err)
	}
}

func TestAnAnswerFromAfterALaterLeaderIsNotBelieved(t *testing.T) {
	p := &plugin{fence: 8}
	s, heard := start(t, p)
	m := machine("a")
	ofKind(t, s, m)
	ctx, cancel := context.WithCancel(store.WithFence(t.Context(), store.Fence{CreateRevision: 7}))
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { _ = s.Lead(ctx, nil) })
	if err := s.Begin(Delete, m); err != nil {
		t.Fatal(err)
	}
	await(t, heard, func() bool { return !s.Answered(Delete, m).Busy })
	if h := s.Answered(Delete, m); !errors.Is(h.Err, errOvertaken) || h.Absent {
		t.Errorf("Answer = %+v, want errOvertaken", h)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	limit, tick := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the condition never held")
		}
	}
}

func ofKind(t *testing.T, s *Set, m *machinev1.Machine) *Plugin {
	t.Helper()
	var p *Plugin
	eventually(t, func() bool {
		var err error
		p, err = s.Of(m)
		return err == nil
	})
	return p
}

// A creation waits while others hang; its machine is deleted before its turn comes.
func TestAQueuedCreationOfAMachineThatIsGoneIsNotBegun(t *testing.T) {
	p := &plugin{cut: make(chan struct{})}
	s := New(map[string]grpc.ClientConnInterface{"provider-test": serve(t, p)}, nil, slog.New(slog.DiscardHandler))
	joined := map[string]bool{}
	s.bootstrap = func(_ context.Context, m *machinev1.Machine) (*providerv1.Bootstrap, error) {
		joined[m.GetMetadata().GetUid()] = true
		return &providerv1.Bootstrap{}, nil
	}
	for _, uid := range []string{"uid-gone", "uid-kept"} {
		m := machine(uid)
		m.Metadata.Annotations = map[string]string{plan.AnnotationProvider: "provider-test"}
		l := s.plugins[0].lanes[Create]
		l.begin(m)
		if uid == "uid-gone" {
			s.Forget(m)
		}
		if _, err := l.call(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	if joined["uid-gone"] || !joined["uid-kept"] {
		t.Errorf("creations were begun for %v", joined)
	}
	if l := s.plugins[0].lanes[Create]; len(l.answers) != 1 || len(l.waiting) > 0 {
		t.Errorf("answers %v and %d calls are kept", l.answers, len(l.waiting))
	}
}

// A call may hang until after its machine is gone. Its answer is kept for no one.
func TestAnAnswerForAMachineThatIsGoneIsNotKept(t *testing.T) {
	p := &plugin{cut: make(chan struct{})}
	s := New(map[string]grpc.ClientConnInterface{"provider-test": serve(t, p)}, nil, slog.New(slog.DiscardHandler))
	m := &machinev1.Machine{Metadata: &metav1.ObjectMeta{
		Name: "m", Uid: "uid-m", Annotations: map[string]string{plan.AnnotationProvider: "provider-test"},
	}}
	for purpose := range purposes {
		l := s.plugins[0].lanes[purpose]
		if purpose == Create {
			continue // it needs a term
		}
		l.begin(m)
		s.Forget(m)
		if _, err := l.call(t.Context(), "uid-m"); err != nil {
			t.Fatal(err)
		}
		if len(l.answers) > 0 || len(l.waiting) > 0 {
			t.Errorf("answers %v and %d calls are kept", l.answers, len(l.waiting))
		}
		l.begin(m)
		if _, err := l.call(t.Context(), "uid-m"); err != nil {
			t.Fatal(err)
		}
		if h := s.Answered(purpose, m); h.At.IsZero() || h.Busy {
			t.Errorf("answer %v of a machine that exists", h)
		}
		if s.Forget(m); len(l.answers) > 0 {
			t.Errorf("answers %v are kept", l.answers)
		}
	}
}
