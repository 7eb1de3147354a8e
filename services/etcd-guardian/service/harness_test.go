package service_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/serve"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/etcd-guardian/service"
)

// With this variable the test binary is the guardian itself.
const asGuardian = "ETCD_GUARDIAN_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asGuardian) == "" {
		os.Exit(etcdtest.Run(m))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := service.Run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "etcd-guardian:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

const limit = 2 * time.Minute // for anything to come about, on a machine that does much else

// buildMember builds the etcd-member program; services do not import each other, tests included.
func buildMember(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "etcd-member")
	out, err := exec.Command("go", "build", "-o", path,
		"github.com/windlass-dev/windlass/services/etcd-member").CombinedOutput()
	if err != nil {
		t.Fatalf("build etcd-member: %v\n%s", err, out)
	}
	return path
}

// cluster is a guardian with all that is around it.
type cluster struct {
	t                      *testing.T
	dir, member            string
	windlass, client, peer *identity.Authority
	subnet                 string
	machineAPI, nodeAPI    *serve.Process
	nodes                  *resource.Table[*nodev1.Node]
	machines               *resource.Table[*machinev1.Machine]
	sets                   *resource.Table[*machinev1.ControlPlaneMachineSet]
	listen                 string
	bootstrap              [2]string // client and peer URL
	guardian               *exec.Cmd
	guardianLog            *lockedBuffer
	conn                   *grpc.ClientConn
	quorum                 etcdv1.QuorumServiceClient
	next                   int
	extra                  []string // flags of the guardian
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), member: buildMember(t), guardianLog: &lockedBuffer{}, next: 10}
	for name, a := range map[string]**identity.Authority{
		"windlass": &c.windlass, "etcd-client": &c.client,
		"etcd-peer": &c.peer,
	} {
		authority, err := identity.NewAuthority(name, time.Hour)
		c.check(err)
		*a = authority
	}
	c.subnet = fmt.Sprintf("127.%d.%d.", 60+os.Getpid()%120, os.Getpid()/120%250+1)
	c.bootstrap = [2]string{c.url(2), c.url(2)}
	c.listen = strings.TrimPrefix(c.url(1), "https://")
	c.serveMachines()
	c.serveNodes()
	c.guardianFiles()
	c.check(os.MkdirAll(filepath.Join(c.dir, "guardian", "bootstrap"), 0o700))
	c.check(os.WriteFile(c.allowed(), nil, 0o600))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("guardian:\n%s", c.guardianLog)
			b, _ := os.ReadFile(filepath.Join(c.dir, "guardian", "bootstrap", "etcd.log"))
			t.Logf("bootstrap:\n%s", b)
		}
	})
	return c
}

// allowed is the file by which a first start allows an empty etcd.
func (c *cluster) allowed() string { return filepath.Join(c.dir, "guardian", "bootstrap", "allowed") }

func (c *cluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// url returns an address of the cluster's own with a free port.
func (c *cluster) url(host int) string {
	l, err := net.Listen("tcp", fmt.Sprintf("%s%d:0", c.subnet, host))
	c.check(err)
	defer l.Close()
	return "https://" + l.Addr().String()
}

func (c *cluster) issue(dir, file string, a *identity.Authority, r identity.Request) {
	c.t.Helper()
	cert, key, err := a.Issue(r)
	c.check(err)
	c.check(os.MkdirAll(dir, 0o700))
	c.check(os.WriteFile(filepath.Join(dir, file+".crt"), cert, 0o600))
	c.check(os.WriteFile(filepath.Join(dir, file+".key"), key, 0o600))
}

func (c *cluster) ca(dir, file string, a *identity.Authority) {
	c.t.Helper()
	c.check(os.WriteFile(filepath.Join(dir, file), a.PEM(), 0o600))
}

func hostOf(url string) net.IP {
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(url, "https://"))
	return net.ParseIP(host)
}

