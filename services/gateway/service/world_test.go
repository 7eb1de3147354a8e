package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/large"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

const (
	waitLimit = 2 * time.Minute // a test that waits longer has failed
	goodToken = "a-token-for-carol"
)

// world is a gateway with backends that keep what they were asked.
type world struct {
	t        *testing.T
	ground   *servetest.Ground
	dir      string
	address  string
	machines *machines
	hooks    *hooks
	nodes    *nodes
	planner  *planner
	stops    map[string]func() // backends by program
	peers    map[string]string
}

func newWorld(t *testing.T) *world { return newWorldWith(t, func(*Config) {}) }

func newWorldWith(t *testing.T, change func(*Config)) *world {
	t.Helper()
	w := startWorld(t, change)
	w.until(func() bool { return w.do("GET", "/readyz", nil, "", nil).StatusCode == http.StatusOK })
	return w
}

// startWorld does not wait until the gateway is ready.
func startWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	w := &world{
		t: t, ground: servetest.New(t), dir: t.TempDir(), stops: map[string]func(){}, peers: map[string]string{},
		machines: &machines{cancelled: make(chan struct{}, 100), entered: make(chan struct{}, 100)},
		hooks:    &hooks{}, nodes: &nodes{}, planner: &planner{},
	}
	for _, program := range []string{"machine-api", "hook-broker", "eviction-controller"} {
		w.peers[program] = freeAddress(t)
		w.start(program, w.peers[program])
	}
	own := servetest.Service("gateway")
	own.DNSNames = []string{"gateway", "localhost"} // as `windlass up` issues it
	config := Config{
		Config: serve.Config{
			Name: "gateway", Dir: w.dir,
			TLSDir: filepath.Dir(w.ground.Files(own).Cert), Peers: w.peers,
		},
		TokensFile: w.tokens(),
	}
	change(&config)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, config, l, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the gateway ended with %v", err)
			}
		case <-time.After(waitLimit):
			t.Error("the gateway did not stop")
		}
		for _, stop := range w.stops {
			stop()
		}
	})
	return w
}

