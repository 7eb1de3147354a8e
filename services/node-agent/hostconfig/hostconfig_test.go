package hostconfig

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/hostos"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

var errReboot = errors.New("restart")

// cluster is the other end: it sends what a test orders and keeps what it receives.
type cluster struct {
	configv1.UnimplementedConfigAgentServiceServer
	mu      sync.Mutex
	order   *configv1.FollowConfigResponse
	changed chan struct{}
	reports []*configv1.ReportConfigRequest
	unknown int  // how often it is still to be said that the boot is not known
	asked   int  // how often that was said
	deaf    bool // no report is received
}

// registered returns whether the agent's boot is known.
func (c *cluster) registered(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown == 0 {
		return nil
	}
	c.unknown--
	c.asked++
	return status.Error(codes.Unavailable, "not registered yet")
}

func (c *cluster) FollowConfig(_ *configv1.FollowConfigRequest,
	s grpc.ServerStreamingServer[configv1.FollowConfigResponse],
) error {
	for {
		c.mu.Lock()
		order, changed := c.order, c.changed
		c.mu.Unlock()
		if order != nil {
			if err := s.Send(order); err != nil {
				return err
			}
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func (c *cluster) ReportConfig(_ context.Context, r *configv1.ReportConfigRequest) (*configv1.ReportConfigResponse,
	error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		return nil, status.Error(codes.Unavailable, "away")
	}
	c.reports = append(c.reports, r)
	return &configv1.ReportConfigResponse{}, nil
}

func (c *cluster) send(cfg *configv1.MachineConfig, apply, reboot bool, services ...*configv1.ServiceAction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = &configv1.FollowConfigResponse{MachineConfig: cfg, Apply: apply, Reboot: reboot, Services: services}
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) last() *configv1.ReportConfigRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.reports) == 0 {
		return nil
	}
	return c.reports[len(c.reports)-1]
}

// machine is a machine with its agent's part under test.
type machine struct {
	t       *testing.T
	dir     string
	cluster *cluster
	conn    *grpc.ClientConn
	host    *Host
	stop    func() error
	ended   chan error
	system  func(boot string) hostos.Driver // nil: the machine keeps its operating system
	adjust  func(*Config)                   // of the agent's settings; may be nil
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), cluster: &cluster{changed: make(chan struct{})}}
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	configv1.RegisterConfigAgentServiceServer(s, m.cluster)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///machine", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	m.conn = conn
	return m
}

// boot starts the agent's part in a boot; another one that runs is stopped first. What that one reported is forgotten,
// so that a test that awaits a report then knows that this one has everything running again.
func (m *machine) boot(id string) {
	m.t.Helper()
	if m.stop != nil {
		_ = m.stop()
	}
	m.cluster.mu.Lock()
	m.cluster.reports = nil
	m.cluster.mu.Unlock()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	supervisor := process.NewSupervisor(filepath.Join(m.dir, "run"), log)
	cfg := Config{
		Dir: m.dir, Node: "worker-0", BootID: id, Conn: m.conn, Supervisor: supervisor, Reboot: errReboot,
		Drift: 20 * time.Millisecond, Log: log,
		Registered: m.cluster.registered,
	}
	if m.system != nil {
		cfg.System = m.system(id)
	}
	if m.adjust != nil {
		m.adjust(&cfg)
	}
	m.host = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- supervisor.Run(ctx) }()
	m.ended = make(chan error, 1)
	go func() { m.ended <- m.host.Run(ctx) }()
	var once sync.Once
	var err error
	m.stop = func() error {
		once.Do(func() {
			cancel()
			err = errors.Join(<-m.ended, <-supervised)
		})
		return err
	}
	m.t.Cleanup(func() {
		_ = m.stop()
		_ = process.KillAll(context.Background(), filepath.Join(m.dir, "run"))
	})
}

// awaitRestart waits until the agent ends so that the machine is restarted.
func (m *machine) awaitRestart() {
	m.t.Helper()
	if err := <-m.ended; !errors.Is(err, errReboot) {
		m.t.Fatalf("the agent ended with %v", err)
	}
	m.ended <- nil
}

