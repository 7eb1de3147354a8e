package service

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/audit"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(childEnv); settings != "" {
		os.Exit(child(settings))
	}
	os.Exit(etcdtest.Run(m))
}

// cluster is a running eviction-controller with its guardian and its scheduler.
type cluster struct {
	t        testing.TB
	ground   *servetest.Ground
	cfg      config
	address  string
	auditLog string
	guardian *guard
	machines *owner
	pods     *podOwner
	stop     func()
}

// guard keeps the permit as etcd-guardian does; a test may have another machine hold it.
type guard struct {
	etcdv1.UnimplementedQuorumServiceServer
	mu   sync.Mutex
	held string // name of the machine or node
}

func (g *guard) AcquireDisruptionPermit(_ context.Context, r *etcdv1.AcquireDisruptionPermitRequest) (
	*etcdv1.DisruptionPermit, error,
) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != "" && g.held != r.GetMachine().GetName() {
		return nil, rpcerr.HeldByOther("quorum/permit", "another drain holds it for "+g.held)
	}
	g.held = r.GetMachine().GetName()
	return &etcdv1.DisruptionPermit{Machine: r.GetMachine(), Reason: r.GetReason(), Held: true}, nil
}

func (g *guard) ReleaseDisruptionPermit(_ context.Context, r *etcdv1.ReleaseDisruptionPermitRequest) (
	*etcdv1.ReleaseDisruptionPermitResponse, error,
) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == r.GetMachine().GetName() {
		g.held = ""
	}
	return &etcdv1.ReleaseDisruptionPermitResponse{}, nil
}

func (g *guard) set(holder string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = holder
}

func (g *guard) holder() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

// owner is machine-api with a machine for every node that is not gone.
type owner struct {
	machinev1.UnimplementedMachineServiceServer
	mu       sync.Mutex
	gone     map[string]bool
	deleting map[string]bool
	uid      map[string]string // of machines that are not the first of their name
}

func (o *owner) GetMachine(_ context.Context, r *machinev1.GetMachineRequest) (*machinev1.Machine, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone[r.GetName()] {
		return nil, rpcerr.NotFound("Machine", r.GetName())
	}
	m := &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Namespace: "openshift-machine-api", Name: r.GetName(),
			Uid: servetest.NodeUID(r.GetName()),
		},
		Spec: &machinev1.MachineSpec{ProviderId: "local://test/" + r.GetName()},
	}
	if uid, ok := o.uid[r.GetName()]; ok {
		m.Metadata.Uid = uid
	}
	if o.deleting[r.GetName()] {
		m.Metadata.DeletionTimestamp = timestamppb.Now()
	}
	return m, nil
}

func (o *owner) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (c *cluster) startMachines() string {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(c.credentials(machines)))
	machinev1.RegisterMachineServiceServer(s, c.machines)
	go func() { _ = s.Serve(l) }()
	c.t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (c *cluster) startGuardian() string {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(c.credentials(guardian)))
	etcdv1.RegisterQuorumServiceServer(s, c.guardian)
	go func() { _ = s.Serve(l) }()
	c.t.Cleanup(s.Stop)
	return l.Addr().String()
}

// credentials are those of a sibling.
func (c *cluster) credentials(name string) credentials.TransportCredentials {
	c.t.Helper()
	settings, err := c.ground.Files(servetest.Service(name)).ServerTLS(tls.RequireAndVerifyClientCert)
	if err != nil {
		c.t.Fatal(err)
	}
	return credentials.NewTLS(settings)
}

// start runs the service over the embedded etcd, with real certificates and its real interceptors.
func start(t testing.TB, grace time.Duration) *cluster {
	t.Helper()
	servetest.Clear(t, etcdtest.Client(t))
	c := &cluster{t: t, ground: servetest.New(t), guardian: &guard{}, machines: &owner{
		gone:     map[string]bool{},
		deleting: map[string]bool{}, uid: map[string]string{},
	}}
	c.pods = newPodOwner(t)
	c.cfg = config{grace: grace, retry: time.Second, rate: 1000, Config: serve.Config{
		Name: "eviction-controller", Dir: t.TempDir(),
		TLSDir: filepath.Dir(c.ground.Files(servetest.Service("eviction-controller")).Cert),
		Peers: map[string]string{
			guardian: c.startGuardian(), scheduler: c.pods.serve(c.credentials(scheduler)),
			machines: c.startMachines(),
		},
	}}
	c.auditLog = filepath.Join(c.cfg.Dir, audit.RefusalsFile)
	c.run()
	return c
}

