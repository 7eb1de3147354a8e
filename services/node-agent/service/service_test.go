package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// memberVariable makes the test binary play an etcd member.
const memberVariable = "WINDLASS_TEST_MEMBER"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "serve" && os.Args[2] == "container-logger" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := ContainerLogger(ctx, os.Args[3:], os.Stderr)
		stop()
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(memberVariable) != "" {
		os.Exit(playMember(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// playMember is an etcd member as its agent sees it: it has data, ends on SIGTERM, and exits with 3 if it was removed.
func playMember(args []string) int {
	flag := func(name string) string { return args[slices.Index(args, name)+1] }
	data := flag("--data-dir")
	if err := os.MkdirAll(filepath.Join(data, "member", "wal"), 0o700); err != nil {
		return 1
	}
	if err := os.WriteFile(filepath.Join(data, "member", "wal", "0.wal"), nil, 0o600); err != nil {
		return 1
	}
	if err := os.WriteFile(filepath.Join(data, "args.new"), []byte(strings.Join(args, "\n")), 0o600); err != nil {
		return 1
	}
	if err := os.Rename(filepath.Join(data, "args.new"), filepath.Join(data, "args")); err != nil {
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	removed := time.NewTicker(10 * time.Millisecond)
	for {
		select {
		case <-stop:
			return 0
		case <-removed.C:
			if _, err := os.Stat(filepath.Join(data, "removed")); err == nil {
				return 3
			}
		}
	}
}

// box is a machine's directory.
type box struct {
	t   *testing.T
	dir string
	log journal
}

// journal is what the agent logs.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func newBox(t *testing.T, c *cluster, role string) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir()}
	b.write("bootstrap.json", map[string]any{
		"endpoints": []string{c.address}, "token": c.token, "role": role, "address": "127.0.0.1", "nodeName": "m-0",
		"providerID": "local://test/m-0", "capacity": map[string]any{"cpu": "2", "memory": "4Gi", "pods": 110},
	})
	t.Cleanup(func() {
		if err := process.KillAll(context.Background(), b.path("run")); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

func (b *box) write(name string, v any) {
	b.t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func (b *box) has(name string) bool {
	_, err := os.Stat(b.path(name))
	return err == nil
}

// run runs the agent, with more arguments, until stop is called.
func (b *box) run(more ...string) (stop func(), done <-chan struct{}) {
	b.t.Helper()
	b.t.Setenv(memberVariable, "1")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		args := []string{"--dir", b.dir, "--member-command", os.Args[0], "--log-level", "debug"}
		err = Run(ctx, append(args, more...), &b.log)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(func() {
		stop()
		if b.t.Failed() {
			b.t.Log(b.log.String())
		}
	})
	return stop, ended
}

func (c *cluster) awaitBeats(name string, more int) {
	c.t.Helper()
	start := -1
	servetest.Await(c.t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		beats := c.node(name).beats
		if start < 0 {
			start = beats
		}
		if beats >= start+more {
			return ""
		}
		return fmt.Sprintf("%d of %d more heartbeats", beats-start, more)
	})
}

func TestAWorkerJoinsAndSpeaksForItsNode(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "worker")
	stop, _ := b.run()
	c.awaitBeats("m-0", 2)
	stop()
	var r *nodev1.RegisterNodeRequest
	var boot string
	c.locked(func() { r, boot = c.node("m-0").registration, c.node("m-0").boot })
	if r.GetProviderId() != "local://test/m-0" || r.GetMachine().GetName() != "m-0" ||
		r.GetLabels()["kubernetes.io/hostname"] != "m-0" {
		t.Errorf("registered as %v", r)
	}
	if got := r.GetStatus().GetCapacity()["memory"].GetStringValue(); got != "4Gi" {
		t.Errorf("memory %q", got)
	}
	if got := r.GetStatus().GetNodeInfo().GetBootId(); got == "" || got != boot {
		t.Errorf("boot %q registered, %q in heartbeats", got, boot)
	}
	want := []*nodev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.1"}, {Type: "Hostname", Address: "m-0"}}
	if diff := cmp.Diff(want, r.GetStatus().GetAddresses(), protocmp.Transform()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if b.has("etcd/tls/peer.key") {
		t.Error("a worker has keys of an etcd member")
	}

	// The next start is the same boot, with the same keys, and joins no second time.
	b.run()
	c.awaitBeats("m-0", 1)
	c.locked(func() {
		if len(c.keys) != 1 || c.node("m-0").boot != boot {
			t.Errorf("%d keys joined, boot %q after %q", len(c.keys), c.node("m-0").boot, boot)
		}
	})
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && strings.HasSuffix(path, ".key") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAJoinWhoseAnswerIsLostIsRepeatedWithTheSameKeys(t *testing.T) {
	c := newCluster(t, "gateway")
	c.loseJoin = 2
	b := newBox(t, c, "worker")
	b.run()
	c.awaitBeats("m-0", 1)
	c.locked(func() {
		for _, times := range c.keys {
			if len(c.keys) != 1 || times != 3 {
				t.Errorf("%d keys, one %d times", len(c.keys), times)
			}
		}
	})
}

func TestTheTokenIsShownToNobodyButTheGateway(t *testing.T) {
	stranger := newCluster(t, "gateway")
	other, elsewhere := newCluster(t, "hook-broker"), newCluster(t, "gateway")
	elsewhere.token = stranger.token
	for name, impostor := range map[string]*cluster{
		"another service of the cluster": other,
		"the gateway of another cluster": elsewhere,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, impostor, "worker")
			b.run()
			servetest.Await(t, func() string {
				if !strings.Contains(b.log.String(), "not joined yet") {
					return "the agent cannot join"
				}
				return ""
			})
			impostor.locked(func() {
				if len(impostor.keys) != 0 {
					t.Errorf("%d keys joined", len(impostor.keys))
				}
			})
		})
	}
}

func TestAnAgentComesBackAfterTheGatewayDid(t *testing.T) {
	c := newCluster(t, "gateway")
	newBox(t, c, "worker").run()
	c.awaitBeats("m-0", 1)
	began := time.Now()
	c.restart()
	c.awaitBeats("m-0", 1)
	t.Logf("back after %v", time.Since(began))
	// A node that was deleted is registered again.
	c.locked(func() { c.node("m-0").registrations = 0 })
	servetest.Await(t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.node("m-0").registrations > 0 {
			return ""
		}
		return "another registration"
	})
}

func TestARebootIsAnotherBoot(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "master")
	_, done := b.run()
	c.order(start("m-0", "m-0=https://127.0.0.1:2380"))
	pid := b.awaitMember()
	c.awaitBeats("m-0", 1)
	var boot string
	c.locked(func() { boot = c.node("m-0").boot; c.node("m-0").reboot = boot })
	<-done
	if alive(pid) {
		t.Error("the member runs on through a reboot")
	}
	b.run()
	servetest.Await(t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if is := c.node("m-0").boot; is != boot {
			return ""
		}
		return "another boot"
	})
	if again := b.awaitMember(); again == pid {
		t.Errorf("the member has pid %d as before", again)
	}
}

func TestAPodOutlivesItsAgentAndNotItsMachine(t *testing.T) {
	c := newCluster(t, "gateway")
	c.pod = &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "a", Namespace: "default", Uid: "uid-a"},
		Spec: &schedulingv1.PodSpec{NodeName: "m-0", RestartPolicy: "Always", Containers: []*schedulingv1.Container{{
			Name: "main", Command: []string{"sh", "-c", "sleep 1000"},
			Resources: &schedulingv1.ResourceRequirements{
				Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("2")},
			},
		}}},
	}
	b := newBox(t, c, "worker")
	runs := func(restarts int32) (pid int) {
		t.Helper()
		servetest.Await(t, func() string {
			list, err := process.Running(b.path("run"))
			list = slices.DeleteFunc(list, func(f process.Found) bool { return f.Name == "logger" })
			if err != nil || len(list) != 1 {
				return fmt.Sprintf("the container runs: %v, %v", list, err)
			}
			pid = list[0].PID
			c.mu.Lock()
			defer c.mu.Unlock()
			if cs := c.pod.GetStatus().GetContainerStatuses(); len(cs) != 1 || cs[0].GetRestartCount() != restarts ||
				!cs[0].GetReady() {
				return fmt.Sprintf("status with %d restarts: %v", restarts, cs)
			}
			return ""
		})
		return pid
	}
	stop, _ := b.run()
	first := runs(0)
	stop()
	if !alive(first) {
		t.Fatal("the container ended with its agent")
	}
	_, done := b.run()
	if second := runs(0); second != first {
		t.Errorf("pid %d, then %d: it was not taken over", first, second)
	}
	c.awaitBeats("m-0", 1)
	c.locked(func() {
		if h := c.node("m-0"); len(h.conditions) != 4 || len(h.registration.GetStatus().GetConditions()) != 0 {
			t.Errorf("conditions %v", h.conditions)
		}
		c.node("m-0").reboot = c.node("m-0").boot
	})
	<-done
	if alive(first) {
		t.Error("the container runs on through a reboot")
	}
	b.run()
	if third := runs(1); third == first {
		t.Error("it was not started again")
	}
}

