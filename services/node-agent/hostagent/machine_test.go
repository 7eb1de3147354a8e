package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/hostagent/plan"
	"github.com/windlass-dev/windlass/services/node-agent/machine"
)

// TestMain makes the test binary the executable of the node-agent: it starts another process as an agent starts a
// member of etcd, and lives until it is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == "serve" && os.Args[2] == "node-agent" {
		dir := os.Args[4]
		if _, err := machine.LoadBootstrap(dir); err != nil {
			os.Exit(1)
		}
		s := process.NewSupervisor(filepath.Join(dir, "run"), slog.New(slog.DiscardHandler))
		if err := s.Ensure(process.Spec{Name: "member", Path: "/bin/sleep", Args: []string{"3600"}}); err != nil {
			os.Exit(1)
		}
		_ = s.Run(context.Background())
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string) (*hostMachine, func()) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := process.NewSupervisor(filepath.Join(dir, "run"), log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Active()
	m := &hostMachine{Config{
		Dir: dir, Address: "192.0.2.1", Executable: exe, Supervisor: s, Log: log,
		EndContainers: func(context.Context, string) error { return nil },
	}}
	return m, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func order(typ hostv1.HostOrder_Type, uid string) *hostv1.HostOrder {
	return &hostv1.HostOrder{
		Id: "o-" + uid, Type: typ, ProviderId: "inventory://main/h1/" + uid,
		MachineRef: &metav1.ObjectReference{Name: "m-" + uid, Uid: uid},
		Bootstrap:  &hostv1.HostBootstrap{Endpoints: []string{"192.0.2.1:6443"}, Token: "t.sha256:x", Role: "master"},
	}
}

// running returns the processes of a run directory.
func running(t *testing.T, dir string) []process.Found {
	t.Helper()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	found, err := process.Running(dir)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still waiting for %s", what)
		}
	}
}

