package hostconfig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/services/node-agent/hostos"
	"google.golang.org/protobuf/encoding/protojson"
)

// osRef is the image of an operating system whose digest is 64 times c.
func osRef(c string) string { return "example.com/os@sha256:" + strings.Repeat(c, 64) }

// withSystems gives a machine operating systems: the one of an image has the program /usr/bin/hello, which says its
// name. missing has no image be found.
func withSystems(m *machine) (missing *atomic.Bool) {
	missing = &atomic.Bool{}
	m.system = func(boot string) hostos.Driver {
		return hostos.Local(filepath.Join(m.dir, "os"), boot, func(_ context.Context, image, dir string) error {
			if missing.Load() {
				return errors.New("no registry has " + image)
			}
			if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
				return err
			}
			program := "#!/bin/sh\nexec /bin/sh -c 'while :; do sleep 1; done' " + image + "\n"
			return os.WriteFile(filepath.Join(dir, "usr/bin/hello"), []byte(program), 0o755)
		})
	}
	return missing
}

func systemConfig(t *testing.T, name, image string) *configv1.MachineConfig {
	t.Helper()
	var units []any
	if image != "" {
		units = []any{service("hello.service", "[Service]\nExecStart=/usr/bin/hello\n")}
	}
	c := config(t, name, nil, units)
	c.Spec.OsImageUrl = image
	return c
}

// restart awaits the end of the agent for a restart, and begins a boot.
func (m *machine) restart(boot string) {
	m.t.Helper()
	m.awaitRestart()
	m.boot(boot)
}

func TestAnotherOperatingSystemRunsAfterTheRestart(t *testing.T) {
	m := newMachine(t)
	withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	b := systemConfig(t, "b", osRef("b"))
	m.cluster.send(b, false, true)
	m.await("the system to be ready", func(r *configv1.ReportConfigRequest) bool {
		return r.GetStagedConfig() == "b" && r.GetState() == working && r.GetCurrentConfig() == "a"
	})
	if _, err := os.Readlink(filepath.Join(m.dir, "os/boot")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the next boot would run it before it is ordered: %v", err)
	}
	m.cluster.send(b, true, true) // its unit is in the system that does not run yet
	m.restart("boot-2")
	m.awaitState(done, "b")
	m.awaitRunning(osRef("b"))

	c := systemConfig(t, "c", osRef("c"))
	m.cluster.send(c, true, true)
	m.restart("boot-3")
	m.awaitState(done, "c")
	m.awaitRunning(osRef("c"))

	missing := withSystems(m) // the way back needs no image
	missing.Store(true)
	m.boot("boot-3")
	m.awaitState(done, "c")
	m.cluster.send(b, true, true)
	m.restart("boot-4")
	m.awaitState(done, "b")
	m.awaitRunning(osRef("b"))
	m.cluster.send(systemConfig(t, "d", ""), true, true)
	m.restart("boot-5")
	m.awaitState(done, "d")
	if m.running("example.com/os") {
		t.Error("a program of an operating system runs that is not there any more")
	}
}

func TestAnOperatingSystemThatDoesNotComeDisturbsNothing(t *testing.T) {
	m := newMachine(t)
	missing := withSystems(m)
	missing.Store(true)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.send(systemConfig(t, "b", osRef("b")), false, true)
	r := m.awaitState(degraded, "a")
	if r.GetStagedConfig() != "" || r.GetDesiredConfig() != "b" || !strings.Contains(r.GetReason(), "no registry has") {
		t.Errorf("report %v", r)
	}
	m.cluster.send(config(t, "c", []any{fileAt("/etc/c", "c", 0o644)}, nil), true, false)
	m.awaitState(done, "c")
}

func TestAMachineWithoutADriverKeepsItsOperatingSystem(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.send(systemConfig(t, "b", osRef("b")), true, true)
	if r := m.awaitState(unreconcilable, "a"); !strings.Contains(r.GetReason(), "no driver") {
		t.Errorf("report %v", r)
	}
}

