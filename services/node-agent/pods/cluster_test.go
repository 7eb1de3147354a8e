package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/loopback"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/servetest"
	"github.com/windlass-dev/windlass/services/node-agent/cri"
	"github.com/windlass-dev/windlass/services/node-agent/hellopod"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/image/feed"
	"github.com/windlass-dev/windlass/services/node-agent/logger"
	"github.com/windlass-dev/windlass/services/node-agent/proxy"
	"github.com/windlass-dev/windlass/services/node-agent/shim"
)

func TestMain(m *testing.M) {
	if os.Getenv(eat) != "" {
		takeMemory()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "hello-pod" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := hellopod.Run(ctx, os.Args[2:], os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "container-logger" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := logger.Run(ctx, os.Args[2:], os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	first := os.Getenv(withUsers) == ""
	if os.Geteuid() == 0 && first { // as a host runs pods
		if err := os.Setenv(withUsers, "yes"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if os.Geteuid() == 0 && first && code == 0 && os.Getenv("WINDLASS_FAULTS") == "all" { // everything once more without
		again := exec.Command(os.Args[0], os.Args[1:]...)
		again.Env, again.Stdout, again.Stderr = append(os.Environ(), withUsers+"="+withoutUsers), os.Stdout, os.Stderr
		if err := again.Run(); err != nil {
			code = 1
		}
	}
	os.Exit(code)
}

// shimCommand returns the command of a shim that is linked statically.
func shimCommand(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if linksDynamically(self) { // with -race
		if self, err = staticAgent(); err != nil {
			t.Fatal(err)
		}
	}
	return []string{self, shim.Command}
}

var staticAgent = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-o", path, "./testdata/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// withUsers is the variable that has pods run as users of their own, which takes root: root runs them so. With
// WINDLASS_FAULTS=all root runs everything without users too.
const (
	withUsers    = "PODS_TEST_USERS"
	withoutUsers = "no"
)

// ownUsers reports whether pods run as users of their own.
func ownUsers() bool { return os.Getenv(withUsers) == "yes" }

// users returns users that no other test process of this host has.
func users() process.Users {
	if !ownUsers() {
		return process.Users{}
	}
	return process.Users{First: 0x60000000 + uint32(os.Getpid())<<10, Count: 8}
}

// cluster is the scheduler as an agent sees it.
type cluster struct {
	configVersion int
	configMaps    []*schedulingv1.ConfigMap
	secrets       []*schedulingv1.Secret

	tokenLife time.Duration // 0: the scheduler knows no tokens
	tokenErr  error
	tokens    int // given out
	signer    identity.Files
	authority *identity.Authority // of the signer

	schedulingv1.UnimplementedPodAgentServiceServer
	t       *testing.T
	address string
	server  *grpc.Server

	mu       sync.Mutex
	pods     map[string]*schedulingv1.Pod // by name
	watchers map[chan *schedulingv1.WatchPodsResponse]struct{}
	volumes  map[string]*schedulingv1.PersistentVolume // by the name of a pod's volume
	leaving  chan *schedulingv1.PersistentVolume
	removed  []string          // uids of volumes
	resolved int               // calls
	stores   map[string]string // by pod: the ID that its volumes were asked for with
	reports  int
	history  []*schedulingv1.PodStatus
	events   map[string][]*schedulingv1.PodEvent // by pod
	gone     []string
	requests chan *schedulingv1.AttendResponse
	attended int                      // streams that wait for requests
	hangs    chan struct{}            // closed to end all deliveries
	hung     map[string]chan struct{} // what hangs was when a request was made
	answers  map[string]chan *schedulingv1.DeliverRequest
	input    map[string]chan *schedulingv1.DeliverResponse
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t: t, pods: map[string]*schedulingv1.Pod{}, watchers: map[chan *schedulingv1.WatchPodsResponse]struct{}{},
		requests: make(chan *schedulingv1.AttendResponse), answers: map[string]chan *schedulingv1.DeliverRequest{},
		input: map[string]chan *schedulingv1.DeliverResponse{}, volumes: map[string]*schedulingv1.PersistentVolume{},
		leaving: make(chan *schedulingv1.PersistentVolume, 10), stores: map[string]string{}, hangs: make(chan struct{}),
		hung: map[string]chan struct{}{},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	c.server = grpc.NewServer()
	schedulingv1.RegisterPodAgentServiceServer(c.server, c)
	go func() { _ = c.server.Serve(l) }()
	t.Cleanup(c.server.Stop)
	c.rotate()
	return c
}

func (c *cluster) WatchOwnPods(_ *schedulingv1.WatchOwnPodsRequest,
	s grpc.ServerStreamingServer[schedulingv1.WatchPodsResponse],
) error {
	ch := make(chan *schedulingv1.WatchPodsResponse, 1000)
	c.mu.Lock()
	list := &schedulingv1.WatchPodsResponse{}
	for _, p := range c.pods {
		list.Events = append(list.Events, &schedulingv1.WatchPodsResponse_Event{Type: "ADDED", Object: proto.CloneOf(p)})
	}
	ch <- list
	ch <- &schedulingv1.WatchPodsResponse{Bookmark: true}
	c.watchers[ch] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, ch)
	}()
	for {
		select {
		case r := <-ch:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// changed notifies the watchers. The lock is held.
func (c *cluster) changed(typ string, p *schedulingv1.Pod) {
	for ch := range c.watchers {
		ch <- &schedulingv1.WatchPodsResponse{Events: []*schedulingv1.WatchPodsResponse_Event{
			{Type: typ, Object: proto.CloneOf(p)},
		}}
	}
}

func (c *cluster) ReportPod(_ context.Context, r *schedulingv1.ReportPodRequest) (*schedulingv1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[r.GetName()]
	if p == nil {
		return nil, status.Error(codes.NotFound, "no such pod")
	}
	if p.GetMetadata().GetUid() != r.GetUid() {
		return nil, status.Error(codes.Aborted, "another uid")
	}
	c.reports++
	p.Status = r.GetStatus()
	c.history = append(c.history, r.GetStatus())
	if c.events == nil {
		c.events = map[string][]*schedulingv1.PodEvent{}
	}
	c.events[r.GetName()] = append(c.events[r.GetName()], r.GetEvents()...)
	c.changed("MODIFIED", p)
	return proto.CloneOf(p), nil
}

func (c *cluster) ConfirmPodGone(_ context.Context, r *schedulingv1.ConfirmPodGoneRequest) (
	*schedulingv1.ConfirmPodGoneResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[r.GetName()]; p != nil && p.GetMetadata().GetUid() == r.GetUid() {
		c.gone = append(c.gone, r.GetName())
		delete(c.pods, r.GetName())
		c.changed("DELETED", p)
	}
	return &schedulingv1.ConfirmPodGoneResponse{}, nil
}

func (c *cluster) ResolveVolumes(_ context.Context, r *schedulingv1.ResolveVolumesRequest) (
	*schedulingv1.ResolveVolumesResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resolved++
	c.stores[r.GetName()] = r.GetStoreId()
	out := map[string]*schedulingv1.PersistentVolume{}
	for _, v := range c.pods[r.GetName()].GetSpec().GetVolumes() {
		if v.GetPersistentVolumeClaim() == nil {
			continue
		}
		volume := c.volumes[v.GetPersistentVolumeClaim().GetClaimName()]
		if volume == nil {
			return nil, status.Error(codes.FailedPrecondition, "it is not bound to a volume yet")
		}
		out[v.GetName()] = volume
	}
	return &schedulingv1.ResolveVolumesResponse{Volumes: out}, nil
}

func (c *cluster) ResolveConfig(_ context.Context, r *schedulingv1.ResolveConfigRequest) (
	*schedulingv1.ResolveConfigResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	version := strconv.Itoa(c.configVersion)
	return &schedulingv1.ResolveConfigResponse{
		Version: version, Unchanged: version == r.GetKnownVersion(), ConfigMaps: c.configMaps, Secrets: c.secrets,
	}, nil
}

func (c *cluster) WatchOwnVolumes(_ *schedulingv1.WatchOwnVolumesRequest,
	s grpc.ServerStreamingServer[schedulingv1.WatchPersistentVolumesResponse],
) error {
	for {
		select {
		case v := <-c.leaving:
			if err := s.Send(&schedulingv1.WatchPersistentVolumesResponse{
				Events: []*schedulingv1.WatchPersistentVolumesResponse_Event{{Type: "MODIFIED", Object: v}},
			}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (c *cluster) ConfirmVolumeGone(_ context.Context, r *schedulingv1.ConfirmVolumeGoneRequest) (
	*schedulingv1.ConfirmVolumeGoneResponse, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = append(c.removed, r.GetUid())
	return &schedulingv1.ConfirmVolumeGoneResponse{}, nil
}

func (c *cluster) Attend(_ *schedulingv1.AttendRequest,
	s grpc.ServerStreamingServer[schedulingv1.AttendResponse],
) error {
	c.attend(1)
	defer c.attend(-1)
	for {
		select {
		case w := <-c.requests:
			if err := s.Send(w); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (c *cluster) attend(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attended += change
}

// unattended waits until the stream of an agent that was stopped takes no more requests.
func (c *cluster) unattended() {
	c.t.Helper()
	eventually(c.t, "no agent attends", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.attended == 0
	})
}

func (c *cluster) Deliver(s grpc.BidiStreamingServer[schedulingv1.DeliverRequest, schedulingv1.DeliverResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	c.mu.Lock()
	out, in, hangs := c.answers[first.GetId()], c.input[first.GetId()], c.hung[first.GetId()]
	c.mu.Unlock()
	defer close(out)
	received := make(chan *schedulingv1.DeliverRequest)
	go func() {
		defer close(received)
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case received <- r:
			case <-s.Context().Done():
				return
			}
		}
	}()
	go func() {
		for {
			select {
			case r := <-in:
				_ = s.Send(r)
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case r, ok := <-received:
			if !ok {
				return nil
			}
			out <- r
		case <-hangs:
			return nil
		}
	}
}

// hangUp ends all deliveries, as when their callers go.
func (c *cluster) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.hangs)
	c.hangs = make(chan struct{})
}

// request sends a request and returns what is delivered.
func (c *cluster) request(w *schedulingv1.AttendResponse) (<-chan *schedulingv1.DeliverRequest,
	chan<- *schedulingv1.DeliverResponse,
) {
	c.t.Helper()
	out, in := make(chan *schedulingv1.DeliverRequest, 1000), make(chan *schedulingv1.DeliverResponse, 10)
	c.mu.Lock()
	w.Id, w.Uid, w.Namespace = w.GetName()+time.Now().String(), "uid-"+w.GetName(), "default"
	c.answers[w.GetId()], c.input[w.GetId()], c.hung[w.GetId()] = out, in, c.hangs
	c.mu.Unlock()
	select {
	case c.requests <- w:
	case <-time.After(2 * time.Minute):
		c.t.Fatal("no agent is connected")
	}
	return out, in
}

// whole returns everything that is delivered.
func whole(t *testing.T, out <-chan *schedulingv1.DeliverRequest) (stdout, stderr string,
	last *schedulingv1.DeliverRequest,
) {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case r, ok := <-out:
			if !ok {
				return stdout, stderr, last
			}
			stdout, stderr, last = stdout+string(r.GetStdout()), stderr+string(r.GetStderr()), r
		case <-timeout:
			t.Fatalf("the delivery does not end: %q", stdout)
		}
	}
}

func (c *cluster) log(name string, r *schedulingv1.GetPodLogRequest) string {
	c.t.Helper()
	out, _ := c.request(&schedulingv1.AttendResponse{Name: name, Log: r})
	text, _, last := whole(c.t, out)
	if last.GetError() != "" {
		return "error: " + last.GetError()
	}
	return text
}

// said reports whether an event of a pod has a reason and contains a text.
func (c *cluster) said(name, reason, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.events[name], func(e *schedulingv1.PodEvent) bool {
		return e.GetReason() == reason && strings.Contains(e.GetMessage(), text)
	})
}

// sh returns a pod that runs a script.
func sh(name, script string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Uid: "uid-" + name},
		Spec: &schedulingv1.PodSpec{
			NodeName: "m-0", RestartPolicy: "Always", TerminationGracePeriodSeconds: new(int32(5)),
			Containers: []*schedulingv1.Container{{Name: "main", Command: []string{"/bin/sh", "-c", script}}},
		},
	}
}

func (c *cluster) add(p *schedulingv1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[p.GetMetadata().GetName()] = p
	c.changed("ADDED", p)
}

// remove asks for a graceful deletion.
func (c *cluster) remove(name string, grace int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	p.Metadata.DeletionTimestamp, p.Metadata.DeletionGracePeriodSeconds = timestamppb.Now(), &grace
	c.changed("MODIFIED", p)
}

// drop has a pod vanish.
func (c *cluster) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods[name]
	delete(c.pods, name)
	c.changed("DELETED", p)
}

func (c *cluster) status(name string) *schedulingv1.PodStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return proto.CloneOf(c.pods[name].GetStatus())
}

// await waits until a pod's status is as wanted.
func (c *cluster) await(name, what string, ok func(*schedulingv1.PodStatus) bool) *schedulingv1.PodStatus {
	c.t.Helper()
	var st *schedulingv1.PodStatus
	servetest.Await(c.t, func() string {
		if st = c.status(name); ok(st) {
			return ""
		}
		return name + ": " + what + ", it is " + st.String()
	})
	return st
}

func (c *cluster) awaitGone(name string) {
	c.t.Helper()
	eventually(c.t, name+" is gone", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Contains(c.gone, name)
	})
}

func phase(want string) func(*schedulingv1.PodStatus) bool {
	return func(st *schedulingv1.PodStatus) bool { return st.GetPhase() == want }
}

func ready(st *schedulingv1.PodStatus) bool {
	for _, c := range st.GetConditions() {
		if c.GetType() == "Ready" && c.GetStatus() == "True" {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	servetest.Await(t, func() string {
		if cond() {
			return ""
		}
		return what
	})
}

// machine is where an agent runs pods.
type machine struct {
	t       *testing.T
	dir     string
	boot    string
	cluster *cluster
	node    *nodev1.Node
	memory  int64
	bare    bool // without control groups
	// of a pod; 0: none
	processLimit int64
	log          io.Writer // of the agent; nil: discarded
	// of the pods; the zero value: they have the machine's
	addresses loopback.Addresses
	// of the server of names; the zero value: there is none
	dns netip.Addr
	// endpoint of the container runtime; empty: containers are processes
	runtime string
	// patience with registries; 0 is the default
	patience time.Duration
	// of the cluster; nil: the agent knows none
	services func(context.Context) ([]*schedulingv1.ServiceEndpoints, bool)

	mu sync.Mutex
}

func newMachine(t *testing.T, c *cluster) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), boot: "boot-1", cluster: c, node: &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "m-0", Labels: map[string]string{"kubernetes.io/hostname": "m-0"}},
		Status: &nodev1.NodeStatus{Capacity: map[string]*structpb.Value{
			"cpu": structpb.NewStringValue("2"), "memory": structpb.NewStringValue("1Gi"), "pods": structpb.NewNumberValue(4),
		}},
	}}
	if u := users(); u.Count > 0 { // they must be able to pass through
		for dir := m.dir; dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		if err := process.KillAll(context.Background(), m.path("run")); err != nil {
			t.Error(err)
		}
		m.endContainers()
	})
	m.trust(c.authority)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// run runs an agent's pods until stop is called.