func follow(t *testing.T, m *hostMachine, o *hostv1.HostOrder) {
	t.Helper()
	if err := m.follow(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func uid(t *testing.T, m *hostMachine) string {
	t.Helper()
	out, err := m.uid()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAMachineIsStartedTakenOverAndWiped(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	follow(t, m, nil)
	if got := running(t, filepath.Join(dir, "run")); len(got) > 0 || uid(t, m) != "" {
		t.Fatalf("without an order machine %q runs: %v", uid(t, m), got)
	}
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u1"))
	member := filepath.Join(dir, "node", "run")
	await(t, "the member", func() bool { return len(running(t, member)) == 1 })
	b, err := machine.LoadBootstrap(filepath.Join(dir, "node"))
	if err != nil || b.NodeName != "m-u1" || b.Address != "192.0.2.1" || b.Role != "master" ||
		b.ProviderID != "inventory://main/h1/u1" {
		t.Errorf("bootstrap = %+v, %v", b, err)
	}
	agent := running(t, filepath.Join(dir, "run"))[0].PID
	stop()
	m, stop = start(t, dir) // what ran goes on
	defer stop()
	follow(t, m, nil)
	if got := running(t, filepath.Join(dir, "run")); len(got) != 1 || got[0].PID != agent {
		t.Errorf("%v run after a start, want %d", got, agent)
	}
	if err := m.follow(t.Context(), order(hostv1.HostOrder_TYPE_CLAIM, "u2")); err == nil || uid(t, m) != "u1" {
		t.Errorf("another machine claims the host: %v; it has %q", err, uid(t, m))
	}
	before := running(t, member)
	follow(t, m, order(hostv1.HostOrder_TYPE_WIPE, "u1"))
	if got := running(t, filepath.Join(dir, "run")); len(got) > 0 {
		t.Errorf("%v run after the wipe", got)
	}
	for _, p := range before {
		// That of a process that has ended and was not waited for is empty.
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); err == nil && len(line) > 0 {
			t.Errorf("process %d of the machine runs after the wipe", p.PID)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "node")); err == nil && len(left) > 0 {
		t.Errorf("after the wipe there are %v", left)
	}
	follow(t, m, order(hostv1.HostOrder_TYPE_WIPE, "u1"))
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u2"))
	if got := uid(t, m); got != "u2" {
		t.Errorf("after the next claim the host has %q", got)
	}
	await(t, "the member of the next machine", func() bool { return len(running(t, member)) == 1 })
	follow(t, m, order(hostv1.HostOrder_TYPE_FENCE, "u1"))
	if got := uid(t, m); got != "" {
		t.Errorf("a fenced host has %q", got)
	}
}

// A wipe is cut off by a loss of power before it removed anything, and the host starts again.
func TestAWipeGoesOnAfterAnInterruption(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	defer stop()
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u1"))
	await(t, "the member", func() bool { return len(running(t, filepath.Join(dir, "node", "run"))) == 1 })
	if err := m.write(plan.Record{State: plan.Wiping, UID: "u1", Name: "m-u1"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := uid(t, m); got != "u1" {
		t.Errorf("until it is wiped the host has %q, want u1", got)
	}
	follow(t, m, nil)
	if got := running(t, filepath.Join(dir, "run")); len(got) > 0 || uid(t, m) != "" {
		t.Errorf("machine %q is left: %v", uid(t, m), got)
	}
}

// A claim is cut off before the machine is written down: what is there is no machine's.
func TestRemainsWithoutARecordAreRemoved(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	defer stop()
	if err := os.MkdirAll(filepath.Join(dir, "node", "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(dir, "node", "pki", "agent.key")
	if err := os.WriteFile(stray, []byte("of another machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u1"))
	if _, err := os.Stat(stray); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key of another machine is there: %v", err)
	}
	follow(t, m, order(hostv1.HostOrder_TYPE_WIPE, "u1"))
}

func TestADamagedRecordIsReported(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	defer stop()
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u1"))
	t.Cleanup(func() { _ = process.KillAll(context.Background(), filepath.Join(dir, "run")) })
	if err := os.WriteFile(filepath.Join(dir, "node", recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.follow(t.Context(), order(hostv1.HostOrder_TYPE_CLAIM, "u2")); err == nil {
		t.Error("a claim succeeds where it is not known which machine the host has")
	}
	if _, err := m.uid(); err == nil {
		t.Error("the host is said to have no machine")
	}
}

// A host was confirmed to be off and removed, and comes back.
func TestTheMachineOfARemovedHostIsEnded(t *testing.T) {
	for _, role := range []string{"worker", "master"} {
		dir := t.TempDir()
		m, stop := start(t, dir)
		o := order(hostv1.HostOrder_TYPE_CLAIM, "u1")
		o.Bootstrap.Role = role
		follow(t, m, o)
		run := filepath.Join(dir, "node", "run")
		await(t, "the member", func() bool { return len(running(t, run)) == 1 })
		halted, err := m.halt(t.Context())
		if err != nil || halted != (role == "worker") {
			t.Errorf("%s: halted %v, %v", role, halted, err)
		}
		if got := running(t, run); (len(got) == 0) != halted {
			t.Errorf("%s: %v run", role, got)
		}
		if uid(t, m) != "u1" {
			t.Errorf("%s: the files are gone", role)
		}
		follow(t, m, order(hostv1.HostOrder_TYPE_WIPE, "u1"))
		stop()
	}
}

// A file that cannot be removed is no reason to say that the machine may run.
func TestAWipeThatLeavesFilesSaysThatTheMachineIsStopped(t *testing.T) {
	dir := t.TempDir()
	m, stop := start(t, dir)
	defer stop()
	follow(t, m, order(hostv1.HostOrder_TYPE_CLAIM, "u1"))
	await(t, "the member", func() bool { return len(running(t, filepath.Join(dir, "node", "run"))) == 1 })
	stuck := filepath.Join(dir, "node", "stuck")
	if err := os.Mkdir(stuck, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", stuck, "tmpfs", 0, ""); err != nil {
		t.Skip("a mount is needed: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(stuck, 0) })
	err := m.follow(t.Context(), order(hostv1.HostOrder_TYPE_WIPE, "u1"))
	if !errors.Is(err, errStopped) {
		t.Errorf("a wipe that left a directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node", "bootstrap.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the machine joined with is there: %v", err)
	}
	if err := unix.Unmount(stuck, 0); err != nil {
		t.Fatal(err)
	}
	follow(t, m, nil)
	if uid(t, m) != "" {
		t.Error("the wipe did not go on")
	}
}