func (m *machine) await(what string, ok func(*configv1.ReportConfigRequest) bool) *configv1.ReportConfigRequest {
	m.t.Helper()
	for range 3000 {
		if r := m.cluster.last(); r != nil && ok(r) {
			return r
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Fatalf("%s: last report %v", what, m.cluster.last())
	return nil
}

func (m *machine) awaitState(state, current string) *configv1.ReportConfigRequest {
	m.t.Helper()
	return m.await(state+" with "+current, func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == state && r.GetCurrentConfig() == current
	})
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, rootDir, name) }

func (m *machine) content(name string) string {
	m.t.Helper()
	data, err := os.ReadFile(m.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return string(data)
}

func (m *machine) place(name, content string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func data(content string) string {
	return "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))
}

func fileAt(path, content string, mode int) map[string]any {
	return map[string]any{"path": path, "mode": mode, "contents": map[string]any{"source": data(content)}}
}

func service(name, contents string) map[string]any {
	return map[string]any{"name": name, "enabled": true, "contents": contents}
}

// config makes a machine configuration of files and units.
func config(t *testing.T, name string, files, units []any) *configv1.MachineConfig {
	t.Helper()
	return configOf(t, name, map[string]any{"storage": map[string]any{"files": files}, "systemd": map[string]any{
		"units": units,
	}})
}

func configOf(t *testing.T, name string, doc map[string]any) *configv1.MachineConfig {
	t.Helper()
	doc["ignition"] = map[string]any{"version": "3.5.0"}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	s := &structpb.Struct{}
	if err := s.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return &configv1.MachineConfig{Metadata: &metav1.ObjectMeta{Name: name}, Spec: &configv1.MachineConfigSpec{Config: s}}
}

func (m *machine) running(text string) bool {
	found, err := process.Running(filepath.Join(m.dir, "run"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range found {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.PID))
		if err == nil && strings.Contains(string(line), text) {
			return true
		}
	}
	return false
}

func (m *machine) awaitRunning(text string) {
	m.t.Helper()
	for range 500 {
		if m.running(text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Errorf("no process has %q in its command", text)
}

func TestAConfigurationIsTakenUpAndAnotherReplacesIt(t *testing.T) {
	m := newMachine(t)
	m.place("etc/motd", "from the image")
	m.boot("boot-1")
	m.cluster.send(config(t, "a",
		[]any{fileAt("/etc/motd", "hello", 0o640), fileAt("/opt/deep/file", "x", 0o755)},
		[]any{service("sleeper.service", "[Service]\nExecStart=/bin/sleep 1001\n[Install]\nWantedBy=multi-user.target\n")}),
		true, false)
	if r := m.awaitState(done, "a"); r.GetBootId() != "boot-1" || r.GetReason() != "" || r.GetNodeName() != "worker-0" {
		t.Errorf("report %v", r)
	}
	if got := m.content("etc/motd"); got != "hello" {
		t.Errorf("motd %q", got)
	}
	if info, err := os.Stat(m.path("etc/motd")); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if !m.running("1001") {
		t.Error("the unit does not run")
	}
	if target, err := os.Readlink(m.path("etc/systemd/system/multi-user.target.wants/sleeper.service")); err != nil ||
		target != "/etc/systemd/system/sleeper.service" {
		t.Errorf("link %q, %v", target, err)
	}
	m.cluster.send(config(t, "b", nil, []any{service("sleeper.service", "[Service]\nExecStart=/bin/sleep 1002\n")}), true,
		false)
	m.awaitState(done, "b")
	if got := m.content("etc/motd"); got != "from the image" {
		t.Errorf("motd is %q, not what the image had", got)
	}
	if info, err := os.Stat(m.path("etc/motd")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(m.path("opt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directories that were made for a file stay: %v", err)
	}
	if m.running("1001") || !m.running("1002") {
		t.Error("the former unit runs, or the new one does not")
	}
	m.cluster.send(config(t, "c", nil, nil), true, false)
	m.awaitState(done, "c")
	if m.running("1002") {
		t.Error("a unit that was removed runs")
	}
	if left, err := os.ReadDir(filepath.Join(m.dir, keptDir)); err != nil || len(left) != 0 {
		t.Errorf("kept contents %v, %v", left, err)
	}
}

func TestWhatCannotBeStartedIsTakenBackAndAbandoned(t *testing.T) {
	for _, tc := range []struct{ name, unit, want string }{
		{
			"there is no such command", "[Service]\nExecStart=/no/such/command\n",
			`unit "bad.service": there is no command /no/such/command`,
		},
		{
			"a oneshot fails", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo broken disk; exit 3'\n",
			`unit "bad.service": /bin/sh: exit status 3: broken disk`,
		},
		{
			"a service ends at once", "[Service]\nExecStart=/bin/false\nRestart=always\n",
			`unit "bad.service" ended at once: exit code 1`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.boot("boot-1")
			good := config(t, "good", []any{fileAt("/etc/x", "good", 0o644)},
				[]any{service("sleeper.service", "[Service]\nExecStart=/bin/sleep 1003\n")})
			m.cluster.send(good, true, false)
			m.awaitState(done, "good")
			m.cluster.send(config(t, "bad", []any{fileAt("/etc/x", "bad", 0o644), fileAt("/etc/new", "n", 0o644)},
				[]any{service("bad.service", tc.unit)}), true, false)
			if r := m.awaitState(degraded, "good"); r.GetReason() != tc.want || r.GetDesiredConfig() != "bad" {
				t.Errorf("reason %q, want %q", r.GetReason(), tc.want)
			}
			if x, n := m.content("etc/x"), m.content("etc/new"); x != "good" || n != "(none)" {
				t.Errorf("after the failure: x %q, new %q", x, n)
			}
			m.awaitRunning("1003") // it is started again, which takes a moment
			m.cluster.send(good, true, false)
			m.awaitState(done, "good")
		})
	}
}

// TestWhatAFailedTakeBackLeftIsHealed has a change fail, and its take-back as well: the machine is not done with the
// configuration before, although everything that this one names is there, until what the change left is gone.
func TestWhatAFailedTakeBackLeftIsHealed(t *testing.T) {
	m := newMachine(t)
	m.place("etc/zz", "original")
	m.boot("boot-1")
	sleeper := service("sleeper.service", "[Service]\nExecStart=/bin/sleep 1004\n")
	good := config(t, "good", []any{fileAt("/etc/good", "good", 0o644)}, []any{sleeper})
	m.cluster.send(good, true, false)
	m.awaitState(done, "good")
	kept := filepath.Join(m.dir, keptDir)
	m.cluster.send(config(t, "bad", []any{fileAt("/etc/new", "n", 0o644), fileAt("/etc/zz", "bad", 0o644)},
		[]any{service("bad.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'mv "+kept+" "+kept+".away; exit 3'\n")}),
		true, false)
	m.await("a take-back that fails", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && strings.Contains(r.GetReason(), `take back "/etc/zz"`)
	})
	m.cluster.send(good, true, false)
	m.await("the rest is said", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetDesiredConfig() == "good"
	})
	if n := m.content("etc/new"); n != "(none)" {
		t.Errorf("what can be taken back is there: %q", n)
	}
	if err := os.Rename(kept+".away", kept); err != nil {
		t.Fatal(err)
	}
	m.awaitState(done, "good")
	if zz := m.content("etc/zz"); zz != "original" {
		t.Errorf("the original is %q", zz)
	}
	m.awaitRunning("1004")
}

func TestARecordThatIsNoneIsSaid(t *testing.T) {
	for _, name := range []string{currentFile, journalFile} {
		for _, garbage := range []string{"null", "{}", "", "[]"} {
			t.Run(name+" is "+garbage, func(t *testing.T) {
				m := newMachine(t)
				m.boot("boot-1")
				m.cluster.send(config(t, "a", []any{fileAt("/etc/one", "1", 0o644)}, nil), true, false)
				m.awaitState(done, "a")
				_ = m.stop()
				if err := os.WriteFile(filepath.Join(m.dir, name), []byte(garbage), 0o600); err != nil {
					t.Fatal(err)
				}
				m.boot("boot-1")
				r := m.await("degraded", func(r *configv1.ReportConfigRequest) bool { return r.GetState() != done })
				if r.GetState() != degraded || !strings.Contains(r.GetReason(), name) {
					t.Errorf("report %v", r)
				}
			})
		}
	}
}

func TestAnOriginalThatWasDamagedDoesNotComeBack(t *testing.T) {
	tr, err := openTree(filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "kept"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.root.Close()
	put := func(content string) {
		t.Helper()
		if err := tr.put(entry{path: "etc/one", kind: file, mode: 0o644, content: []byte(content)}); err != nil {
			t.Fatal(err)
		}
	}
	put("original")
	was, err := tr.look("etc/one")
	if err != nil {
		t.Fatal(err)
	}
	damage := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tr.kept, was.Sum), []byte("orig"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	if err := tr.preserve(was); err != nil { // it is there to be kept again
		t.Fatal(err)
	}
	put("next")
	if err := tr.restore(was); err != nil {
		t.Fatal(err)
	}
	put("next")
	damage()
	if err := tr.restore(was); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("restore: %v", err)
	}
	if is, _ := tr.look("etc/one"); is.Sum == was.Sum {
		t.Error("it came back whole from what is damaged")
	}
}

func TestAConfigurationThatTakesLongIsAbandonedForAnother(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "slow", []any{fileAt("/etc/slow", "s", 0o644)},
		[]any{service("slow.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 600\n")}), true, false)
	m.await("begun", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == working && r.GetDesiredConfig() == "slow"
	})
	m.cluster.send(config(t, "quick", []any{fileAt("/etc/quick", "q", 0o644)}, nil), true, false)
	m.awaitState(done, "quick")
	if m.content("etc/slow") != "(none)" || m.content("etc/quick") != "q" {
		t.Errorf("slow %q, quick %q", m.content("etc/slow"), m.content("etc/quick"))
	}
}