func start(name, cluster string) *etcdv1.AttendMemberResponse {
	return &etcdv1.AttendMemberResponse{
		Command: "Start", Name: name, InitialCluster: cluster,
		InitialClusterToken: "token",
	}
}

// awaitMember returns the pid of the member once it runs and has data.
func (b *box) awaitMember() int {
	b.t.Helper()
	pid := 0
	servetest.Await(b.t, func() string {
		list, err := process.Running(b.path("run"))
		if err != nil || len(list) != 1 || !b.has("etcd/data/args") {
			return fmt.Sprintf("the member runs: %v, %v", list, err)
		}
		pid = list[0].PID
		return ""
	})
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func (c *cluster) awaitOffer(n int) *etcdv1.AttendMemberRequest {
	c.t.Helper()
	var out *etcdv1.AttendMemberRequest
	servetest.Await(c.t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.offers) < n {
			return fmt.Sprintf("offer %d of %d", len(c.offers), n)
		}
		out = c.offers[n-1]
		return ""
	})
	return out
}

func TestAMemberOutlivesItsAgent(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "master")
	stop, _ := b.run()
	if o := c.awaitOffer(1); o.GetHasData() || o.GetPeerUrl() != "https://127.0.0.1:2380" ||
		o.GetClientUrl() != "https://127.0.0.1:2379" {
		t.Errorf("offer %v", o)
	}
	c.order(start("m-0", "boot=https://127.0.0.2:2380,m-0=https://127.0.0.1:2380"))
	pid := b.awaitMember()
	args := strings.Split(b.read("etcd/data/args"), "\n")
	for _, want := range []string{
		"boot=https://127.0.0.2:2380,m-0=https://127.0.0.1:2380", "token", "existing",
		b.path("etcd/tls"),
	} {
		if !slices.Contains(args, want) {
			t.Errorf("the member's arguments lack %q: %q", want, args)
		}
	}
	for _, f := range []string{
		"etcd-ca.crt", "etcd-server.crt", "etcd-server.key", "peer-ca.crt", "peer.crt",
		"peer.key",
	} {
		if !b.has("etcd/tls/" + f) {
			t.Errorf("the member has no %s", f)
		}
	}
	stop()
	if !alive(pid) {
		t.Fatal("the member ended with its agent")
	}
	// The cluster is away, and the member dies: the next agent starts it from the disk alone.
	c.server.Stop()
	if err := process.KillAll(t.Context(), b.path("run")); err != nil {
		t.Fatal(err)
	}
	stop, _ = b.run()
	servetest.Await(t, func() string {
		if list, _ := process.Running(b.path("run")); len(list) == 1 && list[0].PID != pid {
			pid = list[0].PID
			return ""
		}
		return "the member runs again"
	})
	stop()
	c.listen(c.address)
	b.run()
	if o := c.awaitOffer(2); !o.GetHasData() {
		t.Errorf("offer %v, want one with data", o)
	}
	if got := b.awaitMember(); got != pid {
		t.Errorf("the member has pid %d, want %d: it was not taken over", got, pid)
	}
	// Another list of first members is no reason to restart it, an order to stop leaves the data.
	c.order(start("m-0", "m-1=https://127.0.0.3:2380,m-0=https://127.0.0.1:2380"))
	c.order(&etcdv1.AttendMemberResponse{Command: "Stop"})
	servetest.Await(t, func() string {
		if list, _ := process.Running(b.path("run")); len(list) == 0 && !alive(pid) {
			return ""
		}
		return "the member stopped"
	})
	if !b.has("etcd/data/member") {
		t.Error("the data of a stopped member is gone")
	}
	c.order(&etcdv1.AttendMemberResponse{Command: "Wipe"})
	servetest.Await(t, func() string {
		if b.has("etcd/data") || b.has("etcd/member.json") {
			return "the data is gone"
		}
		return ""
	})
	c.order(start("m-0", "m-1=https://127.0.0.3:2380,m-0=https://127.0.0.1:2380"))
	b.awaitMember()
}