func (m *machine) run() (s *Pods, stop func()) {
	m.t.Helper()
	a := m.start()
	return a.pods, a.stop
}

// agent is one life of an agent.
type agent struct {
	pods *Pods
	stop func()
	halt func(patience time.Duration) // ends the pods as a reboot does
}

func (m *machine) start() agent {
	m.t.Helper()
	conn, err := grpc.NewClient(m.cluster.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(cmp.Or(m.log, io.Discard), nil))
	supervisor := process.NewSupervisor(m.path("run"), log)
	if m.bare {
		supervisor.WithoutCgroups()
	}
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	library := image.LibraryConfig{
		Dir: m.path("unpacked"), Layouts: []string{m.path("images")}, Settings: []string{m.path("images/registries.yaml")},
		Patience: m.patience, Log: log,
	}
	containers := m.containerRuntime(log)
	if containers != nil {
		library.Keeper = feed.New(containers, 0)
	}
	images, err := image.NewLibrary(library)
	if err != nil {
		m.t.Fatal(err)
	}
	hostPorts := proxy.New(proxy.Config{Dir: m.path("proxy"), Conn: conn, Log: log}).HostPorts()
	s, err := New(Config{
		HostPorts: hostPorts.Set, ShimCommand: shimCommand(m.t), Dir: m.path("pods"), Node: "m-0", Address: "127.0.0.1",
		BootID: m.boot, Conn: conn,
		Supervisor: supervisor, Runtime: containers,
		Images: images, HelloCommand: []string{shimCommand(m.t)[0], "hello-pod"}, MemoryCapacity: m.memory,
		LoggerCommand: []string{self, "container-logger"}, LoggerDir: m.path("logger"),
		Addresses: m.addresses, DNS: m.dns, Services: m.services, ProcessLimit: m.processLimit,
		Users: users(), Authority: m.path("ca.crt"),
		Gateways: func() ([]string, error) { return []string{"127.0.0.1:6443", "127.0.0.2:6443"}, nil },
		NodeOf: func(context.Context, bool) (*nodev1.Node, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return proto.CloneOf(m.node), nil
		}, Log: log,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := supervisor.Run(ctx); err != nil {
			m.t.Error(err)
		}
	})
	group.Go(func() {
		if err := hostPorts.Run(ctx); err != nil {
			m.t.Error(err)
		}
	})
	if containers != nil {
		group.Go(func() {
			if err := containers.Run(ctx); err != nil {
				m.t.Error(err)
			}
		})
	}
	pods, cancelPods := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(pods); err != nil {
			m.t.Error(err)
		}
	}()
	leave := func() {
		cancelPods()
		<-ended
		m.cluster.unattended()
	}
	stop := sync.OnceFunc(func() {
		leave()
		cancel()
		group.Wait()
		_ = conn.Close()
	})
	m.t.Cleanup(stop)
	return agent{s, stop, func(patience time.Duration) {
		leave()
		if err := s.Halt(context.Background(), patience); err != nil {
			m.t.Error(err)
		}
	}}
}

