package hostconfig

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/process"
	"golang.org/x/sys/unix"
)

// newHost returns a machine whose files are those of a host: a directory that was there before.
func newHost(t *testing.T, allowed ...string) *machine {
	t.Helper()
	m := newMachine(t)
	if err := os.MkdirAll(m.path("etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.adjust = func(c *Config) {
		c.Root, c.Files = filepath.Join(m.dir, rootDir), &machineconfig.Files{Allowed: allowed}
	}
	return m
}

func overwriting(file map[string]any) map[string]any {
	file["overwrite"] = true
	return file
}

func TestAHostKeepsItsFiles(t *testing.T) {
	m := newHost(t, "/srv/app")
	m.place("etc/chrony.conf", "of the host")
	m.place("etc/same", "the same")
	if err := os.Chmod(m.path("etc/same"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.place("usr/lib/systemd/system/ssh.service", "[Service]\n")
	if err := os.MkdirAll(m.path("etc/pam.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pam.d", m.path("etc/by-link")); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-1")
	for _, tc := range []struct {
		name string
		file map[string]any
		want string
	}{
		{"foreign", fileAt("/etc/chrony.conf", "new", 0o644), `the host has another file at "/etc/chrony.conf"`},
		{"users", overwriting(fileAt("/etc/passwd", "root::0:0::/:", 0o644)), "not changed by configurations"},
		{
			"link", fileAt("/etc/by-link/login", "x", 0o644),
			`"/etc/by-link/login", which is "/etc/pam.d/login", is not changed`,
		},
		{"outside", fileAt("/srv/other", "x", 0o644), "not below /etc, /opt or /usr/local"},
		{"parent", overwriting(fileAt("/etc/ssh", "x", 0o644)), "must stay a directory"},
		{"own", fileAt("/etc/systemd/system/windlass.service.d/x.conf", "x", 0o644), "Windlass' own"},
	} {
		m.cluster.send(config(t, tc.name, []any{tc.file, fileAt("/etc/other", "x", 0o644)}, nil), true, false)
		r := m.await(tc.name, func(r *configv1.ReportConfigRequest) bool {
			return r.GetState() == unreconcilable && r.GetDesiredConfig() == tc.name
		})
		if !strings.Contains(r.GetReason(), tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, r.GetReason(), tc.want)
		}
		if got := m.content("etc/other"); got != "(none)" {
			t.Errorf("%s: another file of it is there: %q", tc.name, got)
		}
	}
	other := config(t, "system", nil, nil)
	other.Spec.KernelArguments = []string{"quiet"}
	m.cluster.send(other, true, false)
	m.await("another operating system", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == unreconcilable &&
			strings.Contains(r.GetReason(), "the operating system of a host is not changed")
	})
	m.cluster.send(config(t, "hides", nil, []any{service("ssh.service", "[Service]\nExecStart=/bin/sleep 1031\n")}), true,
		false)
	m.await("a unit that hides one of the host", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == unreconcilable && strings.Contains(r.GetReason(), "would hide the unit of the host")
	})
	m.cluster.send(config(t, "a", []any{
		overwriting(fileAt("/etc/chrony.conf", "new", 0o644)), fileAt("/etc/same", "the same", 0o644),
		fileAt("/srv/app/x", "allowed", 0o644), fileAt("/opt/deep/x", "new", 0o644),
	}, nil), true, false)
	m.awaitState(done, "a")
	if got := m.content("etc/chrony.conf"); got != "new" {
		t.Errorf("chrony.conf is %q", got)
	}
	m.cluster.send(config(t, "b", []any{fileAt("/etc/chrony.conf", "newer", 0o644)}, nil), true, false)
	m.awaitState(done, "b") // it is Windlass' now
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.restore()
	for name, want := range map[string]string{
		"etc/chrony.conf": "of the host", "etc/same": "the same", "srv/app/x": "(none)", "opt/deep/x": "(none)",
	} {
		if got := m.content(name); got != want {
			t.Errorf("after the host has left, %s is %q, want %q", name, got, want)
		}
	}
}

// restore has a host leave.
func (m *machine) restore() {
	m.t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	supervisor := process.NewSupervisor(filepath.Join(m.dir, "run"), log)
	cfg := Config{Dir: m.dir, Supervisor: supervisor, Log: log}
	m.adjust(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- supervisor.Run(ctx) }()
	<-supervisor.Active()
	for range 2 { // it may be repeated
		if err := Restore(ctx, cfg); err != nil {
			m.t.Error(err)
		}
	}
	cancel()
	if err := <-supervised; err != nil {
		m.t.Error(err)
	}
}

// A path that cannot be written, such as one that is mounted, ends its own change and no other.
func TestAPathThatCannotBeWrittenHoldsUpNoOtherConfiguration(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	m := newHost(t)
	m.place("etc/hosts2", "of the host")
	m.place("etc/source", "mounted")
	if err := unix.Mount(m.path("etc/source"), m.path("etc/hosts2"), "", unix.MS_BIND, ""); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(m.path("etc/hosts2"), unix.MNT_DETACH) })
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{overwriting(fileAt("/etc/hosts2", "new", 0o644))}, nil), true, false)
	m.await("the failure", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == degraded })
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "new", 0o644)}, nil), true, false)
	m.awaitState(done, "b")
}