// run starts the service, or restarts it if it was stopped.
func (c *cluster) run() {
	c.t.Helper()
	p := c.ground.Process(c.cfg.Config)
	parts, err := build(p, etcdtest.Client(c.t), c.cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = p.Address()
	c.stop = servetest.Run(c.t, p, parts...)
}

func (c *cluster) admin() *grpc.ClientConn {
	c.t.Helper()
	return c.ground.Dial(c.address, servetest.Admin())
}

func (c *cluster) node(name string) *grpc.ClientConn {
	c.t.Helper()
	return c.ground.Dial(c.address, servetest.Node(name))
}

// agent is a node's agent as the tests play it.
type agent struct {
	t      testing.TB
	client nodev1.NodeAgentServiceClient
	name   string
	boot   string
	stream grpc.BidiStreamingClient[nodev1.HeartbeatRequest, nodev1.HeartbeatResponse]
}

func (c *cluster) agent(name string) *agent {
	c.t.Helper()
	a := &agent{t: c.t, client: nodev1.NewNodeAgentServiceClient(c.node(name)), name: name}
	a.bootAs("boot-1")
	return a
}

// bootAs registers the node with a boot and opens a stream of heartbeats.
func (a *agent) bootAs(boot string) {
	a.t.Helper()
	a.boot = boot
	_, err := a.client.RegisterNode(a.t.Context(), &nodev1.RegisterNodeRequest{
		Name: a.name, ProviderId: "local://test/" + a.name,
		Machine: &metav1.ObjectReference{Namespace: "openshift-machine-api", Name: a.name},
		Labels:  map[string]string{"kubernetes.io/os": "linux"},
		Status:  &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: boot}},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.open()
}

func (a *agent) open() {
	a.t.Helper()
	var err error
	if a.stream, err = a.client.Heartbeat(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
}

// beat says that the node lives, opening the stream again while the service does not listen yet.
func (a *agent) beat() *nodev1.HeartbeatResponse {
	a.t.Helper()
	var out *nodev1.HeartbeatResponse
	servetest.Await(a.t, func() string {
		err := a.stream.Send(&nodev1.HeartbeatRequest{Name: a.name, BootId: a.boot})
		if err == nil || err == io.EOF {
			out, err = a.stream.Recv()
		}
		if err != nil {
			a.open()
			return fmt.Sprintf("heartbeat: %v", err)
		}
		return ""
	})
	return out
}

func ready(n *nodev1.Node) string {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == plan.Ready {
			return c.GetStatus() + " " + c.GetReason()
		}
	}
	return ""
}

func awaitNode(t *testing.T, nodes nodev1.NodeServiceClient, name, what string,
	is func(*nodev1.Node) bool,
) *nodev1.Node {
	t.Helper()
	var n *nodev1.Node
	servetest.Await(t, func() string {
		var err error
		n, err = nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: name})
		if err == nil && is(n) {
			return ""
		}
		return fmt.Sprintf("node %s: %s; error %v, it is %v", name, what, err, n)
	})
	return n
}

func free(n *nodev1.Node) bool { return !n.GetSpec().GetUnschedulable() }

func held(n *nodev1.Node) bool { return n.GetSpec().GetUnschedulable() }

func TestANodeIsReadyWhileItsAgentSpeaks(t *testing.T) {
	const grace = 2 * time.Second
	c := start(t, grace)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	a := c.agent("a")
	a.beat()
	n := awaitNode(t, nodes, "a", "ready", func(n *nodev1.Node) bool { return ready(n) == "True AgentReady" })
	if got := n.GetMetadata().GetAnnotations()[plan.MachineOf]; got != "openshift-machine-api/a" {
		t.Errorf("machine %q", got)
	}
	for range 3 {
		a.beat()
	}
	again := awaitNode(t, nodes, "a", "there", func(*nodev1.Node) bool { return true })
	if was, is := n.GetMetadata().GetResourceVersion(), again.GetMetadata().GetResourceVersion(); was != is {
		t.Errorf("heartbeats alone moved the revision from %s to %s", was, is)
	}
	// The broken stream alone says nothing; the silence after it does.
	began := time.Now()
	if err := a.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, nodes, "a", "lost", func(n *nodev1.Node) bool { return ready(n) == "Unknown NodeStatusUnknown" })
	if silent := time.Since(began); silent < grace*9/10 {
		t.Errorf("the node was lost after %v of silence, the grace is %v", silent, grace)
	}
	a.open()
	a.beat()
	awaitNode(t, nodes, "a", "ready again", func(n *nodev1.Node) bool { return ready(n) == "True AgentReady" })
}