// certify gets the certificates of a member from the guardian, as an agent does.
func (a *agent) certify(ctx context.Context) error {
	r := &etcdv1.CertifyMemberRequest{Node: a.name}
	var err error
	if r.ServerRequest, err = identity.RequestFor(filepath.Join(a.dir, "tls", "etcd-server.key"), a.name); err != nil {
		return err
	}
	if r.PeerRequest, err = identity.RequestFor(filepath.Join(a.dir, "tls", "peer.key"), a.name); err != nil {
		return err
	}
	out, err := etcdv1.NewQuorumServiceClient(a.conn).CertifyMember(ctx, r)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"etcd-ca.crt": out.GetClientAuthority(), "peer-ca.crt": out.GetPeerAuthority(),
		"etcd-server.crt": out.GetServerCertificate(), "peer.crt": out.GetPeerCertificate(),
	} {
		if err := os.WriteFile(filepath.Join(a.dir, "tls", name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) serviceFiles(dir, name string, ip net.IP) {
	c.issue(dir, "tls", c.windlass, identity.Request{
		CommonName: name, URI: identity.ServiceURI(name), IPs: []net.IP{ip},
		Server: true, Client: true,
	})
	c.ca(dir, "ca.crt", c.windlass)
}

func (c *cluster) guardianFiles() {
	dir := filepath.Join(c.dir, "tls")
	c.serviceFiles(dir, "etcd-guardian", net.ParseIP(c.subnet+"1"))
	c.issue(dir, "etcd", c.client, identity.Request{CommonName: "etcd-guardian", Client: true})
	c.issue(dir, "etcd-root", c.client, identity.Request{CommonName: "root", Client: true})
	c.ca(dir, "etcd-ca.crt", c.client)
	c.check(c.client.Save(filepath.Join(c.dir, "pki")))
	c.check(c.peer.Save(filepath.Join(c.dir, "pki")))
}

// serveMachines is a fake of machine-api: the same tables and methods, with a store of their own.
func (c *cluster) serveMachines() {
	c.t.Helper()
	dir := filepath.Join(c.dir, "machine-api")
	c.serviceFiles(dir, "machine-api", net.IPv4(127, 0, 0, 1))
	p, err := serve.New(serve.Config{
		Name: "machine-api", Listen: "127.0.0.1:0", Dir: filepath.Join(dir, "data"),
		TLSDir: dir,
	}, slog.New(slog.DiscardHandler))
	c.check(err)
	st := etcdtest.Store(c.t)
	any := func(string) bool { return true }
	c.machines = resource.NewTable(st, p.Validator, resource.Config[*machinev1.Machine]{
		HasNamespace: any, KeepStatus: true, Finalizers: []string{"test"},
	})
	c.sets = resource.NewTable(st, p.Validator, resource.Config[*machinev1.ControlPlaneMachineSet]{HasNamespace: any})
	c.check(resource.Register(p.Services, &machinev1.MachineService_ServiceDesc,
		machinev1.UnimplementedMachineServiceServer{},
		c.machines))
	c.check(resource.Register(p.Services, &machinev1.ControlPlaneMachineSetService_ServiceDesc,
		machinev1.UnimplementedControlPlaneMachineSetServiceServer{}, c.sets))
	c.machineAPI = p
	c.run(p, c.machines.Run, c.sets.Run)
}

// serveNodes is a fake of eviction-controller, as serveMachines is of machine-api. It begins without nodes.
func (c *cluster) serveNodes() {
	c.t.Helper()
	dir := filepath.Join(c.dir, "eviction-controller")
	c.serviceFiles(dir, "eviction-controller", net.IPv4(127, 0, 0, 1))
	p, err := serve.New(serve.Config{
		Name: "eviction-controller", Listen: "127.0.0.1:0", Dir: filepath.Join(dir, "data"), TLSDir: dir,
	}, slog.New(slog.DiscardHandler))
	c.check(err)
	c.nodes = resource.NewTable(etcdtest.Store(c.t), p.Validator, resource.Config[*nodev1.Node]{})
	c.check(resource.Register(p.Services, &nodev1.NodeService_ServiceDesc, nodev1.UnimplementedNodeServiceServer{},
		c.nodes))
	c.nodeAPI = p
	c.run(p, c.nodes.Run)
}

// run has a service run until the test ends.
func (c *cluster) run(p *serve.Process, parts ...func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, parts...) }()
	c.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

// startGuardian starts the guardian as a process and connects to it.
func (c *cluster) startGuardian() {
	c.t.Helper()
	c.guardian = exec.Command(os.Args[0], append([]string{
		"--listen", c.listen, "--dir", filepath.Join(c.dir, "guardian"), "--tls-dir", filepath.Join(c.dir, "tls"),
		"--peer", "machine-api=" + c.machineAPI.Address(), "--peer", "eviction-controller=" + c.nodeAPI.Address(),
		"--bootstrap-client", c.bootstrap[0], "--bootstrap-peer",
		c.bootstrap[1],
		"--member-command", c.member, "--pki", filepath.Join(c.dir, "pki"),
	}, c.extra...)...)
	c.guardian.Env = append(os.Environ(), asGuardian+"=1")
	c.guardian.Stderr = c.guardianLog
	c.check(c.guardian.Start())
	g := c.guardian
	c.t.Cleanup(func() { _ = g.Process.Kill(); _ = g.Wait() })
	if c.conn == nil {
		c.conn = c.dial("admin", identity.Request{
			CommonName: "admin", Organizations: []string{identity.GroupMasters},
			URI: identity.UserURI("admin"), Client: true,
		})
		c.quorum = etcdv1.NewQuorumServiceClient(c.conn)
		c.t.Cleanup(c.endBootstrap)
	}
}

// endBootstrap ends the bootstrap member, which outlives its guardian.
func (c *cluster) endBootstrap() {
	run := filepath.Join(c.dir, "guardian", "run")
	out, _ := exec.Command("sh", "-c", `sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' `+run+`/*.json 2>/dev/null`).Output()
	for _, pid := range strings.Fields(string(out)) {
		_ = exec.Command("kill", "-9", pid).Run()
	}
}

// killGuardian ends it as a crash would.
func (c *cluster) killGuardian() {
	_ = c.guardian.Process.Kill()
	_ = c.guardian.Wait()
}

func (c *cluster) dial(file string, r identity.Request) *grpc.ClientConn {
	c.t.Helper()
	dir := filepath.Join(c.dir, "clients")
	c.issue(dir, file, c.windlass, r)
	c.ca(dir, "ca.crt", c.windlass)
	files := identity.Files{
		Cert: filepath.Join(dir, file+".crt"), Key: filepath.Join(dir, file+".key"),
		CA: filepath.Join(dir, "ca.crt"),
	}
	tls, err := files.ClientTLS("")
	c.check(err)
	conn, err := grpc.NewClient(c.listen, grpc.WithTransportCredentials(credentials.NewTLS(tls)))
	c.check(err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// until waits for a state of the quorum and returns it and how long that took.
func (c *cluster) until(what string, holds func(q *etcdv1.Quorum) bool) (*etcdv1.Quorum, time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	begin := time.Now()
	var last *etcdv1.Quorum
	for ctx.Err() == nil {
		stream, err := c.quorum.WatchQuorum(ctx, &etcdv1.WatchQuorumRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var m *etcdv1.WatchQuorumResponse
			if m, err = stream.Recv(); err == nil {
				last = m.GetQuorum()
				if holds(last) {
					return last, time.Since(begin)
				}
			}
		}
	}
	c.t.Fatalf("%s did not come about within %s: %v", what, limit, last)
	return nil, 0
}

// newMachine makes a control-plane machine and its agent.
func (c *cluster) newMachine(name string, changes ...func(a *agent)) *agent {
	c.t.Helper()
	host := c.next
	c.next++
	a := &agent{c: c, name: name, dir: filepath.Join(c.dir, name), client: c.url(host), peer: c.url(host)}
	for _, change := range changes {
		change(a)
	}
	phase := "Running"
	machine, err := c.machines.Create(c.t.Context(), &machinev1.Machine{
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: "openshift-machine-api",
			Labels: map[string]string{"machine.openshift.io/cluster-api-machine-role": "master"},
		},
		Spec: &machinev1.MachineSpec{},
		Status: &machinev1.MachineStatus{
			Phase: &phase, NodeRef: &metav1.ObjectReference{Kind: "Node", Name: name},
			Addresses: []*nodev1.NodeAddress{{Type: "InternalIP", Address: hostOf(a.client).String()}},
		},
	})
	c.check(err)
	a.conn = c.dial(name, identity.Request{
		CommonName: name, URI: identity.NodeURI(name, machine.GetMetadata().GetUid()),
		Client: true,
	})
	a.attend()
	return a
}

// agent imitates a node-agent: it does what the guardian says with a real member.
type agent struct {
	c            *cluster
	name, dir    string
	client, peer string
	conn         *grpc.ClientConn
	lazy         bool // it never starts a member
	paused       atomic.Bool

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	started *etcdv1.AttendMemberResponse // the last order to start
	log     lockedBuffer
	end     func()
}

func (a *agent) attend() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if a.paused.Load() {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			_, err := os.Stat(filepath.Join(a.dir, "data"))
			stream, err2 := etcdv1.NewQuorumServiceClient(a.conn).AttendMember(ctx, &etcdv1.AttendMemberRequest{
				Node: a.name, PeerUrl: a.peer, ClientUrl: a.client, HasData: err == nil,
			}, grpc.WaitForReady(true))
			for err2 == nil {
				var m *etcdv1.AttendMemberResponse
				if m, err2 = stream.Recv(); err2 == nil {
					err2 = a.obey(ctx, m)
				}
			}
			if ctx.Err() == nil {
				fmt.Fprintln(&a.log, "attend:", err2)
				time.Sleep(50 * time.Millisecond)
			}
		}
	}()
	a.end = sync.OnceFunc(func() {
		stop()
		<-done
		a.kill()
	})
	a.c.t.Cleanup(func() {
		a.end()
		if a.c.t.Failed() {
			a.c.t.Logf("%s:\n%s", a.name, a.log.String())
		}
	})
}

