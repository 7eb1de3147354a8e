package serve_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
)

// cluster issues the certificates of a test's services.
type cluster struct {
	t  *testing.T
	ca *identity.Authority
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	ca, err := identity.NewAuthority("windlass", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return cluster{t, ca}
}

// config creates the directories of one service, with a certificate for loopback.
func (c cluster) config(name string) serve.Config {
	c.t.Helper()
	dir := c.t.TempDir()
	c.issue(dir, "tls", c.ca, identity.Request{
		CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true,
	})
	c.write(filepath.Join(dir, "ca.crt"), c.ca.PEM())
	return serve.Config{
		Name: name, Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", Dir: filepath.Join(dir, "data"),
		TLSDir: dir,
	}
}

func (c cluster) issue(dir, file string, ca *identity.Authority, r identity.Request) {
	c.t.Helper()
	cert, key, err := ca.Issue(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(filepath.Join(dir, file+".crt"), cert)
	c.write(filepath.Join(dir, file+".key"), key)
}

func (c cluster) write(path string, content []byte) {
	c.t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func newProcess(t *testing.T, cfg serve.Config) *serve.Process {
	t.Helper()
	p, err := serve.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// start runs p and returns a function that ends it and waits.
func start(t *testing.T, p *serve.Process, parts ...func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, parts...) }()
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// machines is the service of the tested process.
type machines struct {
	machinev1.UnimplementedMachineServiceServer
	watching chan struct{}
	from     atomic.Value // string: where the last call of GetMachine came from
}

func (m *machines) GetMachine(ctx context.Context, r *machinev1.GetMachineRequest) (*machinev1.Machine, error) {
	if p, ok := peer.FromContext(ctx); ok {
		m.from.Store(p.Addr.String())
	}
	switch r.GetName() {
	case "panic":
		panic("secret")
	case "unforeseen":
		return nil, errors.New("secret")
	}
	return &machinev1.Machine{Kind: "Machine"}, nil
}

func (m *machines) CreateMachine(_ context.Context, r *machinev1.CreateMachineRequest) (*machinev1.Machine, error) {
	return r.GetMachine(), nil
}

func (m *machines) WatchMachines(_ *machinev1.WatchMachinesRequest,
	s grpc.ServerStreamingServer[machinev1.WatchMachinesResponse],
) error {
	close(m.watching)
	<-s.Context().Done()
	return s.Context().Err()
}

// pair runs machine-api, and hook-broker's connection to it.
func (c cluster) pair() (server *serve.Process, service *machines, conn grpc.ClientConnInterface, stop func() error) {
	t := c.t
	t.Helper()
	server = newProcess(t, c.config("machine-api"))
	service = &machines{watching: make(chan struct{})}
	machinev1.RegisterMachineServiceServer(server.Services, service)
	stop = start(t, server)
	cfg := c.config("hook-broker")
	cfg.Peers = map[string]string{"machine-api": server.Address()}
	conn, err := newProcess(t, cfg).Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	return server, service, conn, stop
}

func TestASiblingCalls(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	c := newCluster(t)
	server, service, conn, stop := c.pair()
	client := machinev1.NewMachineServiceClient(conn)
	tests := []struct {
		name   string
		object string
		code   codes.Code
		text   string
	}{
		{"an answer comes back", "m-1", codes.OK, ""},
		{"a panic is an internal error and the process lives", "panic", codes.Internal, "internal error"},
		{"an unforeseen error keeps its text", "unforeseen", codes.Internal, "internal error"},
		{"a request against the rules names the field", "", codes.InvalidArgument, "name: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := client.GetMachine(t.Context(), &machinev1.GetMachineRequest{Namespace: "default", Name: tt.object},
				grpc.UseCompressor(gzip.Name))
			if st := status.Convert(err); st.Code() != tt.code || !strings.HasPrefix(st.Message(), tt.text) {
				t.Errorf("GetMachine = %v, want %v %q", err, tt.code, tt.text)
			}
			if err == nil {
				return
			}
			if info, ok := status.Convert(err).Details()[0].(*errdetails.ErrorInfo); !ok || info.GetDomain() != "windlass.dev" {
				t.Errorf("details %v", status.Convert(err).Details())
			}
		})
	}
	if _, err := client.DeleteMachine(t.Context(), &machinev1.DeleteMachineRequest{Name: "m-1"}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("DeleteMachine = %v: the policy is not asked", err)
	}

	body := scrape(t, c.client("prometheus", time.Hour, "windlass:metrics-readers"), server.MetricsAddress())
	for _, line := range []string{
		`windlass_grpc_calls_total{code="OK",method="/windlass.machine.v1.MachineService/GetMachine"} 1`,
		`windlass_grpc_calls_total{code="PermissionDenied",method="/windlass.machine.v1.MachineService/DeleteMachine"} 1`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(body, line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}

	watch, err := client.WatchMachines(t.Context(), &machinev1.WatchMachinesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-service.watching
	began := time.Now()
	if err := stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("an open watch held the stop up for %v", took)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v, want UNAVAILABLE", err)
	}
	if err := conn.(io.Closer).Close(); err != nil {
		t.Error(err)
	}
}

func scrape(t *testing.T, client *http.Client, address string) string {
	t.Helper()
	code, body := get(t, client, address)
	if code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", code, body)
	}
	return body
}

func TestDialBelievesOnlyTheServiceItAskedFor(t *testing.T) {
	c := newCluster(t)
	server := newProcess(t, c.config("machine-api"))
	start(t, server)
	cfg := c.config("hook-broker")
	cfg.Peers = map[string]string{"eviction-controller": server.Address()}
	client := newProcess(t, cfg)
	conn, err := client.Dial("eviction-controller")
	if err != nil {
		t.Fatal(err)
	}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "is not spiffe://windlass/service/eviction-controller") {
		t.Errorf("Check = %v", err)
	}
	if _, err := client.Dial("unknown"); err == nil {
		t.Error("Dial of an unknown peer succeeds")
	}
}