func TestAnAgentSpeaksForItsOwnNodeAlone(t *testing.T) {
	c := start(t, time.Minute)
	a := c.agent("a")
	a.beat()
	refusals := map[string]func() error{
		"another node's registration": func() error {
			_, err := a.client.RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{Name: "b"})
			return err
		},
		"a role label": func() error {
			_, err := a.client.RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{
				Name: "a", Labels: map[string]string{"node-role.kubernetes.io/master": ""},
			})
			return err
		},
		"another machine": func() error {
			_, err := a.client.RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{Name: "a", Machine: &metav1.ObjectReference{
				Name: "b",
			}})
			return err
		},
		"another node's heartbeat": func() error {
			s, err := a.client.Heartbeat(t.Context())
			if err != nil {
				return err
			}
			if err := s.Send(&nodev1.HeartbeatRequest{Name: "b"}); err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"another node's heartbeat on a stream that began well": func() error {
			if err := a.stream.Send(&nodev1.HeartbeatRequest{Name: "b"}); err != nil {
				return err
			}
			_, err := a.stream.Recv()
			return err
		},
		"a patch of its own node": func() error {
			_, err := nodev1.NewNodeServiceClient(c.node("a")).PatchNode(t.Context(), &nodev1.PatchNodeRequest{
				Name: "a", Patch: merge(`{"spec":{"taints":[]}}`),
			})
			return err
		},
		"a user's registration": func() error {
			_, err := nodev1.NewNodeAgentServiceClient(c.admin()).RegisterNode(t.Context(), &nodev1.RegisterNodeRequest{
				Name: "b",
			})
			return err
		},
	}
	servetest.Await(t, func() string {
		if err := refusals["a patch of its own node"](); status.Code(err) == codes.Unavailable {
			return err.Error() // the stored roles are not read yet
		}
		return ""
	})
	for name, call := range refusals {
		if err := call(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PERMISSION_DENIED", name, err)
		}
	}
	// Those of one caller and method are counted: the first of each is written a moment after its answer.
	const kinds = 4 // the agent's registration, heartbeat and patch, and the user's registration
	deadline := time.Now().Add(time.Minute)
	for denials(t, c.auditLog) != kinds {
		if time.Now().After(deadline) {
			t.Fatalf("%d refusals in the audit log, want %d", denials(t, c.auditLog), kinds)
		}
		time.Sleep(time.Millisecond)
	}
}

// denials counts the records of refused calls in an audit log.
func denials(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			continue // it is being written
		}
		if r.Code == "PermissionDenied" {
			n++
		}
	}
	return n
}

func merge(patch string) *httpbody.HttpBody {
	return &httpbody.HttpBody{ContentType: manifest.MergePatch, Data: []byte(patch)}
}