func TestAHostThatStopsToChangeSaysWhatIsLeft(t *testing.T) {
	m := newHost(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/etc/x", "1", 0o644), fileAt("/etc/y", "1", 0o644)}, nil), true, false)
	m.awaitState(done, "a")
	adjust := m.adjust
	m.adjust = func(c *Config) { adjust(c); c.Observe = true }
	m.boot("boot-1")
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "1", 0o644)}, nil), true, false)
	r := m.await("what is left", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == unreconcilable })
	if want := `"/etc/y" is not as it was before Windlass`; !strings.Contains(r.GetReason(), want) {
		t.Errorf("reason %q, want %q", r.GetReason(), want)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.restore()
	for _, name := range []string{"etc/x", "etc/y"} {
		if got := m.content(name); got != "(none)" {
			t.Errorf("after the host has left, %s is %q", name, got)
		}
	}
}

func TestAHostThatObservesIsNotChanged(t *testing.T) {
	m := newHost(t)
	m.place("etc/motd", "of the host")
	adjust := m.adjust
	m.adjust = func(c *Config) { adjust(c); c.Observe = true }
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{overwriting(fileAt("/etc/motd", "new", 0o600))}, nil), true, false)
	r := m.await("a difference", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == unreconcilable })
	if want := `only observes: content mismatch for file "/etc/motd"`; !strings.Contains(r.GetReason(), want) {
		t.Errorf("reason %q, want %q", r.GetReason(), want)
	}
	if got := m.content("etc/motd"); got != "of the host" {
		t.Errorf("motd is %q", got)
	}
	m.cluster.send(config(t, "b", []any{fileAt("/etc/motd", "of the host", 0o600)}, nil), true, false)
	m.awaitState(done, "b") // it is so
	m.place("etc/motd", "of a user")
	m.awaitState(degraded, "b")
	if got := m.content("etc/motd"); got != "of a user" {
		t.Errorf("motd is %q", got)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.restore()
	if got := m.content("etc/motd"); got != "of a user" {
		t.Errorf("after the host has left, motd is %q", got)
	}
}

// A configuration that keeps the machine from its cluster would keep it from every other one.
func TestAConfigurationThatCutsTheMachineOffIsTakenBack(t *testing.T) {
	m := newHost(t)
	adjust := m.adjust
	patience := 200 * time.Millisecond
	m.adjust = func(c *Config) { adjust(c); c.Patience = patience }
	m.boot("boot-1")
	m.cluster.send(config(t, "a", []any{fileAt("/etc/x", "good", 0o644)}, nil), true, false)
	m.awaitState(done, "a")
	m.awaitConfirmed()
	m.setDeaf(true)
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "bad", 0o644)}, nil), true, true)
	m.awaitRestart()
	if got := m.content("etc/x"); got != "bad" {
		t.Fatalf("before the restart the file is %q", got)
	}
	m.boot("boot-2")
	m.awaitRestart()
	if got := m.content("etc/x"); got != "good" {
		t.Fatalf("the file is %q, not what it was", got)
	}
	m.setDeaf(false)
	m.boot("boot-3")
	r := m.await("what was taken back", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetCurrentConfig() == "a"
	})
	if r.GetStagedConfig() != "" { // the host would be emptied for it
		t.Errorf("what was taken back counts as admitted: %v", r)
	}
	if !strings.Contains(r.GetReason(), "b was taken back") ||
		!strings.Contains(r.GetReason(), "received no report within") {
		t.Errorf("reason %q", r.GetReason())
	}
	m.boot("boot-4") // a restart that a user asks for lets it be tried again
	patience = time.Hour
	m.cluster.send(config(t, "b", []any{fileAt("/etc/x", "bad", 0o644)}, nil), true, false)
	m.awaitState(done, "b")
	m.awaitConfirmed()
}

func (m *machine) setDeaf(deaf bool) {
	m.cluster.mu.Lock()
	defer m.cluster.mu.Unlock()
	m.cluster.deaf = deaf
}

// awaitConfirmed waits until the present configuration is on trial no more.
func (m *machine) awaitConfirmed() {
	m.t.Helper()
	for range 3000 {
		var st state
		if _, err := load(m.dir, currentFile, &st); err == nil && st.Name != "" && st.Trial == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Fatal("the configuration is still on trial")
}

func TestAFirstConfigurationIsTakenBackToNone(t *testing.T) {
	m := newHost(t)
	m.place("etc/x", "of the host")
	adjust := m.adjust
	m.adjust = func(c *Config) { adjust(c); c.Patience = 200 * time.Millisecond }
	m.boot("boot-1")
	m.setDeaf(true)
	m.cluster.send(config(t, "a", []any{overwriting(fileAt("/etc/x", "bad", 0o644))}, nil), true, false)
	m.awaitRestart()
	if got := m.content("etc/x"); got != "of the host" {
		t.Fatalf("the file is %q, not what the host had", got)
	}
	m.setDeaf(false)
	m.boot("boot-2")
	r := m.await("what was taken back", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == degraded })
	if r.GetCurrentConfig() != "" || !strings.Contains(r.GetReason(), "a was taken back") {
		t.Errorf("report %v", r)
	}
}