// Power is lost after the configuration was recorded and before the boot link was changed: the boot that follows runs
// the former system, and is ended, too.
func TestABootOfTheFormerSystemIsEnded(t *testing.T) {
	m := newMachine(t)
	withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.send(systemConfig(t, "b", osRef("b")), true, true)
	m.awaitRestart()
	if err := os.Remove(filepath.Join(m.dir, "os/boot")); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-2")
	m.awaitRestart()
	m.cluster.mu.Lock()
	for _, r := range m.cluster.reports {
		if r.GetState() == done {
			t.Errorf("it is said to be done: %v", r)
		}
	}
	m.cluster.mu.Unlock()
	m.boot("boot-3")
	m.awaitState(done, "b")
	m.awaitRunning(osRef("b"))

	// What the next boot runs is right, and this one runs another system all the same: that is said, and no boot is ended
	// for it again and again.
	if err := os.WriteFile(filepath.Join(m.dir, "os/booted.json"), []byte(`{"boot": "boot-4"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-4")
	if r := m.awaitState(degraded, "b"); !strings.Contains(r.GetReason(), "the machine runs") {
		t.Errorf("report %v", r)
	}
}

// What is ready is said no longer before another system may replace it.
func TestAnOperatingSystemThatIsReplacedIsNotReady(t *testing.T) {
	m := newMachine(t)
	missing := withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	b := systemConfig(t, "b", osRef("b"))
	m.cluster.send(b, false, true)
	m.await("the system to be ready", func(r *configv1.ReportConfigRequest) bool { return r.GetStagedConfig() == "b" })
	missing.Store(true)
	m.cluster.send(systemConfig(t, "c", osRef("c")), false, true)
	if r := m.awaitState(degraded, "a"); r.GetStagedConfig() != "" {
		t.Errorf("report %v", r)
	}
	m.cluster.send(b, false, true) // its image is not there any more, and its system is
	m.await("the system to be ready again", func(r *configv1.ReportConfigRequest) bool {
		return r.GetStagedConfig() == "b"
	})
}

// An agent of an earlier release does not know which deployment belongs to the configuration, and forgets it.
func TestAForgottenDeploymentRestartsNothing(t *testing.T) {
	m := newMachine(t)
	withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.send(systemConfig(t, "b", osRef("b")), true, true)
	m.restart("boot-2")
	m.awaitState(done, "b")
	_ = m.stop()
	var st state
	if _, err := load(m.dir, currentFile, &st); err != nil || st.Deployment == "" {
		t.Fatalf("state %+v, %v", st, err)
	}
	st.Systems, st.Deployment = false, ""
	if err := save(m.dir, currentFile, st); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-3")
	m.awaitState(done, "b")
	m.awaitRunning(osRef("b"))
	_ = m.stop()
	if _, err := load(m.dir, currentFile, &st); err != nil || st.Deployment == "" {
		t.Errorf("state %+v, %v", st, err)
	}
}

// A system that was damaged is made again, and the machine says that it has to be restarted.
func TestADamagedOperatingSystemIsMadeAgain(t *testing.T) {
	m := newMachine(t)
	withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	m.cluster.send(systemConfig(t, "b", osRef("b")), true, true)
	m.restart("boot-2")
	m.awaitState(done, "b")
	if err := os.RemoveAll(filepath.Join(m.dir, "os/a")); err != nil {
		t.Fatal(err)
	}
	m.await("the damage to be said", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == degraded })
	m.boot("boot-3")
	m.awaitState(done, "b")
	m.awaitRunning(osRef("b"))
}

// What an agent of an earlier release ignored stays without effect until it changes.
func TestASystemThatWasIgnoredComesIntoForceWhenItChanges(t *testing.T) {
	m := newMachine(t)
	withSystems(m)
	m.boot("boot-1")
	m.cluster.send(config(t, "a", nil, nil), true, false)
	m.awaitState(done, "a")
	_ = m.stop()
	ignored := config(t, "a", nil, nil)
	ignored.Spec.OsImageUrl = osRef("a")
	var st state
	if _, err := load(m.dir, currentFile, &st); err != nil {
		t.Fatal(err)
	}
	raw, err := protojson.Marshal(ignored)
	if err != nil {
		t.Fatal(err)
	}
	st.Config = raw
	if err := save(m.dir, currentFile, st); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(ignored, true, false)
	m.boot("boot-2")
	m.awaitState(done, "a")
	b := config(t, "b", []any{fileAt("/etc/b", "b", 0o644)}, nil)
	b.Spec.OsImageUrl = osRef("a")
	m.cluster.send(b, true, false)
	m.awaitState(done, "b") // without a restart
	if made, _ := filepath.Glob(filepath.Join(m.dir, "os/*")); len(made) > 0 {
		t.Errorf("operating systems were made: %v", made)
	}
	m.cluster.send(systemConfig(t, "c", osRef("c")), true, true)
	m.restart("boot-3")
	m.awaitState(done, "c")
	m.awaitRunning(osRef("c"))
}