func TestAMemberThatWasRemovedIsOfferedAnew(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "master")
	b.run()
	c.order(start("m-0", "m-0=https://127.0.0.1:2380"))
	b.awaitMember()
	if err := os.WriteFile(b.path("etcd/data/removed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o := c.awaitOffer(2); o.GetHasData() {
		t.Errorf("offer %v, want one without data", o)
	}
	if b.has("etcd/member.json") {
		t.Error("the machine still has a member")
	}
}

func TestAWipeThatWasInterruptedIsFinished(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "master")
	b.write("etcd/member.json", map[string]any{"state": "Wiping", "name": "m-0"})
	b.write("etcd/data/member/wal/0.wal", "old")
	b.run()
	if o := c.awaitOffer(1); o.GetHasData() || b.has("etcd/data") || b.has("etcd/member.json") {
		t.Errorf("offer %v, data there: %v", o, b.has("etcd/data"))
	}
}

func TestAMemberWhoseDataIsLostIsNotStartedEmpty(t *testing.T) {
	c := newCluster(t, "gateway")
	b := newBox(t, c, "master")
	b.write("etcd/member.json", map[string]any{
		"state": "Running", "name": "m-0", "initialCluster": "m-0=https://127.0.0.1:2380", "clusterToken": "token",
		"hadData": true,
	})
	b.run()
	if o := c.awaitOffer(1); o.GetHasData() || b.has("etcd/data") {
		t.Errorf("offer %v", o)
	}
	c.order(start("m-0", "m-0=https://127.0.0.1:2380"))
	c.order(&etcdv1.AttendMemberResponse{Command: "Wipe"})
	c.order(start("m-0", "m-0=https://127.0.0.1:2380"))
	b.awaitMember()
}

