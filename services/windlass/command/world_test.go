package command_test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/windlass/command"
)

// withEtcd runs the tests beside an etcd.
type withEtcd struct{ *testing.M }

func (w withEtcd) Run() int { return etcdtest.Run(w.M) }

func TestMain(m *testing.M) {
	testscript.Main(withEtcd{m}, map[string]func(){
		"windlass": func() {
			os.Exit(command.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// world is a server of the real kinds over a real etcd, behind mutual TLS and the default policy. It has no
// controllers: nothing happens in it but what a test does.
type world struct {
	server   string
	dir      string // of the users' certificates
	machines *resource.Table[*machinev1.Machine]
	tasks    *resource.Table[*hookv1.HookTask]
	nodes    *resource.Table[*nodev1.Node]

	deployments *resource.Table[*schedulingv1.Deployment]
	sets        *resource.Table[*schedulingv1.ReplicaSet]

	recorder *events.Recorder

	patches atomic.Int32 // of the node "busy"
}

func (w *world) env(user string) map[string]string {
	return map[string]string{
		"WINDLASS_SERVER": w.server, "WINDLASS_CACERT": filepath.Join(w.dir, "test-ca.crt"),
		"WINDLASS_CERT": filepath.Join(w.dir, user+".crt"), "WINDLASS_KEY": filepath.Join(w.dir, user+".key"),
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	authority, err := identity.NewAuthority("test", time.Hour)
	check(t, err)
	check(t, authority.Save(w.dir))
	w.issue(t, authority, "gateway", identity.Request{
		CommonName: "gateway", URI: identity.ServiceURI("gateway"),
		IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
	})
	w.issue(t, authority, "admin", identity.Request{
		CommonName: "admin", URI: identity.UserURI("admin"),
		Organizations: []string{"system:masters"}, Client: true,
	})
	w.issue(t, authority, "guest", identity.Request{CommonName: "guest", URI: identity.UserURI("guest"), Client: true})
	policy, err := identity.LoadPolicy("")
	check(t, err)
	log := slog.New(slog.DiscardHandler)
	guard := identity.Guard{Service: "test", Policy: policy, Log: log}
	files := identity.Files{
		Cert: filepath.Join(w.dir, "gateway.crt"), Key: filepath.Join(w.dir, "gateway.key"),
		CA: filepath.Join(w.dir, "test-ca.crt"),
	}
	settings, err := files.ServerTLS(tls.RequireAndVerifyClientCert)
	check(t, err)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(settings)),
		grpc.ChainUnaryInterceptor(identity.UnaryInterceptor(guard),
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				w.interfere(t, req)
				resp, err := h(ctx, req)
				return resp, rpcerr.From(err)
			}),
		grpc.ChainStreamInterceptor(identity.StreamInterceptor(guard),
			func(s any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				return rpcerr.From(h(s, ss))
			}))
	w.serve(t, srv, log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	w.server = l.Addr().String()
	go func() { _ = srv.Serve(l) }() // ends with Stop
	t.Cleanup(srv.Stop)
	return w
}

// interfere writes to the node "busy" just before the first patch of it.
func (w *world) interfere(t *testing.T, req any) {
	r, ok := req.(*nodev1.PatchNodeRequest)
	if !ok || r.GetName() != "busy" || w.patches.Add(1) > 1 {
		return
	}
	_, err := w.nodes.Modify(t.Context(), object.Key{Name: "busy"}, func(n *nodev1.Node) error {
		n.Metadata.Annotations["written"] = "concurrently"
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func (w *world) issue(t *testing.T, a *identity.Authority, name string, r identity.Request) {
	t.Helper()
	cert, key, err := a.Issue(r)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(w.dir, name+".crt"), cert, 0o600))
	check(t, os.WriteFile(filepath.Join(w.dir, name+".key"), key, 0o600))
}

// serve registers all kinds.
func (w *world) serve(t *testing.T, srv *grpc.Server, log *slog.Logger) {
	t.Helper()
	w.machines = kind[*machinev1.Machine](t, srv, &machinev1.MachineService_ServiceDesc,
		machinev1.UnimplementedMachineServiceServer{})
	kind[*machinev1.MachineSet](t, srv, &machinev1.MachineSetService_ServiceDesc,
		machinev1.UnimplementedMachineSetServiceServer{})
	kind[*machinev1.ControlPlaneMachineSet](t, srv, &machinev1.ControlPlaneMachineSetService_ServiceDesc,
		machinev1.UnimplementedControlPlaneMachineSetServiceServer{})
	kind[*machinev1.Infrastructure](t, srv, &machinev1.InfrastructureService_ServiceDesc, nil)
	w.nodes = kind[*nodev1.Node](t, srv, &nodev1.NodeService_ServiceDesc, nodev1.UnimplementedNodeServiceServer{})
	kind[*configv1.MachineConfig](t, srv, &configv1.MachineConfigService_ServiceDesc,
		renderings{})
	kind[*configv1.MachineConfigPool](t, srv, &configv1.MachineConfigPoolService_ServiceDesc,
		configv1.UnimplementedMachineConfigPoolServiceServer{})
	kind[*nodev1.Drain](t, srv, &nodev1.DrainService_ServiceDesc, nodev1.UnimplementedDrainServiceServer{})
	w.tasks = kind[*hookv1.HookTask](t, srv, &hookv1.HookTaskService_ServiceDesc,
		hookv1.UnimplementedHookTaskServiceServer{})
	kind[*hookv1.HookOwner](t, srv, &hookv1.HookOwnerService_ServiceDesc, nil)
	serveHosts(t, srv)
	w.serveWorkloads(t, srv)
	w.serveCustom(t, srv)
	kind[*updatev1.ClusterVersion](t, srv, &updatev1.ClusterVersionService_ServiceDesc, evaluations{})
	kind[*updatev1.Release](t, srv, &updatev1.ReleaseService_ServiceDesc, drafts{})
	w.recorder = events.New("test", etcdtest.Store(t), validator(t), log)
	check(t, w.recorder.Register(srv))
	runs(t, w.recorder.Run)
	metav1.RegisterAccessServiceServer(srv, metav1.UnimplementedAccessServiceServer{})
}

// serveHosts serves the inventory of one host.
func serveHosts(t *testing.T, srv *grpc.Server) {
	t.Helper()
	hosts := kindOf(t, srv, &hostv1.HostService_ServiceDesc, hostv1.UnimplementedHostServiceServer{},
		resource.Config[*hostv1.Host]{KeepStatus: true})
	_, err := hosts.Create(t.Context(), &hostv1.Host{
		Metadata: &metav1.ObjectMeta{Name: "rack-1-a"},
		Spec:     &hostv1.HostSpec{Roles: []string{"worker", "control-plane"}, Zone: "rack-1", Address: "192.0.2.1"},
		Status: &hostv1.HostStatus{
			Phase: proto.String("InUse"), AgentVersion: proto.String("1.2.3"), Message: proto.String("machine m has it"),
			MachineRef: &metav1.ObjectReference{Kind: "Machine", Name: "m"},
			ProviderId: proto.String("inventory://main/rack-1-a/u"),
		},
	})
	check(t, err)
}

// evaluations answers what updates there are with none, and with what the request says.
type evaluations struct {
	updatev1.UnimplementedClusterVersionServiceServer
}

func (evaluations) EvaluateClusterVersion(_ context.Context, r *updatev1.EvaluateClusterVersionRequest) (
	*updatev1.EvaluateClusterVersionResponse, error,
) {
	const version = "4.10.22"
	out := &updatev1.EvaluateClusterVersionResponse{
		Version: version, Architecture: r.GetArchitecture(), AcceptRisks: r.GetAcceptRisks(),
		Conditions: []*metav1.Condition{{Type: "RetrievedUpdates", Status: "True"}},
		Current: &updatev1.ReleaseReference{
			Version: proto.String(version), Image: proto.String("example.com/release@sha256:00"),
			Url: "https://example.com/" + version, Channels: []string{"fast-4.10", "stable-4.10"},
		},
	}
	if r.GetQuery() != "" {
		out.Query = &updatev1.RuleOutcome{
			Type: "PromQL", Promql: r.GetQuery(), Status: "Unknown",
			Message: "the query must return one sample, but returns 0",
		}
	}
	return out, nil
}

// drafts answers what a release applies with what the request says that it is planned for.
type drafts struct {
	updatev1.UnimplementedReleaseServiceServer
}

func (drafts) PlanRelease(_ context.Context, r *updatev1.PlanReleaseRequest) (*updatev1.PlanReleaseResponse, error) {
	const file = "a.yaml"
	out := &updatev1.PlanReleaseResponse{
		Mode: "Updating", Steps: []*updatev1.PlanReleaseResponse_Step{
			{Chains: []*updatev1.PlanReleaseResponse_Chain{{Manifests: []string{file}}}},
		},
		RemovalCount: proto.Int32(int32(len(r.GetInventory()))),
	}
	for _, o := range r.GetOverrides() {
		out.Manifests = append(out.Manifests, &updatev1.ReleaseManifest{
			File: file, Unmanaged: o.GetUnmanaged(),
			Object: &metav1.ObjectReference{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()},
		})
	}
	for _, name := range append([]string{r.GetCapabilities().GetBaselineCapabilitySet()},
		r.GetCapabilities().GetAdditionalEnabledCapabilities()...) {
		out.Manifests = append(out.Manifests, &updatev1.ReleaseManifest{
			File: file, Excluded: "capability " + name, Object: &metav1.ObjectReference{Kind: "Job", Name: "x"},
		})
	}
	for _, o := range r.GetInventory() {
		out.Removals = append(out.Removals, &updatev1.ReleaseLeftover{Object: o})
	}
	return out, nil
}

// renderings answers what a pool gets with what the request says that it is and its nodes have.
type renderings struct {
	configv1.UnimplementedMachineConfigServiceServer
}

func (renderings) RenderMachineConfig(_ context.Context, r *configv1.RenderMachineConfigRequest) (
	*configv1.RenderMachineConfigResponse, error,
) {
	return &configv1.RenderMachineConfigResponse{
		MachineConfig: r.GetBefore(), Sources: []string{r.GetPoolName() + r.GetPool().GetMetadata().GetName()},
	}, nil
}

func validator(t *testing.T) protovalidate.Validator {
	t.Helper()
	v, err := protovalidate.New()
	check(t, err)
	return v
}

// kind serves the standard methods of a kind.
func kind[T object.Object](t *testing.T, srv *grpc.Server, desc *grpc.ServiceDesc, impl any) *resource.Table[T] {
	t.Helper()
	return kindOf(t, srv, desc, impl, resource.Config[T]{})
}

// kindOf is kind for one with rules of its own.
func kindOf[T object.Object](t *testing.T, srv *grpc.Server, desc *grpc.ServiceDesc, impl any,
	cfg resource.Config[T],
) *resource.Table[T] {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	table := resource.NewTable(etcdtest.Store(t), validator(t), cfg)
	check(t, resource.Register(srv, desc, impl, table))
	runs(t, table.Run)
	return table
}

// runs runs something until the test ends.
func runs(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