func TestNothingIsAppliedBeforeTheClusterSaysSo(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/etc/x", "a", 0o644)}, nil), false, false)
	m.await("waiting", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == working && r.GetDesiredConfig() == "a"
	})
	if got := m.content("etc/x"); got != "(none)" {
		t.Errorf("x is %q before the node is empty", got)
	}
	m.cluster.send(
		configOf(t, "disks", map[string]any{"storage": map[string]any{"disks": []any{map[string]any{"device": "/dev/sda"}}}}),
		false, false)
	if r := m.awaitState(unreconcilable, ""); !strings.HasPrefix(r.GetReason(), "spec.config.storage.disks: ") {
		t.Errorf("reason %q", r.GetReason())
	}
}

func TestAMachineRestartsAndIsDoneInAnotherBoot(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	count := filepath.Join(m.dir, "count")
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "b", 0o644)},
		[]any{service("once.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo ran >> "+count+"'\n")}), true,
		true)
	m.awaitRestart()
	r := m.awaitState(rebooting, "a")
	if r.GetDesiredConfig() != "b" || r.GetBootId() != "boot-1" {
		t.Errorf("report %v", r)
	}
	m.boot("boot-1") // the agent came back, the machine was not restarted
	m.awaitRestart()
	m.boot("boot-2")
	m.await("done after the restart", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == done && r.GetCurrentConfig() == "b" && r.GetBootId() == "boot-2"
	})
	if ran, _ := os.ReadFile(count); string(ran) != "ran\nran\n" {
		t.Errorf("a oneshot unit runs when it comes and in each boot: %q", ran)
	}
	m.boot("boot-2")
	m.await("done again", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == done &&
			r.GetBootId() == "boot-2"
	})
	if ran, _ := os.ReadFile(count); string(ran) != "ran\nran\n" {
		t.Errorf("a oneshot unit ran again without a boot: %q", ran)
	}
}