// A caller learns from an answer whether a process has a new policy in force.
func TestAHealthCheckSaysWhichPolicyIsInForce(t *testing.T) {
	c := newCluster(t)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text []byte) string {
		t.Helper()
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		return hex.EncodeToString(sum[:])
	}
	want := write(identity.DefaultPolicy())
	cfg := c.config("machine-api")
	cfg.Policy = path
	server := newProcess(t, cfg)
	start(t, server)
	other := c.config("hook-broker")
	other.Peers = map[string]string{"machine-api": server.Address()}
	conn, err := newProcess(t, other).Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{nil, identity.IsolatedPolicy()} {
		if text != nil {
			want = write(text)
		}
		servetest.Await(t, func() string {
			var header metadata.MD
			_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{},
				grpc.Header(&header))
			if got := header.Get(serve.PolicyHeader); err != nil || len(got) != 1 || got[0] != want {
				return fmt.Sprintf("policies in force %q, %v; want %s", got, err, want)
			}
			return ""
		})
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	_, _, conn, _ := newCluster(t).pair()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range response.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if !strings.Contains(strings.Join(names, " "), "windlass.machine.v1.MachineService") {
		t.Errorf("services %v", names)
	}
}

func TestHealthFollowsReadiness(t *testing.T) {
	c := newCluster(t)
	server := newProcess(t, c.config("machine-api"))
	var ready atomic.Bool
	server.ReadyWhen(func(context.Context) error {
		if !ready.Load() {
			return errors.New("the cache is filling")
		}
		return nil
	})
	start(t, server)
	cfg := c.config("gateway")
	cfg.Peers = map[string]string{"machine-api": server.Address()}
	conn, err := newProcess(t, cfg).Dial("machine-api")
	if err != nil {
		t.Fatal(err)
	}
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
		grpc_health_v1.HealthCheckResponse_NOT_SERVING, grpc_health_v1.HealthCheckResponse_SERVING,
	} {
		response, err := watch.Recv()
		if err != nil || response.GetStatus() != want {
			t.Fatalf("health %v, %v; want %v", response.GetStatus(), err, want)
		}
		ready.Store(true)
	}
}