func TestCertificatesAreRenewedInTime(t *testing.T) {
	c := newCluster(t, "gateway")
	c.lifetime = 6 * time.Second // one that expires before a busy host renews it is never renewed
	b := newBox(t, c, "master")
	b.run()
	c.awaitBeats("m-0", 1)
	first := b.read("pki/agent.crt")
	key := b.read("pki/agent.key")
	if b.has("etcd/tls/peer.crt") {
		t.Error("the machine has a peer certificate before a member was planned for it")
	}
	c.order(start("m-0", "m-0=https://127.0.0.1:2380"))
	b.awaitMember()
	peer, peerKey := b.read("etcd/tls/peer.crt"), b.read("etcd/tls/peer.key")
	servetest.Await(t, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.renewals >= 2 && c.certified >= 3 {
			return ""
		}
		return fmt.Sprintf("%d renewals of the agent's certificate, %d certificates of the member", c.renewals, c.certified)
	})
	c.restart() // the new connection needs a certificate that is still valid
	c.awaitBeats("m-0", 1)
	if b.read("pki/agent.crt") == first || b.read("etcd/tls/peer.crt") == peer || b.read("pki/agent.key") != key ||
		b.read("etcd/tls/peer.key") != peerKey {
		t.Error("want new certificates for the old keys")
	}
}
