package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/kit/topology"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// gatewayVariable makes the test's executable a gateway: the directory of its certificate, and the address to listen
// on.
const gatewayVariable = "TEST_GATEWAY"

func TestMain(m *testing.M) {
	if v := os.Getenv(gatewayVariable); v != "" {
		dir, address, _ := strings.Cut(v, " ")
		if err := serveGateway(dir, address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// answering is a gateway and what is behind it: it says through which gateway a call came. While it does not serve it
// refuses unary calls, as the real one does.
type answering struct {
	nodev1.UnimplementedNodeAgentServiceServer
	address string
	refuses atomic.Bool
}

func (a *answering) RegisterNode(context.Context, *nodev1.RegisterNodeRequest) (*nodev1.Node, error) {
	if a.refuses.Load() {
		return nil, rpcerr.Unavailable("this gateway is not serving")
	}
	return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: a.address}}, nil
}

func (a *answering) Heartbeat(s grpc.BidiStreamingServer[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(&nodev1.HeartbeatResponse{BootId: a.address}); err != nil {
			return err
		}
	}
}

// serveGateway serves until it is killed. SIGUSR1 makes it stop serving, SIGUSR2 begin again.
func serveGateway(dir, address string) error {
	files := identity.Files{
		Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt"),
	}
	settings, err := files.ServerTLS(tls.VerifyClientCertIfGiven)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	a, alive := &answering{address: l.Addr().String()}, health.NewServer()
	words := make(chan os.Signal, 1)
	signal.Notify(words, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP)
	go func() {
		for s := range words {
			if s == syscall.SIGHUP { // it serves, but does not reach the leaders
				alive.SetServingStatus(topology.HealthForAgents, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
				continue
			}
			say(a, alive, s == syscall.SIGUSR2)
		}
	}()
	fmt.Println(l.Addr())
	return newServer(settings, a, alive).Serve(l)
}

func say(a *answering, alive *health.Server, serves bool) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serves {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	alive.SetServingStatus("", state)
	a.refuses.Store(!serves)
}

func newServer(settings *tls.Config, a *answering, alive *health.Server) *grpc.Server {
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(settings)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	nodev1.RegisterNodeAgentServiceServer(s, a)
	grpc_health_v1.RegisterHealthServer(s, alive)
	return s
}

// process is a gateway in a process of its own.
type process struct {
	t       *testing.T
	dir     string
	address string
	cmd     *exec.Cmd
}

func newProcess(t *testing.T, ground *servetest.Ground) *process {
	t.Helper()
	p := &process{t: t, dir: filepath.Dir(ground.Files(servetest.Service("gateway")).Cert), address: "127.0.0.1:0"}
	t.Cleanup(p.kill)
	p.start()
	return p
}

func (p *process) start() {
	p.t.Helper()
	p.cmd = exec.Command(os.Args[0]) //nolint:gosec // the test itself
	p.cmd.Env = append(os.Environ(), gatewayVariable+"="+p.dir+" "+p.address)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = strings.TrimSpace(line)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// connect returns an agent's connection to gateways.
func connect(t *testing.T, ground *servetest.Ground, gateways ...*process) *Conn {
	t.Helper()
	files := ground.Files(servetest.Node("m-0"))
	var endpoints []string
	for _, g := range gateways {
		endpoints = append(endpoints, g.address)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	c, err := New(endpoints, func(endpoint string) (*grpc.ClientConn, error) {
		cfg, err := files.ClientTLS("127.0.0.1")
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("passthrough:///"+endpoint,
			grpc.WithTransportCredentials(credentials.NewTLS(identity.WithURI(cfg, identity.ServiceURI("gateway")))),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 2,
				MaxDelay: time.Second,
			}, MinConnectTimeout: 5 * time.Second}))
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// caller makes calls one after the other until the test ends, and none of them may fail.
type caller struct {
	mu   sync.Mutex
	by   map[string]int // answers, by the gateway
	last string
}

func newCaller(t *testing.T, c *Conn) *caller {
	k := &caller{by: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(ctx, 30*time.Second)
			n, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(call, &nodev1.RegisterNodeRequest{})
			cancel()
			if err != nil && ctx.Err() == nil {
				t.Errorf("a call failed: %v", err)
			}
			k.mu.Lock()
			k.last = n.GetMetadata().GetName()
			k.by[k.last]++
			k.mu.Unlock()
			<-ticker.C
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return k
}

func (k *caller) await(t *testing.T, p *process) {
	t.Helper()
	servetest.Await(t, func() string {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.last != p.address {
			return fmt.Sprintf("calls through %s; so far %v", p.address, k.by)
		}
		return ""
	})
}

// beats opens a stream and returns it once it has an answer, which must come through p.
func beats(t *testing.T, c *Conn, p *process) grpc.BidiStreamingClient[nodev1.HeartbeatRequest,
	nodev1.HeartbeatResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // or a stream that is not left would hang the test
	t.Cleanup(cancel)
	s, err := nodev1.NewNodeAgentServiceClient(c).Heartbeat(ctx)
	if err != nil {
		t.Fatal(err)
	}
	beat(t, s, p)
	return s
}

func beat(t *testing.T, s grpc.BidiStreamingClient[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse], p *process) {
	t.Helper()
	if err := s.Send(&nodev1.HeartbeatRequest{}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || r.GetBootId() != p.address {
		t.Fatalf("answer %v, %v, want one through %s", r, err, p.address)
	}
}

func TestAGatewayThatIsLostIsLeftForAnotherAndReturnedTo(t *testing.T) {
	for name, tc := range map[string]struct {
		lose, restore func(p *process)
	}{
		"it does not serve": {func(p *process) { p.signal(syscall.SIGUSR1) }, func(p *process) { p.signal(syscall.SIGUSR2) }},
		"it is killed":      {(*process).kill, (*process).start},
		"it hangs":          {func(p *process) { p.signal(syscall.SIGSTOP) }, func(p *process) { p.signal(syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ground := servetest.New(t)
			a, b := newProcess(t, ground), newProcess(t, ground)
			c := connect(t, ground, a, b)
			calls := newCaller(t, c)
			calls.await(t, a)
			for range 2 { // what is left behind of the first time does not hinder the second
				s := beats(t, c, a)
				tc.lose(a)
				if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
					t.Errorf("the stream ended with %v", err)
				}
				calls.await(t, b)
				s = beats(t, c, b)
				tc.restore(a)
				calls.await(t, a)
				if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
					t.Errorf("the stream through the gateway that is not preferred ended with %v", err)
				}
			}
		})
	}
}

func (c *Conn) states() []plan.Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []plan.Health
	for _, l := range c.links {
		out = append(out, l.state.Health)
	}
	return out
}

func (c *Conn) await(t *testing.T, want ...plan.Health) {
	t.Helper()
	servetest.Await(t, func() string {
		if got := c.states(); !slices.Equal(got, want) {
			return fmt.Sprintf("gateways are %v, want %v", got, want)
		}
		return ""
	})
}

// Without a majority of etcd no gateway serves, and the guardian orders members through streams that are open, or are
// opened then.
func TestStreamsStayAndOpenWhileNoGatewayServes(t *testing.T) {
	ground := servetest.New(t)
	a, b := newProcess(t, ground), newProcess(t, ground)
	c := connect(t, ground, a, b)
	s := beats(t, c, a)
	b.signal(syscall.SIGUSR1)
	a.signal(syscall.SIGUSR1)
	c.await(t, plan.NotServing, plan.NotServing)
	beat(t, s, a)
	beats(t, c, a)
	if _, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{}); status.Code(
		err) != codes.Unavailable {
		t.Errorf("a call ended with %v", err)
	}
	beat(t, s, a)
	a.kill()
	c.await(t, plan.Away, plan.NotServing)
	other := beats(t, c, b)
	a.start()
	a.signal(syscall.SIGUSR1)
	b.signal(syscall.SIGUSR2)
	c.await(t, plan.NotServing, plan.Serving)
	newCaller(t, c).await(t, b)
	beat(t, other, b)
}

func TestTheOnlyGatewayIsCalledWhateverItSays(t *testing.T) {
	ground := servetest.New(t)
	a := newProcess(t, ground)
	c := connect(t, ground, a)
	s := beats(t, c, a)
	a.signal(syscall.SIGUSR1)
	servetest.Await(t, func() string {
		_, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{})
		if status.Code(err) != codes.Unavailable {
			return "the gateway refuses calls"
		}
		return ""
	})
	beat(t, s, a)
	a.signal(syscall.SIGUSR2)
	servetest.Await(t, func() string {
		if _, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(t.Context(),
			&nodev1.RegisterNodeRequest{}); err != nil {
			return err.Error()
		}
		return ""
	})
	beat(t, s, a)
	a.kill()
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	a.start()
	awaitAnswer(t, c, a)
}

// awaitAnswer calls until p answers.
func awaitAnswer(t *testing.T, c *Conn, p *process) {
	t.Helper()
	servetest.Await(t, func() string {
		n, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{})
		if err != nil || n.GetMetadata().GetName() != p.address {
			return fmt.Sprintf("%s answers: %v, %v", p.address, n, err)
		}
		return ""
	})
}

func TestAGatewayThatDoesNotReachTheLeadersIsLeft(t *testing.T) {
	ground := servetest.New(t)
	a, b := newProcess(t, ground), newProcess(t, ground)
	a.signal(syscall.SIGHUP)
	newCaller(t, connect(t, ground, a, b)).await(t, b)
	newCaller(t, connect(t, ground, a)).await(t, a) // there is no other one
}

func TestOtherGatewaysReplaceTheFormerOnes(t *testing.T) {
	ground := servetest.New(t)
	a, b := newProcess(t, ground), newProcess(t, ground)
	c := connect(t, ground, a)
	calls := newCaller(t, c)
	calls.await(t, a)
	s := beats(t, c, a)
	if err := c.SetEndpoints([]string{a.address, b.address}); err != nil {
		t.Fatal(err)
	}
	beat(t, s, a)
	if err := c.SetEndpoints([]string{b.address}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	calls.await(t, b)
	if err := c.SetEndpoints(nil); err == nil {
		t.Error("no gateways are taken over")
	}
	beats(t, c, b)
}

func TestGatewaysOfAFileAreFollowed(t *testing.T) {
	ground := servetest.New(t)
	a, b := newProcess(t, ground), newProcess(t, ground)
	c := connect(t, ground, a)
	file := filepath.Join(t.TempDir(), "gateways")
	list := func() ([]string, error) {
		raw, err := os.ReadFile(file)
		return strings.Fields(string(raw)), err
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.FollowFile(ctx, file, list, slog.New(slog.DiscardHandler)) }()
	calls := newCaller(t, c)
	calls.await(t, a)
	if err := os.WriteFile(file, []byte(b.address+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	calls.await(t, b)
	if err := os.WriteFile(file, nil, 0o600); err != nil { // none: those of before stay
		t.Fatal(err)
	}
	calls.await(t, b)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheEndOfTheConnectionEndsEverything(t *testing.T) {
	ground := servetest.New(t)
	a, b := newProcess(t, ground), newProcess(t, ground)
	c := connect(t, ground, a, b)
	s := beats(t, c, a)
	c.Close()
	if _, err := s.Recv(); err == nil || err == io.EOF {
		t.Errorf("the stream ended with %v", err)
	}
	if _, err := nodev1.NewNodeAgentServiceClient(c).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{}); err == nil {
		t.Error("a call was answered")
	}
}