func TestCordonsOfUsersAndDrains(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	nodes, drains := nodev1.NewNodeServiceClient(conn), nodev1.NewDrainServiceClient(conn)
	c.agent("a").beat()
	patch := func(contentType, body string) *nodev1.Node {
		t.Helper()
		n, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
			Name: "a", Patch: &httpbody.HttpBody{ContentType: contentType, Data: []byte(body)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	by := func(n *nodev1.Node) string { return n.GetMetadata().GetAnnotations()[plan.CordonedBy] }

	if n := patch(manifest.StrategicPatch, `{"spec":{"unschedulable":true}}`); !held(n) || by(n) != "alice" {
		t.Errorf("after kubectl's cordon: %v", n)
	}
	if n := patch(manifest.StrategicPatch, `{"spec":{"unschedulable":null}}`); !free(n) || by(n) != "" {
		t.Errorf("after kubectl's uncordon: %v", n)
	}
	if n, err := nodes.CordonNode(t.Context(), &nodev1.CordonNodeRequest{Name: "a"}); err != nil || !held(n) ||
		by(n) != "alice" {
		t.Errorf("CordonNode: %v, %v", n, err)
	}
	drain, err := drains.CreateDrain(t.Context(), &nodev1.CreateDrainRequest{Drain: &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: "d"}, Spec: &nodev1.DrainSpec{NodeName: "a"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	awaitDrain(t, drains, "d", plan.Succeeded)
	if n, err := nodes.UncordonNode(t.Context(), &nodev1.UncordonNodeRequest{Name: "a"}); err != nil || !held(n) ||
		by(n) != "" {
		t.Errorf("UncordonNode while a drain holds the node: %v, %v", n, err)
	}
	p, err := nodes.PlanNode(t.Context(), &nodev1.PlanNodeRequest{Name: "a"})
	if err != nil || !p.GetUnschedulable() || len(p.GetHeldBy()) != 1 || p.GetHeldBy()[0] != `drain "d"` {
		t.Errorf("PlanNode: %v, %v", p, err)
	}
	if _, err := drains.DeleteDrain(t.Context(), &nodev1.DeleteDrainRequest{
		Name: "d", Preconditions: &metav1.Preconditions{Uid: drain.GetMetadata().GetUid()},
	}); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, nodes, "a", "free", free)
	servetest.Await(t, func() string {
		if _, err := drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: "d"}); status.Code(err) != codes.NotFound {
			return fmt.Sprintf("the drain is gone: %v", err)
		}
		return ""
	})
}

func awaitDrain(t *testing.T, drains nodev1.DrainServiceClient, name, phase string) *nodev1.Drain {
	t.Helper()
	var d *nodev1.Drain
	servetest.Await(t, func() string {
		var err error
		d, err = drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: name})
		if err == nil && d.GetStatus().GetPhase() == phase {
			return ""
		}
		return fmt.Sprintf("drain %s is %s; error %v, it is %v", name, phase, err, d)
	})
	return d
}

