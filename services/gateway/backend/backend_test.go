package backend_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoregistry"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/services/gateway/backend"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

const waitLimit = 30 * time.Second

// broker is a backend that says who it is.
type broker struct {
	hookv1.UnimplementedHookTaskServiceServer
	name string
}

func (b *broker) GetHookTask(context.Context, *hookv1.GetHookTaskRequest) (*hookv1.HookTask, error) {
	return &hookv1.HookTask{Kind: b.name}, nil
}

func (b *broker) StreamHookTasks(_ *hookv1.StreamHookTasksRequest,
	stream grpc.ServerStreamingServer[hookv1.StreamHookTasksResponse],
) error {
	return b.serve(stream)
}

func (b *broker) WatchHookTasks(_ *hookv1.WatchHookTasksRequest,
	stream grpc.ServerStreamingServer[hookv1.WatchHookTasksResponse],
) error {
	return b.serve(stream)
}

func (b *broker) serve(stream grpc.ServerStream) error {
	if err := stream.SendHeader(map[string][]string{"name": {b.name}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// guardian is a backend of the quorum that says who it is.
type guardian struct {
	etcdv1.UnimplementedQuorumServiceServer
	broker
}

func (g *guardian) AttendMember(_ *etcdv1.AttendMemberRequest,
	stream grpc.ServerStreamingServer[etcdv1.AttendMemberResponse],
) error {
	return g.serve(stream)
}

// pods is a backend of pods that says who it is.
type pods struct {
	schedulingv1.UnimplementedPodServiceServer
	name string
	// A creation of the pod "slow" is sent here, and answered when what was sent is closed.
	slow chan chan struct{}
}

func (p *pods) CreatePod(_ context.Context, r *schedulingv1.CreatePodRequest) (*schedulingv1.Pod, error) {
	if r.GetPod().GetMetadata().GetName() == "slow" {
		answer := make(chan struct{})
		p.slow <- answer
		<-answer
	}
	return &schedulingv1.Pod{Kind: p.name}, nil
}

func (p *pods) GetPod(context.Context, *schedulingv1.GetPodRequest) (*schedulingv1.Pod, error) {
	return &schedulingv1.Pod{Kind: p.name}, nil
}

func start(t *testing.T, name string) string {
	address, _ := startSlow(t, name)
	return address
}

// startSlow also returns where creations of the pod "slow" arrive.
func startSlow(t *testing.T, name string) (string, <-chan chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	slow := make(chan chan struct{})
	s := serve(t, l, name, slow)
	t.Cleanup(s.Stop)
	return l.Addr().String(), slow
}

func serve(t *testing.T, l net.Listener, name string, slow chan chan struct{}) *grpc.Server {
	t.Helper()
	s := grpc.NewServer(grpc.MaxConcurrentStreams(1000),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	hookv1.RegisterHookTaskServiceServer(s, &broker{name: name})
	etcdv1.RegisterQuorumServiceServer(s, &guardian{broker: broker{name: name}})
	schedulingv1.RegisterPodServiceServer(s, &pods{name: name, slow: slow})
	go s.Serve(l) //nolint:errcheck
	return s
}

func routerTo(t *testing.T, peers map[string]string, options ...grpc.DialOption) (*backend.Router, *backend.Pool) {
	t.Helper()
	c, err := catalog.New(protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := backend.NewPool(peers, func(string) (credentials.TransportCredentials, error) {
		return insecure.NewCredentials(), nil
	}, slog.New(slog.DiscardHandler), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return backend.NewRouter(c, pool), pool
}

func asAlice(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	return identity.WithCaller(ctx, identity.Caller{User: "alice"})
}

// nameOf is who answers a stream.
func nameOf(t *testing.T, stream grpc.ClientStream, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil || len(header.Get("name")) != 1 {
		t.Fatalf("header %v, %v", header, err)
	}
	return header.Get("name")[0]
}

func TestStreamsOfOwnersGoToTheLeaderAndAllElseDoesNot(t *testing.T) {
	router, pool := routerTo(t, map[string]string{"hook-broker": start(t, "first")})
	second := start(t, "second")
	c := hookv1.NewHookTaskServiceClient(router)
	ctx := asAlice(t)
	owner := func() (string, grpc.ClientStream) {
		stream, err := c.StreamHookTasks(ctx, &hookv1.StreamHookTasksRequest{})
		return nameOf(t, stream, err), stream
	}
	if name, _ := owner(); name != "first" {
		t.Errorf("without a leader: %s", name)
	}
	pool.SetLeaders(map[string]string{"hook-broker": second, "another": second})
	name, stream := owner()
	if name != "second" {
		t.Errorf("with a leader: %s", name)
	}
	watch, err := c.WatchHookTasks(ctx, &hookv1.WatchHookTasksRequest{})
	if name := nameOf(t, watch, err); name != "first" {
		t.Errorf("a watch: %s", name)
	}
	if got, err := c.GetHookTask(ctx, &hookv1.GetHookTaskRequest{}); err != nil || got.GetKind() != "first" {
		t.Errorf("a call: %v, %v", got, err)
	}
	pool.SetLeaders(nil)
	if err := stream.RecvMsg(&hookv1.StreamHookTasksResponse{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream to the former leader ended with %v", err)
	}
	if name, _ := owner(); name != "first" {
		t.Errorf("without a leader again: %s", name)
	}
}

// A pod is placed before it is stored only if the leader stores it. Any replica can store pods, so a leader that died
// is not waited for.
func TestPodsAreCreatedAtTheLeaderWhileItIsConnected(t *testing.T) {
	router, pool := routerTo(t, map[string]string{"scheduler": start(t, "first")})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	second := serve(t, l, "second", nil)
	defer second.Stop()
	c := schedulingv1.NewPodServiceClient(router)
	ctx := asAlice(t)
	awaitCreator := func(want string) {
		t.Helper()
		for {
			got, err := c.CreatePod(ctx, &schedulingv1.CreatePodRequest{})
			if ctx.Err() != nil {
				t.Fatalf("created by %v, %v; want %s", got, err, want)
			}
			if err == nil && got.GetKind() == want {
				return
			}
		}
	}
	awaitCreator("first")
	pool.SetLeaders(map[string]string{"scheduler": l.Addr().String()})
	awaitCreator("second")
	if got, err := c.GetPod(ctx, &schedulingv1.GetPodRequest{}); err != nil || got.GetKind() != "first" {
		t.Errorf("another call: %v, %v", got, err)
	}
	second.Stop() // and no other leads yet
	awaitCreator("first")
}

func TestLeadersThatAreAwayAreNamed(t *testing.T) {
	_, pool := routerTo(t, map[string]string{"scheduler": start(t, "first"), "machine-api": start(t, "other")})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	second := serve(t, l, "second", nil)
	defer second.Stop()
	pool.SetLeaders(map[string]string{"scheduler": l.Addr().String()})
	await := func(want ...string) {
		t.Helper()
		ctx := asAlice(t)
		for !slices.Equal(pool.LeadersAway(0), want) {
			if ctx.Err() != nil {
				t.Fatalf("away: %q, want %q", pool.LeadersAway(0), want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	await()
	second.Stop()
	await("scheduler")
	if away := pool.LeadersAway(time.Hour); len(away) > 0 {
		t.Errorf("%q are away for an hour", away)
	}
	pool.SetLeaders(nil)
	await()
}

// What a call did whose connection is closed would not be known.
func TestACallToAFormerLeaderIsAnswered(t *testing.T) {
	router, pool := routerTo(t, map[string]string{"scheduler": start(t, "first")})
	address, slow := startSlow(t, "second")
	pool.SetLeaders(map[string]string{"scheduler": address})
	c := schedulingv1.NewPodServiceClient(router)
	ctx := asAlice(t)
	for { // until the leader is connected
		got, err := c.CreatePod(ctx, &schedulingv1.CreatePodRequest{})
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		if got.GetKind() == "second" {
			break
		}
	}
	created := make(chan error)
	go func() {
		_, err := c.CreatePod(ctx, &schedulingv1.CreatePodRequest{
			Pod: &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: "slow"}},
		})
		created <- err
	}()
	answer := <-slow
	pool.SetLeaders(nil)
	if got, err := c.CreatePod(ctx, &schedulingv1.CreatePodRequest{}); err != nil || got.GetKind() != "first" {
		t.Errorf("the next call: %v, %v", got, err)
	}
	close(answer)
	if err := <-created; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
}

func TestMoreStreamsThanAConnectionHasDoNotHoldCallsBack(t *testing.T) {
	router, _ := routerTo(t, map[string]string{"hook-broker": start(t, "only")})
	c := hookv1.NewHookTaskServiceClient(router)
	ctx := asAlice(t)
	for range 2100 {
		stream, err := c.WatchHookTasks(ctx, &hookv1.WatchHookTasksRequest{})
		nameOf(t, stream, err)
	}
	if _, err := c.GetHookTask(ctx, &hookv1.GetHookTaskRequest{}); err != nil {
		t.Errorf("a call beside 2,100 streams: %v", err)
	}
}

// A backend that is cut off with the gateway would answer only when its own time is over.
func TestCallsEndWhenTheGatewayNoLongerServes(t *testing.T) {
	address, slow := startSlow(t, "only")
	router, _ := routerTo(t, map[string]string{"scheduler": address})
	router.SetServing(nil)
	c := schedulingv1.NewPodServiceClient(router)
	failed := make(chan error, 1)
	go func() {
		_, err := c.CreatePod(asAlice(t), &schedulingv1.CreatePodRequest{
			Pod: &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: "slow"}},
		})
		failed <- err
	}()
	answer := <-slow
	defer close(answer)
	router.SetServing(errors.New("no read from etcd"))
	want := "no read from etcd; what the call did is not known"
	if err := <-failed; status.Code(err) != codes.Unavailable || status.Convert(err).Message() != want {
		t.Errorf("CreatePod = %v, want %q", err, want)
	}
	if _, err := c.GetPod(asAlice(t), &schedulingv1.GetPodRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a later call: %v", err)
	}
	router.SetServing(nil)
	if _, err := c.GetPod(asAlice(t), &schedulingv1.GetPodRequest{}); err != nil {
		t.Errorf("once it serves again: %v", err)
	}
}

func TestACallWithoutACallerDoesNotLeave(t *testing.T) {
	router, _ := routerTo(t, map[string]string{"hook-broker": start(t, "only")})
	c := hookv1.NewHookTaskServiceClient(router)
	if _, err := c.GetHookTask(t.Context(), &hookv1.GetHookTaskRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("GetHookTask = %v", err)
	}
	if _, err := c.WatchHookTasks(t.Context(), &hookv1.WatchHookTasksRequest{}); status.Code(
		err) != codes.Unauthenticated {
		t.Errorf("WatchHookTasks = %v", err)
	}
}

// nearest resolves the nearest process of every program to one address.
func nearest(address string) grpc.DialOption {
	r := manual.NewBuilderWithScheme("nearest")
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: address}}})
	return grpc.WithResolvers(r)
}

// A stream that was opened at a process which does not lead would stay there.
func TestAStreamForTheLeaderAwaitsOne(t *testing.T) {
	first, second := start(t, "first"), start(t, "second")
	router, pool := routerTo(t, map[string]string{"hook-broker": ""}, nearest(first))
	c := hookv1.NewHookTaskServiceClient(router)
	watch, err := c.WatchHookTasks(asAlice(t), &hookv1.WatchHookTasksRequest{})
	if name := nameOf(t, watch, err); name != "first" {
		t.Errorf("a watch goes to %q", name)
	}
	if _, err := c.StreamHookTasks(asAlice(t), &hookv1.StreamHookTasksRequest{}); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "hook-broker has no leader now") {
		t.Errorf("a stream while none leads: %v", err)
	}
	opened := make(chan string, 1)
	go func() {
		stream, err := c.StreamHookTasks(asAlice(t), &hookv1.StreamHookTasksRequest{})
		opened <- nameOf(t, stream, err)
	}()
	pool.SetLeaders(map[string]string{"hook-broker": second})
	if name := <-opened; name != "second" {
		t.Errorf("a stream for the leader goes to %q", name)
	}
}

// guarded is a resolver as that of kit/discovery, which has a lock while it says what has changed.
type guarded struct {
	*manual.Resolver
	mu *sync.Mutex
}

// Build implements resolver.Builder.
func (g guarded) Build(to resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions) (resolver.Resolver, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.Resolver.Build(to, cc, o)
	return g, err
}

// Close implements resolver.Resolver.
func (g guarded) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
}

// Without a majority of etcd no guardian leads, and each brings members back whose agents attend it.
func TestAnyGuardianTakesTheAgentsWhileItsLeaderIsAway(t *testing.T) {
	first, second := start(t, "first"), start(t, "second")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lost := serve(t, l, "lost", nil)
	r := guarded{manual.NewBuilderWithScheme("nearest"), &sync.Mutex{}}
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: first}}})
	router, pool := routerTo(t, map[string]string{"etcd-guardian": ""}, grpc.WithResolvers(r))
	lead := func(address string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		pool.SetLeaders(map[string]string{"etcd-guardian": address})
	}
	c := etcdv1.NewQuorumServiceClient(router)
	attend := func() (grpc.ServerStreamingClient[etcdv1.AttendMemberResponse], string) {
		t.Helper()
		for ctx := asAlice(t); ; { // as an agent does
			stream, err := c.AttendMember(ctx, &etcdv1.AttendMemberRequest{})
			if err == nil {
				if header, _ := stream.Header(); len(header.Get("name")) == 0 {
					_, err = stream.Recv()
				}
			}
			if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
				return stream, nameOf(t, stream, err)
			}
		}
	}
	ends := func(stream grpc.ServerStreamingClient[etcdv1.AttendMemberResponse], when string) {
		t.Helper()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: the stream to another guardian ends with %v", when, err)
		}
	}
	lead(l.Addr().String())
	if _, name := attend(); name != "lost" {
		t.Errorf("an agent attends %q, want the leader", name)
	}
	lost.Stop()
	stream, name := attend()
	if name != "first" {
		t.Errorf("while the leader is away an agent attends %q", name)
	}
	if l, err = net.Listen("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	lost = serve(t, l, "lost", nil)
	ends(stream, "the leader is back")
	if _, name := attend(); name != "lost" {
		t.Errorf("an agent attends %q, want the leader that is back", name)
	}
	lost.Stop()
	stream, _ = attend()
	lead(second)
	ends(stream, "another one leads")
	if _, name := attend(); name != "second" {
		t.Errorf("an agent attends %q, want the new leader", name)
	}
}