func TestNothingIsSaidOfABootThatTheClusterDoesNotKnow(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.mu.Lock()
	m.cluster.unknown = 2
	m.cluster.mu.Unlock()
	m.boot("boot-2")
	m.awaitState(done, "a")
	m.cluster.mu.Lock()
	defer m.cluster.mu.Unlock()
	if m.cluster.asked != 2 {
		t.Errorf("it was said after %d of 2 refusals", m.cluster.asked)
	}
}

func TestWhoAsksAgainIsToldAgain(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	a := config(t, "a", nil, nil)
	m.cluster.send(a, true, false)
	m.awaitState(done, "a")
	time.Sleep(50 * time.Millisecond)
	m.cluster.mu.Lock()
	before := len(m.cluster.reports)
	m.cluster.mu.Unlock()
	m.cluster.send(a, true, false)
	m.await("reported again", func(r *configv1.ReportConfigRequest) bool {
		m.cluster.mu.Lock()
		defer m.cluster.mu.Unlock()
		return len(m.cluster.reports) > before && r.GetState() == done
	})
}

func TestServicesOutliveTheAgent(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(
		config(t, "a", nil, []any{service("sleeper.service", "[Service]\nExecStart=/bin/sleep 1004\nRestart=always\n")}),
		true, false)
	m.awaitState(done, "a")
	before, err := process.Running(filepath.Join(m.dir, "run"))
	if err != nil || len(before) != 1 {
		t.Fatalf("running %v, %v", before, err)
	}
	m.boot("boot-1")
	m.awaitState(done, "a")
	after, err := process.Running(filepath.Join(m.dir, "run"))
	if err != nil || len(after) != 1 || after[0].PID != before[0].PID {
		t.Errorf("running %v, then %v, %v", before, after, err)
	}
}