// containerRuntime returns a client of the machine's container runtime; nil if it has none.
func (m *machine) containerRuntime(log *slog.Logger) *cri.Runtime {
	m.t.Helper()
	if m.runtime == "" {
		return nil
	}
	r, err := cri.New(cri.Config{Endpoint: m.runtime, Owner: m.path("pods"), Log: log})
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// endContainers removes what the machine's container runtime has, as another machine may have a pod of the same uid.
func (m *machine) endContainers() {
	r := m.containerRuntime(slog.New(slog.DiscardHandler))
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { _ = r.Run(ctx) }()
	<-r.Active()
	names, err := r.Recorded(ctx)
	if err == nil {
		err = r.EndAll(ctx, names, 0)
	}
	if err := errors.Join(err, ReleaseMounts(m.path("pods"))); err != nil {
		m.t.Error(err)
	}
}

// containers returns the names of what the machine's container runtime has; none without one.
func (m *machine) containers() []string {
	m.t.Helper()
	r := m.containerRuntime(slog.New(slog.DiscardHandler))
	if r == nil {
		return nil
	}
	names, err := r.Recorded(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

// processes returns the pids of the containers that run, by the name of the process.
func (m *machine) processes() map[string]int {
	m.t.Helper()
	list, err := process.Running(m.path("run"))
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range list {
		if f.Name == loggerProcess {
			continue
		}
		out[strings.TrimPrefix(f.Name, "pod.uid-")] = f.PID
	}
	return out
}