// pauseAttending keeps the agent away from the guardian from its next stream on, or lets it attend again.
func (a *agent) pauseAttending(on bool) { a.paused.Store(on) }

func (a *agent) obey(ctx context.Context, m *etcdv1.AttendMemberResponse) error {
	fmt.Fprintf(&a.log, "%s command %s\n", time.Now().Format("05.000"), m.GetCommand())
	switch m.GetCommand() {
	case "Start":
		if _, err := os.Stat(filepath.Join(a.dir, "data")); err != nil {
			if err := a.certify(ctx); err != nil {
				return err
			}
		}
		if !a.lazy {
			a.start(m)
		}
	case "Stop":
		a.stop()
	case "Wipe":
		a.kill()
		_ = os.RemoveAll(filepath.Join(a.dir, "data"))
	}
	return nil
}

func (a *agent) start(m *etcdv1.AttendMemberResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cmd != nil {
		return
	}
	a.started = m
	cmd := exec.Command(a.c.member, "--name", a.name, "--data-dir", filepath.Join(a.dir, "data"), "--tls-dir",
		filepath.Join(a.dir, "tls"),
		"--listen-client", a.client, "--listen-peer", a.peer, "--initial-cluster", m.GetInitialCluster(),
		"--initial-cluster-state", "existing",
		"--initial-cluster-token", m.GetInitialClusterToken())
	cmd.Stderr = io.MultiWriter(&a.log)
	if err := cmd.Start(); err != nil {
		a.c.t.Error(err)
		return
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	a.cmd, a.exited = cmd, exited
}

// again starts the member as it was started last.
func (a *agent) again() {
	a.mu.Lock()
	m := a.started
	a.mu.Unlock()
	a.start(m)
}

func (a *agent) stop() { a.signal(syscall.SIGTERM) }
func (a *agent) kill() { a.signal(syscall.SIGKILL) }

func (a *agent) signal(sig syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Signal(sig)
	<-a.exited
	a.cmd = nil
}

// writer writes guarded records one after the other and notes the longest time that one took.
type writer struct {
	st      *store.Store
	stop    context.CancelFunc
	done    chan struct{}
	mu      sync.Mutex
	longest time.Duration
	at      time.Time // when the longest began
	count   int
	err     error
}

// etcdAs returns a client of the bootstrap member with the certificate of a user.
func (c *cluster) etcdAs(user string) *clientv3.Client {
	c.t.Helper()
	dir := filepath.Join(c.dir, "as-"+user)
	c.issue(dir, "etcd", c.client, identity.Request{CommonName: user, Client: true})
	c.ca(dir, "etcd-ca.crt", c.client)
	creds, err := identity.Files{
		Cert: filepath.Join(dir, "etcd.crt"), Key: filepath.Join(dir, "etcd.key"),
		CA: filepath.Join(dir, "etcd-ca.crt"),
	}.ClientCredentials()
	c.check(err)
	client, err := store.Dial(store.ClientConfig{Endpoints: []string{c.bootstrap[0]}, Credentials: creds})
	c.check(err)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *cluster) startWriter() *writer {
	c.t.Helper()
	dir := filepath.Join(c.dir, "writer")
	c.issue(dir, "etcd", c.client, identity.Request{CommonName: "machine-api", Client: true})
	c.ca(dir, "etcd-ca.crt", c.client)
	creds, err := identity.Files{
		Cert: filepath.Join(dir, "etcd.crt"), Key: filepath.Join(dir, "etcd.key"),
		CA: filepath.Join(dir, "etcd-ca.crt"),
	}.ClientCredentials()
	c.check(err)
	client, err := store.Dial(store.ClientConfig{Endpoints: []string{c.bootstrap[0]}, Credentials: creds})
	c.check(err)
	ctx, stop := context.WithCancel(context.Background())
	w := &writer{st: store.New(client, "/windlass/machine-api/"), stop: stop, done: make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() {
		serve.WatchReady(ctx, store.NewEndpoints(client, "", slog.New(slog.DiscardHandler)).Ready, func(error) {})
	})
	group.Go(func() { w.write(ctx) })
	go func() { group.Wait(); client.Close(); close(w.done) }()
	c.t.Cleanup(func() { stop(); <-w.done })
	return w
}

func (w *writer) write(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		begin := time.Now()
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		_, err := w.st.Commit(limited, store.Put(fmt.Sprintf("written/-/%06d", i), []byte("x"), 0))
		cancel()
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		if took := time.Since(begin); took > w.longest {
			w.longest, w.at = took, begin
		}
		w.count++
		if err != nil {
			w.err = fmt.Errorf("write %d: %w", i, err)
		}
		w.mu.Unlock()
		select { // 200 a second at most
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// gap returns the longest write since the last call.
func (w *writer) gap() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := fmt.Sprintf("%s at %s", w.longest.Round(time.Millisecond), w.at.Format("05.000"))
	w.longest = 0
	return d
}

// verify checks that every acknowledged record is there.
func (w *writer) verify(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	count, err := w.count, w.err
	w.mu.Unlock()
	if err != nil {
		t.Error(err)
	}
	page, err := w.st.List(t.Context(), "written/", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Records) < count {
		t.Errorf("%d of %d acknowledged records are there", len(page.Records), count)
	}
	t.Logf("%d records written", count)
}