func TestDriftIsToldAndNotRepaired(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/etc/x", "right", 0o644)}, nil), true, false)
	m.awaitState(done, "a")
	m.place("etc/x", "wrong")
	if r := m.awaitState(degraded, "a"); r.GetReason() != `content mismatch for file "/etc/x"` {
		t.Errorf("reason %q", r.GetReason())
	}
	time.Sleep(60 * time.Millisecond)
	if got := m.content("etc/x"); got != "wrong" {
		t.Errorf("x is %q: it was repaired", got)
	}
	m.place("etc/x", "right")
	m.awaitState(done, "a")
	if err := os.Chmod(m.path("etc/x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := m.awaitState(degraded, "a"); !strings.HasPrefix(r.GetReason(),
		`mode mismatch for file: "/etc/x"; expected: -rw-r--r--; received: -rw-------`) {
		t.Errorf("reason %q", r.GetReason())
	}
	if err := os.Remove(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	m.await("missing", func(r *configv1.ReportConfigRequest) bool {
		return r.GetReason() == `content mismatch for file "/etc/x": it is missing`
	})
}

func TestNothingIsWrittenOutsideOfTheRoot(t *testing.T) {
	m := newMachine(t)
	outside := t.TempDir()
	if err := os.MkdirAll(m.path("etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, m.path("etc/out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "victim"), m.path("etc/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-1")
	m.cluster.send(config(t, "escape", []any{fileAt("/etc/a", "a", 0o644), fileAt("/etc/out/x", "evil", 0o644)}, nil),
		true, false)
	if r := m.awaitState(degraded, ""); !strings.Contains(r.GetReason(), "escapes") {
		t.Errorf("reason %q", r.GetReason())
	}
	if got := m.content("etc/a"); got != "(none)" {
		t.Errorf("a is %q after a failure", got)
	}
	m.cluster.send(config(t, "replace", []any{fileAt("/etc/link", "new", 0o644)}, nil), true, false)
	m.awaitState(done, "replace")
	if victim, _ := os.ReadFile(filepath.Join(outside, "victim")); string(victim) != "mine" {
		t.Errorf("what a link led to is %q", victim)
	}
	if files, _ := os.ReadDir(outside); len(files) != 1 {
		t.Errorf("outside: %v", files)
	}
}

// killedAt names the variable that says where the process that carries out a change is to end, in TestMain's child.
const killedAt = "HOSTCONFIG_KILLED_AT"

func TestMain(m *testing.M) {
	if at := os.Getenv(killedAt); at != "" {
		if err := applyAndDie(at); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// applyAndDie takes the configurations of a directory up one after the other and is killed before the step of the given
// number of the last one.
func applyAndDie(at string) error {
	dir := os.Getenv("HOSTCONFIG_DIR")
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	h := New(Config{Dir: dir, BootID: "boot-1", Log: log, Supervisor: process.NewSupervisor(filepath.Join(dir, "run"),
		log)})
	if err := h.open(); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		raw, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if err != nil {
			return err
		}
		cfg, err := (state{Name: name, Config: raw}).config()
		if err != nil {
			return err
		}
		steps := 0
		h.tree.step = func(string) error {
			if steps++; name == "b" && fmt.Sprint(steps) == at {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		}
		if h.st, _, err = h.apply(context.Background(), h.st, order{config: cfg}); err != nil {
			return err
		}
	}
	return nil
}

func TestAKillInTheMiddleIsTakenBackAtTheNextStart(t *testing.T) {
	a := config(t, "a", []any{
		fileAt("/etc/one", "1a", 0o644), fileAt("/etc/two", "2a", 0o600),
		fileAt("/only/a", "x", 0o644),
	}, nil)
	b := config(t, "b", []any{
		fileAt("/etc/one", "1b", 0o640), fileAt("/etc/two", "2b", 0o600),
		fileAt("/only/b", "y", 0o644),
	}, nil)
	finished := false
	for at := 1; !finished; at++ {
		m := newMachine(t)
		m.place("etc/two", "before everything")
		for _, c := range []*configv1.MachineConfig{a, b} {
			raw, err := protojson.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.dir, c.GetMetadata().GetName()+".json"), raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killedAt, at), "HOSTCONFIG_DIR="+m.dir)
		out, err := cmd.CombinedOutput()
		finished = err == nil
		if err != nil && !strings.Contains(err.Error(), "killed") {
			t.Fatalf("step %d: %v: %s", at, err, out)
		}
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		h := New(Config{Dir: m.dir, BootID: "boot-1", Log: log, Supervisor: process.NewSupervisor(filepath.Join(m.dir, "run"),
			log)})
		if err := h.open(); err != nil {
			t.Fatal(err)
		}
		if why := summary(h.tree.drift(h.wanted.entries, h.seen)); why != "" {
			t.Errorf("killed at step %d: %s after the next start: %s", at, h.st.Name, why)
		}
		want := map[bool]string{false: "a", true: "b"}[finished]
		if h.st.Name != want {
			t.Errorf("killed at step %d: the configuration is %q, want %q", at, h.st.Name, want)
		}
		for _, name := range []string{"a", "b"} {
			if has := m.content("only/"+name) != "(none)"; has != (name == want) {
				t.Errorf("killed at step %d: only/%s is there: %v", at, name, has)
			}
		}
		if finished && at < 4 {
			t.Errorf("only %d steps were cut", at-1)
		}
		empty := config(t, "empty", nil, nil)
		if h.st, _, err = h.apply(t.Context(), h.st, order{config: empty}); err != nil {
			t.Fatal(err)
		}
		if got := m.content("etc/two"); got != "before everything" {
			t.Errorf("killed at step %d: the original is %q", at, got)
		}
		if m.content("etc/one") != "(none)" {
			t.Errorf("killed at step %d: an unwanted file is there", at)
		}
		h.tree.root.Close()
	}
}

func TestAnErrorOfTheDiskAtAnyStepIsTakenBack(t *testing.T) {
	a := config(t, "a", []any{fileAt("/etc/one", "1a", 0o644), fileAt("/only/a", "x", 0o644)}, nil)
	b := config(t, "b", []any{fileAt("/etc/one", "1b", 0o644), fileAt("/only/b/deep", "y", 0o644)}, nil)
	for at := 1; ; at++ {
		dir := t.TempDir()
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		h := New(Config{Dir: dir, BootID: "boot-1", Log: log, Supervisor: process.NewSupervisor(filepath.Join(dir, "run"),
			log)})
		if err := h.open(); err != nil {
			t.Fatal(err)
		}
		st, _, err := h.apply(t.Context(), state{}, order{config: a})
		if err != nil {
			t.Fatal(err)
		}
		steps := 0
		h.tree.step = func(what string) error {
			if steps++; steps == at {
				return fmt.Errorf("no space left at %s", what)
			}
			return nil
		}
		_, _, err = h.apply(t.Context(), st, order{config: b})
		h.tree.root.Close()
		if err == nil {
			if at < 4 {
				t.Errorf("only %d steps failed", at-1)
			}
			return
		}
		again := New(Config{Dir: dir, BootID: "boot-1", Log: log, Supervisor: h.cfg.Supervisor})
		if err := again.open(); err != nil {
			t.Fatal(err)
		}
		if why := summary(again.tree.drift(again.wanted.entries, again.seen)); why != "" || again.st.Name != "a" {
			t.Errorf("step %d failed: %s: %s", at, again.st.Name, why)
		}
		if _, err := os.Stat(filepath.Join(dir, rootDir, "only/b")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("step %d failed: a directory that was made stays: %v", at, err)
		}
		again.tree.root.Close()
	}
}

func TestVariablesInArgumentsAreReplacedOnce(t *testing.T) {
	u := unit{
		name: "a.service", env: []string{"A=${B}", "B=x", "A=${B}${A}"},
		start: []command{{args: []string{"/bin/echo", "${A}", "${C}"}}},
	}
	for range 20 { // else it hangs on the order in which variables are taken, and another order is another process
		if got := fmt.Sprint((&processes{}).args(u, u.start[0], u.env)); got != "[${B}${A} ${C}]" {
			t.Fatalf("arguments %s", got)
		}
	}
}

func TestAUnitThatDoesNotStartAtBootHoldsUpNoOther(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/opt/first", "#!/bin/sh\nexec sleep 1111\n", 0o755)}, []any{
		service("first.service", "[Service]\nExecStart=/opt/first\n"),
		service("second.service", "[Service]\nExecStart=/bin/sleep 2222\n"),
	}), true, false)
	m.awaitState(done, "a")
	_ = m.stop()
	if err := process.KillAll(t.Context(), filepath.Join(m.dir, "run")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.path("opt/first")); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-2")
	m.awaitRunning("2222")
	m.awaitState(degraded, "a")
}