// until waits for a condition that comes true by itself.
func (w *world) until(condition func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			w.t.Fatal("the condition did not come true")
		}
		<-tick.C
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *world) tokens() string {
	sum := sha256.Sum256([]byte(goodToken))
	path := filepath.Join(w.dir, "tokens")
	line := fmt.Sprintf(
		"# tests\n{\"sha256\":%q,\"user\":\"carol\",\"groups\":[\"viewers\"],\"expires\":\"2126-01-01T00:00:00Z\"}\n",
		hex.EncodeToString(sum[:]))
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// start starts a backend; the function in stops kills it with its connections.
func (w *world) start(program, address string) {
	w.t.Helper()
	settings, err := w.ground.Files(servetest.Service(program)).ServerTLS(tls.RequireAndVerifyClientCert)
	if err != nil {
		w.t.Fatal(err)
	}
	var l net.Listener
	w.until(func() bool {
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(settings)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.StaticStreamWindowSize(256<<10), grpc.StaticConnWindowSize(1<<20), grpc.MaxRecvMsgSize(large.MaxMessage))
	switch program {
	case "machine-api":
		machinev1.RegisterMachineServiceServer(s, w.machines)
		machinev1.RegisterJoinServiceServer(s, w.machines)
	case "hook-broker":
		hookv1.RegisterHookTaskServiceServer(s, w.hooks)
	case "eviction-controller":
		nodev1.RegisterNodeAgentServiceServer(s, w.nodes)
		nodev1.RegisterNodeServiceServer(s, w.planner)
	}
	eventv1.RegisterEventServiceServer(s, &eventsOf{program: program})
	go s.Serve(l) //nolint:errcheck
	w.stops[program] = s.Stop
}

// user returns TLS settings of a client; without a name it shows no certificate.
func (w *world) user(name string, protocols ...string) *tls.Config {
	w.t.Helper()
	settings := &tls.Config{
		RootCAs: w.ground.Authority.Pool(), ServerName: "127.0.0.1", NextProtos: protocols,
		MinVersion: tls.VersionTLS13,
	}
	if name != "" {
		cert, key, err := w.ground.Authority.Issue(servetest.User(name, "staff"))
		if err != nil {
			w.t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			w.t.Fatal(err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings
}

// lane makes gRPC clients of one kind.
type lane struct {
	name string
	// both is true for a client that also offers HTTP/1.1, and so comes to net/http.
	both bool
}

var lanes = []lane{{name: "gRPC's own transport"}, {name: "net/http", both: true}}

func (w *world) grpc(user string, l lane) *grpc.ClientConn {
	w.t.Helper()
	creds := credentials.NewTLS(w.user(user))
	if l.both {
		creds = offering{w.user(user, "h2", "http/1.1")}
	}
	conn, err := grpc.NewClient("passthrough:///"+w.address, grpc.WithTransportCredentials(creds),
		grpc.WithStaticStreamWindowSize(256<<10), grpc.WithStaticConnWindowSize(1<<20))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// offering are client credentials that offer what gRPC's own do not.
type offering struct{ settings *tls.Config }

func (o offering) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Client(raw, o.settings)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{
		SecurityLevel: credentials.PrivacyAndIntegrity,
	}}, nil
}

func (offering) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, io.ErrUnexpectedEOF
}

func (offering) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (o offering) Clone() credentials.TransportCredentials { return o }
func (offering) OverrideServerName(string) error           { return nil }

// answerOf is what came back over HTTP.
type answerOf struct {
	*http.Response
	body string
}

func (w *world) http(user string, protocols ...string) *http.Client {
	transport := &http.Transport{TLSClientConfig: w.user(user, protocols...), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(true)
	transport.Protocols.SetHTTP2(len(protocols) > 1)
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// do sends one request over HTTP/1.1 as alice, unless client is another.
func (w *world) do(method, path string, header http.Header, body string, client *http.Client) answerOf {
	w.t.Helper()
	if client == nil {
		client = w.http("alice", "http/1.1")
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, "https://"+w.address+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for key, values := range header {
		r.Header[key] = values
	}
	got, err := client.Do(r)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer got.Body.Close()
	data, err := io.ReadAll(got.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answerOf{Response: got, body: string(data)}
}

// refusals are the records of the gateway's refusals so far. They are written a moment after the answer.
func (w *world) refusals() []audit.Record {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, audit.RefusalsFile))
	if err != nil {
		w.t.Fatal(err)
	}
	var records []audit.Record
	for line := range bytes.Lines(data) {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err == nil && r.Event == "" { // the last line may be cut off: it is being written
			records = append(records, r)
		}
	}
	return records
}

// machines is a backend whose answers depend on the name that is asked for.
type machines struct {
	machinev1.UnimplementedMachineServiceServer
	machinev1.UnimplementedJoinServiceServer
	cancelled chan struct{}
	entered   chan struct{}

	mu   sync.Mutex
	sent int // messages of "flood" that the transport took
}

func (m *machines) GetMachine(ctx context.Context, r *machinev1.GetMachineRequest) (*machinev1.Machine, error) {
	switch r.GetName() {
	case "missing":
		return nil, rpcerr.NotFound("Machine", r.GetName())
	case "big":
		return &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: strings.Repeat("x", 8<<20)}}, nil
	case "slow":
		m.entered <- struct{}{}
		<-ctx.Done()
		m.cancelled <- struct{}{}
		return nil, ctx.Err()
	}
	return machine(ctx, r.GetNamespace(), r.GetName()), nil
}

// machine returns in annotations what the backend saw of its caller.
func machine(ctx context.Context, namespace, name string) *machinev1.Machine {
	md, _ := metadata.FromIncomingContext(ctx)
	seen := map[string]string{}
	for key, values := range md {
		seen[key] = strings.Join(values, ",")
	}
	return &machinev1.Machine{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "Machine",
		Metadata: &metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "7", Annotations: seen},
	}
}

func (m *machines) ListMachines(ctx context.Context, r *machinev1.ListMachinesRequest) (*machinev1.MachineList, error) {
	return &machinev1.MachineList{
		ApiVersion: "machine.openshift.io/v1beta1", Kind: "MachineList",
		Metadata: &metav1.ListMeta{ResourceVersion: "7"},
		Items:    []*machinev1.Machine{{Metadata: &metav1.ObjectMeta{Name: "selected-by-" + r.GetLabelSelector()}}},
	}, nil
}

func (m *machines) CreateMachine(_ context.Context, r *machinev1.CreateMachineRequest) (*machinev1.Machine, error) {
	if r.GetMachine() == nil {
		return nil, rpcerr.Invalid(object.Fault{Path: "machine", Description: "is required"})
	}
	if r.GetDryRun() != "" {
		r.Machine.Metadata = &metav1.ObjectMeta{Name: r.GetMachine().GetMetadata().GetName(), Annotations: map[string]string{
			"dryRun": r.GetDryRun(),
		}}
	}
	return r.GetMachine(), nil
}

func (m *machines) PatchMachine(_ context.Context, r *machinev1.PatchMachineRequest) (*machinev1.Machine, error) {
	return &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: r.GetName(), Annotations: map[string]string{
		"type": r.GetPatch().GetContentType(), "patch": string(r.GetPatch().GetData()),
	}}}, nil
}

