package hostconfig

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

// reads is a service that writes down what it has read of /etc/x, when it starts and when it is reloaded, and that ends
// with "bad" in it.
const reads = `[Service]
ExecStart=/bin/sh -c 'if grep -q bad ${WINDLASS_ROOT}/etc/x; then echo it is bad; exit 1; fi; ` +
	`cp ${WINDLASS_ROOT}/etc/x ${WINDLASS_ROOT}/etc/seen; exec sleep 1011'
ExecReload=/bin/sh -c 'kill -0 ${MAINPID} && cp ${WINDLASS_ROOT}/etc/x ${WINDLASS_ROOT}/etc/seen'
Restart=always
`

func (m *machine) awaitSeen(want string) {
	m.t.Helper()
	for end := time.Now().Add(30 * time.Second); m.content("etc/seen") != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("the service has read %q, want %q", m.content("etc/seen"), want)
		}
	}
}

func (m *machine) pid() int {
	s, _ := m.host.units.manager.(*processes).supervisor.Lookup(processName("reader.service"))
	return s.PID
}

// reading is a configuration with a service that reads a file of it.
func reading(t *testing.T, name, content string) *configv1.MachineConfig {
	return config(t, name, []any{fileAt("/etc/x", content, 0o644)}, []any{service("reader.service", reads)})
}

func TestServicesSeeAChangeOfWhatTheyRead(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(reading(t, "one", "1"), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	first := m.pid()
	m.cluster.send(reading(t, "two", "2"), true, false)
	m.awaitState(done, "two")
	if seen := m.content("etc/seen"); seen != "1" || m.pid() != first {
		t.Errorf("without an action the service has read %q", seen)
	}
	m.cluster.send(reading(t, "three", "3"), true, false, &configv1.ServiceAction{Name: "reader.service", Reload: true})
	m.awaitState(done, "three")
	if seen := m.content("etc/seen"); seen != "3" || m.pid() != first {
		t.Errorf("after a reload process %d has read %q, it was %d", m.pid(), seen, first)
	}
	m.cluster.send(reading(t, "four", "4"), true, false, &configv1.ServiceAction{Name: "reader.service"})
	m.awaitState(done, "four")
	m.awaitSeen("4")
	if m.pid() == first {
		t.Error("the service was not restarted")
	}
}

func TestAServiceThatDoesNotBearAChangeTakesItBack(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(reading(t, "good", "1"), true, false)
	m.awaitState(done, "good")
	m.awaitSeen("1")
	m.cluster.send(reading(t, "bad", "bad"), true, false, &configv1.ServiceAction{Name: "reader.service"})
	r := m.awaitState(degraded, "good")
	if !strings.Contains(r.GetReason(), `unit "reader.service" ended at once: exit code 1: it is bad`) {
		t.Errorf("reason %q", r.GetReason())
	}
	if x := m.content("etc/x"); x != "1" {
		t.Errorf("the file is %q", x)
	}
	m.awaitRunning("1011")
}

// TestServicesSeeThatAChangeWasTakenBack leaves what a kill leaves right before a change is recorded: new files, and a
// service that has read them. The next start takes the files back, and has the service see it.
func TestServicesSeeThatAChangeWasTakenBack(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(reading(t, "one", "1"), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.host.tree.step = func(what string) error {
		if what == "record" || strings.HasPrefix(what, "restore") {
			return errors.New("killed")
		}
		return nil
	}
	m.cluster.send(reading(t, "two", "2"), true, false, &configv1.ServiceAction{Name: "reader.service"})
	m.awaitState(degraded, "one")
	m.awaitSeen("2")
	m.cluster.send(reading(t, "one", "1"), false, false)
	m.boot("boot-1")
	m.awaitState(done, "one")
	m.awaitSeen("1")
	if !m.finished() {
		t.Error("the journal is there")
	}
}

// sendRepairs orders a configuration that the machine has, with what is put back of it.
func (c *cluster) sendRepairs(cfg *configv1.MachineConfig, repairs ...*configv1.PathRepair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = &configv1.FollowConfigResponse{MachineConfig: cfg, Apply: true, Repairs: repairs}
	close(c.changed)
	c.changed = make(chan struct{})
}

func TestWhatOthersChangeIsPutBackWhereAllowed(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := config(t, "one", []any{fileAt("/etc/x", "1", 0o644), fileAt("/etc/boot", "1", 0o644)},
		[]any{service("reader.service", reads)})
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	reload := &configv1.PathRepair{
		Paths: []string{"/etc/x"}, Services: []*configv1.ServiceAction{{Name: "reader.service", Reload: true}},
	}
	m.cluster.sendRepairs(one, reload)
	m.place("etc/x", "2")
	m.place("etc/seen", "2") // as if the service had read it
	m.await("it is reported and put back", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetReason() == `content mismatch for file "/etc/x"; it is put back`
	})
	m.awaitState(done, "one")
	if x, seen := m.content("etc/x"), m.content("etc/seen"); x != "1" || seen != "1" {
		t.Errorf("the file is %q, and the service has read %q", x, seen)
	}
	// A mode, and a file that is gone.
	if err := os.Chmod(m.path("etc/x"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.await("the mode is put back", func(*configv1.ReportConfigRequest) bool {
		info, err := os.Stat(m.path("etc/x"))
		return err == nil && info.Mode().Perm() == 0o644 && m.finished()
	})
	if err := os.Remove(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	m.await("the file is put back", func(*configv1.ReportConfigRequest) bool {
		return m.content("etc/x") == "1" &&
			m.finished()
	})
	m.awaitState(done, "one")
	// What needs more is reported alone, and holds up no other.
	m.place("etc/boot", "2")
	m.await("it is reported", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetReason() == `content mismatch for file "/etc/boot"`
	})
	m.place("etc/x", "2")
	m.await("the other is put back", func(r *configv1.ReportConfigRequest) bool {
		return m.content("etc/x") == "1" && r.GetReason() == `content mismatch for file "/etc/boot"`
	})
	if boot := m.content("etc/boot"); boot != "2" {
		t.Errorf("what needs a reboot is %q", boot)
	}
	// One that was killed in the middle goes on at the next start.
	m.place("etc/boot", "1")
	m.awaitState(done, "one")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.place("etc/x", "2")
	m.place("etc/seen", "2")
	if err := save(m.dir, owedFile,
		debts{"boot-1", []debt{{Name: "reader.service", Reload: true, Seen: true}}}); err != nil {
		t.Fatal(err)
	}
	m.cluster.sendRepairs(one, reload)
	m.boot("boot-1")
	m.awaitState(done, "one")
	if x, seen := m.content("etc/x"), m.content("etc/seen"); x != "1" || seen != "1" || !m.finished() {
		t.Errorf("after a kill the file is %q, and the service has read %q", x, seen)
	}
}

// finished reports whether no change is under way.
func (m *machine) finished() bool {
	_, journal := os.Stat(m.dir + "/" + journalFile)
	_, owed := os.Stat(m.dir + "/" + owedFile)
	return errors.Is(journal, os.ErrNotExist) && errors.Is(owed, os.ErrNotExist)
}