// TestAUnitThatIsUpAtLastIsNoTrouble has a unit fail at its first start after a boot, as one does that needs another,
// and run from then on.
func TestAUnitThatIsUpAtLastIsNoTrouble(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	flag := filepath.Join(m.dir, "flag")
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(config(t, "a", nil, []any{service("late.service", "[Service]\nRestart=always\n"+
		"ExecStart=/bin/sh -c 'test -e "+flag+" || { touch "+flag+"; exit 1; }; exec sleep 4444'\n")}), true, false)
	m.awaitState(done, "a")
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-2")
	if r := m.awaitState(degraded, "a"); !strings.Contains(r.GetReason(), `unit "late.service" ended at once`) {
		t.Errorf("reason %q", r.GetReason())
	}
	m.awaitState(done, "a")
}

func TestWhatCannotBeTakenBackIsSaidAndTheAgentGoesOn(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/etc/one", "1", 0o644)}, nil), true, false)
	m.awaitState(done, "a")
	_ = m.stop()
	j := journal{Change: "half-made", Config: "b", Undo: []saved{{Path: "etc/one", Kind: file, Mode: 0o644, Sum: "lost"}}}
	if err := save(m.dir, journalFile, j); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-1")
	r := m.awaitState(degraded, "a")
	if !strings.Contains(r.GetReason(), `take back "/etc/one"`) {
		t.Errorf("reason %q", r.GetReason())
	}
	select {
	case err := <-m.ended:
		t.Errorf("the agent's part ended: %v", err)
		m.ended <- err
	default:
	}
}