func (m *machines) WatchMachines(r *machinev1.WatchMachinesRequest,
	stream grpc.ServerStreamingServer[machinev1.WatchMachinesResponse],
) error {
	switch r.GetLabelSelector() {
	case "flood":
		return m.flood(stream)
	case "expired":
		return rpcerr.Expired("revision 3 is gone")
	}
	events := []*machinev1.WatchMachinesResponse_Event{
		{Type: "ADDED", Object: machine(stream.Context(), "ns", "a")},
		{Type: "MODIFIED", Object: &machinev1.Machine{Metadata: &metav1.ObjectMeta{Name: "b"}}},
	}
	if r.GetLabelSelector() == "big" {
		events[1].Object.Metadata.Name = strings.Repeat("x", 8<<20)
	}
	if err := stream.Send(&machinev1.WatchMachinesResponse{Events: events, ResourceVersion: "9"}); err != nil {
		return err
	}
	if r.GetLabelSelector() != "big" {
		if err := stream.Send(&machinev1.WatchMachinesResponse{ResourceVersion: "9", Bookmark: true}); err != nil {
			return err
		}
	}
	if r.GetLabelSelector() == "breaks" {
		return rpcerr.Unavailable("etcd has no leader")
	}
	m.entered <- struct{}{}
	<-stream.Context().Done()
	m.cancelled <- struct{}{}
	return stream.Context().Err()
}

// flood sends without end; flow control must stop it.
func (m *machines) flood(stream grpc.ServerStreamingServer[machinev1.WatchMachinesResponse]) error {
	message := &machinev1.WatchMachinesResponse{ResourceVersion: strings.Repeat("x", 64<<10), Bookmark: true}
	for {
		if err := stream.Send(message); err != nil {
			m.cancelled <- struct{}{}
			return err
		}
		m.mu.Lock()
		m.sent++
		m.mu.Unlock()
	}
}

func (m *machines) flooded() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent
}

func (m *machines) Join(ctx context.Context, r *machinev1.JoinRequest) (*machinev1.JoinResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &machinev1.JoinResponse{NodeName: r.GetToken(), MachineName: strings.Join(md.Get("windlass-user"), ",")}, nil
}

// hooks is a backend whose stream says at which address it runs.
type hooks struct {
	hookv1.UnimplementedHookTaskServiceServer
}

func (h *hooks) StreamHookTasks(_ *hookv1.StreamHookTasksRequest,
	stream grpc.ServerStreamingServer[hookv1.StreamHookTasksResponse],
) error {
	local, _ := grpc.Method(stream.Context())
	return status.Error(codes.FailedPrecondition, local)
}

// nodes is a backend with a stream in both directions.
type nodes struct {
	nodev1.UnimplementedNodeAgentServiceServer
}

func (n *nodes) Heartbeat(stream grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	if err := stream.SendHeader(metadata.Pairs("came", "before the first message")); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&nodev1.HeartbeatResponse{}); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("after", "the last message"))
	return rpcerr.Forbidden("this is another's node") // while the client keeps its side open
}

// eventsOf serves one event of a program.
type eventsOf struct {
	eventv1.UnimplementedEventServiceServer
	program string
}

func (e *eventsOf) event() *eventv1.Event {
	return &eventv1.Event{Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "of-" + e.program}}
}

func (e *eventsOf) ListEvents(context.Context, *eventv1.ListEventsRequest) (*eventv1.EventList, error) {
	return &eventv1.EventList{Metadata: &metav1.ListMeta{ResourceVersion: "5"}, Items: []*eventv1.Event{e.event()}}, nil
}

func (e *eventsOf) WatchEvents(_ *eventv1.WatchEventsRequest,
	stream grpc.ServerStreamingServer[eventv1.WatchEventsResponse],
) error {
	if err := stream.Send(&eventv1.WatchEventsResponse{
		Events:          []*eventv1.WatchEventsResponse_Event{{Type: "ADDED", Object: e.event()}},
		ResourceVersion: "5",
	}); err != nil {
		return err
	}
	if err := stream.Send(&eventv1.WatchEventsResponse{ResourceVersion: "5", Bookmark: true}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}