// makeControlPlane labels a node as machine-api does.
func makeControlPlane(t *testing.T, nodes nodev1.NodeServiceClient, name string) {
	t.Helper()
	_, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: name, Patch: merge(`{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestADrainOfAControlPlaneNodeWaitsForThePermit(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	nodes, drains := nodev1.NewNodeServiceClient(conn), nodev1.NewDrainServiceClient(conn)
	c.agent("a").beat()
	makeControlPlane(t, nodes, "a")
	c.guardian.set("b")
	_, err := drains.CreateDrain(t.Context(), &nodev1.CreateDrainRequest{Drain: &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: "d"}, Spec: &nodev1.DrainSpec{NodeName: "a"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		d, err := drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: "d"})
		if err == nil && d.GetStatus().GetPhase() == plan.Pending && strings.Contains(d.GetStatus().GetMessage(),
			"another drain holds it for b") {
			return ""
		}
		return fmt.Sprintf("the drain waits and says for whom: %v, %v", d, err)
	})
	if n, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "a"}); err != nil || !free(n) {
		t.Errorf("the node was touched before the permit: %v, %v", n, err)
	}
	c.guardian.set("")
	awaitDrain(t, drains, "d", plan.Succeeded)
	awaitNode(t, nodes, "a", "held", held)
	if got := c.guardian.holder(); got != "a" {
		t.Errorf("the permit is held for %q", got)
	}
	if _, err := drains.DeleteDrain(t.Context(), &nodev1.DeleteDrainRequest{Name: "d"}); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, nodes, "a", "free", free)
	servetest.Await(t, func() string { return c.guardian.holder() })
}

func TestARebootEndsWithAnotherBoot(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	a := c.agent("a")
	a.beat()
	awaitNode(t, nodes, "a", "ready", plan.IsReady)
	makeControlPlane(t, nodes, "a")
	c.guardian.set("b")
	if _, err := nodes.RebootNode(t.Context(), &nodev1.RebootNodeRequest{Name: "a"}); rpcerr.Reason(
		err) != metav1.ErrorReason_ERROR_REASON_HELD_BY_OTHER {
		t.Errorf("RebootNode without the permit: %v", err)
	}
	if got := a.beat(); got.GetCommand() != "" {
		t.Errorf("the agent received %v", got)
	}
	c.guardian.set("")
	r, err := nodes.RebootNode(t.Context(), &nodev1.RebootNodeRequest{Name: "a"})
	if err != nil || r.GetBootId() != "boot-1" {
		t.Fatalf("RebootNode: %v, %v", r, err)
	}
	if got := a.beat(); got.GetCommand() != "Reboot" || got.GetBootId() != "boot-1" {
		t.Errorf("the agent received %v", got)
	}
	a.bootAs("boot-2")
	if got := a.beat(); got.GetCommand() != "" {
		t.Errorf("after the reboot the agent received %v", got)
	}
	awaitNode(t, nodes, "a", "rebooted", func(n *nodev1.Node) bool {
		return n.GetStatus().GetNodeInfo().GetBootId() == "boot-2" && n.GetMetadata().GetAnnotations()[plan.RebootOf] == ""
	})
	if got := c.guardian.holder(); got != "" {
		t.Errorf("the permit is still held for %q", got)
	}
}

func TestADeletedNodeIsToldToRegister(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	a := c.agent("a")
	a.beat()
	if _, err := nodes.DeleteNode(t.Context(), &nodev1.DeleteNodeRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := a.stream.Send(&nodev1.HeartbeatRequest{Name: "a", BootId: "boot-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.stream.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("a heartbeat of a deleted node: %v", err)
	}
	a.bootAs("boot-1")
	a.beat()
	awaitNode(t, nodes, "a", "ready again", plan.IsReady)
}

func TestAStatusIsNobodyElsesToWrite(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	nodes := nodev1.NewNodeServiceClient(conn)
	made, err := nodes.CreateNode(t.Context(), &nodev1.CreateNodeRequest{Node: &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "u"}, Status: &nodev1.NodeStatus{Phase: "Running"},
	}})
	if err != nil || made.GetStatus() != nil {
		t.Errorf("a creation with a status: %v, %v", made, err)
	}
	_, err = nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: "u", Subresource: "status",
		Patch: merge(`{"status":{"phase":"Running"}}`),
	})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a patch of a status: %v", err)
	}
	_, err = nodev1.NewDrainServiceClient(conn).UpdateDrain(t.Context(), &nodev1.UpdateDrainRequest{
		Name: "none", Drain: &nodev1.Drain{},
	})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an update of no drain: %v", err)
	}
}

// TestDocuments has the Node documents go through Create; what may be missing or a placeholder is the name alone.
func TestDocuments(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	files, err := filepath.Glob("testdata/*-Node.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("documents: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			docs, err := manifest.Split(f, file)
			if err != nil || len(docs) != 1 {
				t.Fatalf("%d documents, %v", len(docs), err)
			}
			n := &nodev1.Node{}
			if err := manifest.Decode(docs[0].JSON, n); err != nil {
				t.Fatal(err)
			}
			_, err = nodes.CreateNode(t.Context(), &nodev1.CreateNodeRequest{Node: n, DryRun: "All"})
			fields, ok := rpcerr.Fields(err)
			if !ok || len(fields) != 1 || fields[0].Path != "metadata.name" {
				t.Errorf("unchanged: %v, want a complaint about metadata.name alone", err)
			}
			n.Metadata.Name = "worker-" + strings.ToLower(filepath.Base(file)[:6])
			if _, err := nodes.CreateNode(t.Context(), &nodev1.CreateNodeRequest{Node: n}); err != nil {
				t.Errorf("with a name: %v", err)
			}
		})
	}
}

func TestTaintsAreChecked(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	_, err := nodes.CreateNode(t.Context(), &nodev1.CreateNodeRequest{Node: &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "u"},
		Spec: &nodev1.NodeSpec{Taints: []*nodev1.Taint{
			{Key: "a", Effect: "NoSchedule"},
			{Key: "a", Effect: "NoSchedule"},
			{Key: "not a key", Effect: "NoExecute"},
			{Key: "b", Effect: "Sometimes"},
		}},
	}})
	fields, _ := rpcerr.Fields(err)
	var paths []string
	for _, f := range fields {
		paths = append(paths, f.Path)
	}
	want := map[string]bool{"spec.taints[1]": true, "spec.taints[2].key": true, "spec.taints[3].effect": true}
	for _, p := range paths {
		delete(want, p)
	}
	if len(want) > 0 {
		t.Errorf("complaints about %v, missing %v", paths, want)
	}
}