// TestAUnitOfAnEarlierVersionRunsOnUntilItChanges has a machine whose configuration was accepted by a version that
// ignored what is refused now.
func TestAUnitOfAnEarlierVersionRunsOnUntilItChanges(t *testing.T) {
	m := newMachine(t)
	sleeper := func(seconds string) any {
		return service("sleeper.service", "[Service]\nUser=chrony\nExecStart=/bin/sleep "+seconds+"\n")
	}
	m.boot("boot-1")
	a := config(t, "a", nil, []any{service("sleeper.service", "[Service]\nExecStart=/bin/sleep 5551\n")})
	m.cluster.send(a, true, false)
	m.awaitState(done, "a")
	_ = m.stop()
	raw, err := protojson.Marshal(config(t, "a", nil, []any{sleeper("5551")}))
	if err != nil {
		t.Fatal(err)
	}
	var st state
	if _, err := load(m.dir, currentFile, &st); err != nil {
		t.Fatal(err)
	}
	st.Config = raw
	if err := save(m.dir, currentFile, st); err != nil {
		t.Fatal(err)
	}
	text := "[Service]\nUser=chrony\nExecStart=/bin/sleep 5551\n"
	m.place("etc/systemd/system/sleeper.service", text)
	if err := os.Chmod(m.path("etc/systemd/system/sleeper.service"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(nil, false, false)
	m.boot("boot-1")
	m.awaitState(done, "a")
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "b", 0o644)}, []any{sleeper("5551")}), true, false)
	m.awaitState(done, "b")
	m.awaitRunning("5551")
	m.cluster.send(config(t, "c", nil, []any{sleeper("5552")}), true, false)
	want := `spec.config.systemd.units[0].contents: [Service] User=: "chrony" is not put in force: ` +
		"units run as root of their machine"
	if r := m.awaitState(unreconcilable, "b"); r.GetReason() != want {
		t.Errorf("reason %q, want %q", r.GetReason(), want)
	}
	if m.running("5552") || !m.running("5551") {
		t.Error("the refused unit runs, or the former one does not")
	}
}