func TestRun(t *testing.T) {
	c := newCluster(t)
	broken := errors.New("broken")
	t.Run("a part that fails ends all", func(t *testing.T) {
		p := newProcess(t, c.config("machine-api"))
		other := false
		err := p.Run(t.Context(),
			func(ctx context.Context) error { <-ctx.Done(); other = true; return nil },
			func(context.Context) error { return broken })
		if !errors.Is(err, broken) || !other {
			t.Errorf("Run = %v, the other part ended: %v", err, other)
		}
	})
	t.Run("a part that is done ends nothing", func(t *testing.T) {
		p := newProcess(t, c.config("machine-api"))
		ctx, cancel := context.WithCancel(t.Context())
		err := p.Run(ctx,
			func(context.Context) error { return nil },
			func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() })
		if err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Run("an address that is taken is an error of New", func(t *testing.T) {
		p := newProcess(t, c.config("machine-api"))
		cfg := c.config("hook-broker")
		cfg.Listen = p.Address()
		if _, err := serve.New(cfg, slog.New(slog.DiscardHandler)); err == nil ||
			!strings.HasPrefix(err.Error(), "hook-broker: ") {
			t.Errorf("New = %v", err)
		}
	})
	t.Run("a missing certificate is an error of New", func(t *testing.T) {
		cfg := c.config("machine-api")
		cfg.TLSDir = t.TempDir()
		if _, err := serve.New(cfg, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("New = %v", err)
		}
	})
}

// A message of less than 4 MiB may become hundreds of MiB of objects, so its memory is counted before it is decoded.
func TestAMessageThatBecomesVeryManyObjectsIsRefused(t *testing.T) {
	client := drainsOf(t)
	create := func(n int) (*nodev1.Drain, error) {
		d := &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: "d"}}
		for range n {
			d.Metadata.OwnerReferences = append(d.Metadata.OwnerReferences, &metav1.OwnerReference{})
		}
		return client.CreateDrain(t.Context(), &nodev1.CreateDrainRequest{Drain: d})
	}
	if _, err := create(1_000_000); status.Code(err) != codes.ResourceExhausted { // 2 MB
		t.Errorf("a million objects: %v", err)
	}
	for range 20 { // more than there would be room for if one kept what it had
		if got, err := create(100_000); err != nil || len(got.GetMetadata().GetOwnerReferences()) != 100_000 {
			t.Fatalf("100,000 objects: %v", err)
		}
	}
}

func TestAResourceIsLeftToItsOwnValidation(t *testing.T) {
	client := drainsOf(t)
	if _, err := client.CreateDrain(t.Context(), &nodev1.CreateDrainRequest{
		Drain: &nodev1.Drain{Spec: &nodev1.DrainSpec{}},
	}); err != nil {
		t.Errorf("CreateDrain = %v: the resource was validated before its defaults", err)
	}
	if _, err := client.UpdateDrain(t.Context(), &nodev1.UpdateDrainRequest{Drain: &nodev1.Drain{}}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("UpdateDrain = %v: the request's own name was not validated", err)
	}
}

// drainsOf starts a process that answers with the drains it gets, and returns machine-api's client of it.
func drainsOf(t *testing.T) nodev1.DrainServiceClient {
	t.Helper()
	c := newCluster(t)
	server := newProcess(t, c.config("eviction-controller"))
	nodev1.RegisterDrainServiceServer(server.Services, drains{})
	start(t, server)
	cfg := c.config("machine-api")
	cfg.Peers = map[string]string{"eviction-controller": server.Address()}
	conn, err := newProcess(t, cfg).Dial("eviction-controller")
	if err != nil {
		t.Fatal(err)
	}
	return nodev1.NewDrainServiceClient(conn)
}

type drains struct {
	nodev1.UnimplementedDrainServiceServer
}

func (drains) CreateDrain(_ context.Context, r *nodev1.CreateDrainRequest) (*nodev1.Drain, error) {
	return r.GetDrain(), nil
}

func (drains) UpdateDrain(_ context.Context, r *nodev1.UpdateDrainRequest) (*nodev1.Drain, error) {
	return r.GetDrain(), nil
}

func TestFlags(t *testing.T) {
	cfg := serve.Config{Name: "machine-api", Listen: "127.0.0.1:7101", LogLevel: "info"}
	fs := pflag.NewFlagSet("machine-api", pflag.ContinueOnError)
	cfg.Flags(fs)
	err := fs.Parse(
		strings.Fields(
			"--metrics-listen=127.1.2.1:7201 --dir=/d --tls-dir=/t --policy=/p --etcd-endpoints=https://a:2379,https://b:2379" +
				" --peer=gateway=127.1.2.1:6443 --peer=hook-broker=127.1.2.1:7102 --log-level=debug"))
	if err != nil {
		t.Fatal(err)
	}
	want := serve.Config{
		Name: "machine-api", Listen: "127.0.0.1:7101", MetricsListen: "127.1.2.1:7201", Dir: "/d", TLSDir: "/t", Policy: "/p",
		ConnectionAge: serve.DefaultConnectionAge, EtcdEndpoints: []string{"https://a:2379", "https://b:2379"},
		Peers: map[string]string{"gateway": "127.1.2.1:6443", "hook-broker": "127.1.2.1:7102"}, LogLevel: "debug",
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if _, err := (serve.Config{LogLevel: "loud"}).Logger(io.Discard); err == nil {
		t.Error("an unknown log level is taken")
	}
}
