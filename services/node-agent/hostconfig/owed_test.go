package hostconfig

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"google.golang.org/protobuf/proto"
)

// renewed is what is done to the service of these tests.
func renewed(reload bool) *configv1.ServiceAction {
	return &configv1.ServiceAction{Name: "reader.service", Reload: reload}
}

// with is a configuration of a file and the service of these tests.
func with(t *testing.T, name, content, unit string) *configv1.MachineConfig {
	return config(t, name, []any{fileAt("/etc/x", content, 0o644)}, []any{service("reader.service", unit)})
}

// sendFrom orders a configuration as decided for another one.
func (c *cluster) sendFrom(from string, cfg *configv1.MachineConfig, services ...*configv1.ServiceAction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order = &configv1.FollowConfigResponse{
		MachineConfig: cfg, Apply: true, Services: services, CurrentConfig: proto.String(from),
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// TestAReloadThatNeverWorksHoldsUpNoOtherConfiguration has a change fail by its reload, which fails on the way back,
// too.
func TestAReloadThatNeverWorksHoldsUpNoOtherConfiguration(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	bad := strings.Replace(reads, "kill -0 ${MAINPID}", "false", 1)
	m.cluster.send(with(t, "one", "1", bad), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	first := m.pid()
	m.cluster.send(with(t, "two", "2", bad), true, false, renewed(true))
	m.await("it fails", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && strings.Contains(r.GetReason(), "reload: /bin/sh: exit status 1") && m.finished()
	})
	if x := m.content("etc/x"); x != "1" || m.pid() == first {
		t.Errorf("the file is %q; on the way back the service was restarted: %v", x, m.pid() != first)
	}
	m.cluster.send(with(t, "three", "3", reads), true, false)
	m.awaitState(done, "three")
	m.awaitSeen("3")
}

// TestAServiceThatBearsOnlyTheNextFilesGetsThem has a service that runs neither with the files of a faulty change nor,
// any more, with those before it.
func TestAServiceThatBearsOnlyTheNextFilesGetsThem(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	unit := "[Service]\nExecStart=/bin/sh -c 'grep -q new ${WINDLASS_ROOT}/etc/x || test ! -e ${WINDLASS_ROOT}/migrated " +
		"|| exit 1; exec sleep 1012'\nRestart=always\n"
	m.cluster.send(with(t, "one", "1", unit), true, false)
	m.awaitState(done, "one")
	m.place("migrated", "")
	m.cluster.send(with(t, "two", "wrong", unit), true, false, renewed(false))
	m.awaitState(degraded, "one")
	m.cluster.send(with(t, "three", "new", unit), true, false, renewed(false))
	m.awaitState(done, "three")
	m.awaitRunning("1012")
}

// TestAnOrderForAnotherConfigurationIsNotCarriedOut: what it says of services and restarts is for the way from there.
func TestAnOrderForAnotherConfigurationIsNotCarriedOut(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.sendFrom("", with(t, "one", "1", reads))
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.sendFrom("one", with(t, "two", "2", reads), renewed(true))
	m.awaitState(done, "two")
	m.awaitSeen("2")
	m.cluster.sendFrom("one", with(t, "one", "1", reads)) // the cluster does not know of two yet
	m.await("it says what it has", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == working && r.GetCurrentConfig() == "two" && r.GetDesiredConfig() == "one"
	})
	if x := m.content("etc/x"); x != "2" {
		t.Errorf("the file is %q", x)
	}
	m.cluster.sendFrom("two", with(t, "one", "1", reads), renewed(true))
	m.awaitState(done, "one")
	m.awaitSeen("1")
}

// TestServicesThatSawNoChangeRunOn has a change fail before any service could have read anything.
func TestServicesThatSawNoChangeRunOn(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", reads), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	first := m.pid()
	if err := os.MkdirAll(m.path("etc/full/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	two := config(t, "two", []any{fileAt("/etc/full", "1", 0o644), fileAt("/etc/x", "2", 0o644)},
		[]any{service("reader.service", reads)})
	m.cluster.send(two, true, false, renewed(false))
	m.await("it is taken back", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetCurrentConfig() == "one" && m.finished()
	})
	if m.pid() != first {
		t.Error("the service was restarted")
	}
}

// TestAReloadAfterAKillReachesAProcessThatIsTakenOver leaves what a kill leaves right after a reload.
func TestAReloadAfterAKillReachesAProcessThatIsTakenOver(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", reads), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	for range 10 {
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		m.place("etc/seen", "2")
		if err := save(m.dir, owedFile,
			debts{"boot-1", []debt{{Name: "reader.service", Reload: true, Seen: true}}}); err != nil {
			t.Fatal(err)
		}
		m.boot("boot-1")
		m.awaitState(done, "one")
		if !m.finished() {
			t.Fatal("it is done before the service is")
		}
		m.awaitSeen("1")
	}
}

// TestAReloadThatHangsDoesNotHoldUpTheAgent has it give way to another order, and to the end of the agent.
func TestAReloadThatHangsDoesNotHoldUpTheAgent(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	hangs := "[Service]\nExecStart=/bin/sleep 1013\nExecReload=/bin/sh -c 'touch ${WINDLASS_ROOT}/hangs; exec sleep 1014'\n" +
		"TimeoutStartSec=infinity\nRestart=always\n"
	m.cluster.send(with(t, "one", "1", hangs), true, false)
	m.awaitState(done, "one")
	m.cluster.send(with(t, "two", "2", hangs), true, false, renewed(true))
	m.await("it hangs", func(*configv1.ReportConfigRequest) bool { return m.content("hangs") == "" })
	if err := os.Remove(m.path("hangs")); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(with(t, "one", "1", hangs), true, false)
	m.await("it is taken back", func(*configv1.ReportConfigRequest) bool { return m.content("etc/x") == "1" })
	ended := make(chan error, 1)
	go func() { ended <- m.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the agent does not end")
	}
}

func TestARepairThatFailsHoldsUpNothing(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := config(t, "one", []any{fileAt("/etc/x", "1", 0o644), fileAt("/etc/y", "1", 0o644)}, nil)
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.cluster.sendRepairs(one, &configv1.PathRepair{Paths: []string{"/etc/x", "/etc/y"}})
	if err := os.Remove(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.path("etc/x/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.place("etc/y", "2")
	m.await("the other is put back", func(*configv1.ReportConfigRequest) bool { return m.content("etc/y") == "1" })
	m.await("it is said", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && strings.Contains(r.GetReason(), `"/etc/x": it is a directory`)
	})
	m.cluster.send(one, true, false) // nothing may be put back any more
	if err := os.RemoveAll(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	m.await("it is only said", func(r *configv1.ReportConfigRequest) bool {
		if m.content("etc/x") != "2" { // it was put back before the order arrived
			m.place("etc/x", "2")
		}
		return r.GetState() == degraded && strings.HasPrefix(r.GetReason(), `mode mismatch for file: "/etc/x"`)
	})
	m.cluster.send(config(t, "two", []any{fileAt("/etc/z", "1", 0o644)}, nil), true, false)
	m.awaitState(done, "two")
}

func TestARepairHidesNoOtherTrouble(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := config(t, "one", []any{fileAt("/etc/x", "1", 0o644)}, []any{service("once.service",
		"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'test ! -e ${WINDLASS_ROOT}/broken'\n")})
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.place("broken", "1")
	m.boot("boot-2")
	m.awaitState(degraded, "one")
	m.cluster.sendRepairs(one, &configv1.PathRepair{Paths: []string{"/etc/x"}})
	m.place("etc/x", "2")
	m.await("it is put back", func(*configv1.ReportConfigRequest) bool { return m.content("etc/x") == "1" })
	r := m.await("it still says what is wrong", func(r *configv1.ReportConfigRequest) bool {
		return !strings.Contains(r.GetReason(), "put back")
	})
	if r.GetState() != degraded || !strings.Contains(r.GetReason(), "once.service") {
		t.Errorf("it says %s: %s", r.GetState(), r.GetReason())
	}
}

// TestWhatIsChangedAgainAndAgainIsPutBackLessAndLessOften has another process change a file whenever it is right.
func TestWhatIsChangedAgainAndAgainIsPutBackLessAndLessOften(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := with(t, "one", "1", reads)
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	puts := make(chan time.Time, 100)
	m.host.tree.step = func(what string) error {
		if what == "put etc/x" {
			puts <- time.Now()
		}
		return nil
	}
	m.cluster.sendRepairs(one, &configv1.PathRepair{Paths: []string{"/etc/x"}})
	var at []time.Time
	for len(at) < 6 {
		m.place("etc/x", "2")
		select {
		case when := <-puts:
			at = append(at, when)
		case <-time.After(10 * time.Millisecond):
		}
	}
	// Without longer pauses each would come with a comparison of the disk, every 20 ms.
	if took := at[5].Sub(at[0]); took < 250*time.Millisecond {
		t.Errorf("six repairs took %v", took)
	}
}

func TestNothingIsPutBackBelowADirectoryThatIsNot(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := configOf(t, "one", map[string]any{"storage": map[string]any{
		"directories": []any{map[string]any{"path": "/etc/secret", "mode": 0o700}},
		"files":       []any{fileAt("/etc/secret/key", "1", 0o600), fileAt("/etc/x", "1", 0o644)},
	}})
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.cluster.sendRepairs(one, &configv1.PathRepair{Paths: []string{"/etc/secret/key", "/etc/x"}})
	if err := os.Rename(m.path("etc/secret"), m.dir+"/away"); err != nil {
		t.Fatal(err)
	}
	m.place("etc/x", "2")
	m.await("the other is put back", func(r *configv1.ReportConfigRequest) bool {
		return m.content("etc/x") == "1" && r.GetState() == degraded &&
			r.GetReason() == `content mismatch for directory "/etc/secret": it is missing, and 1 more`
	})
	if _, err := os.Stat(m.path("etc/secret")); err == nil {
		t.Error("the directory was made for what is in it")
	}
}

// picky is a service that does not start while /broken is there.
const picky = "[Service]\nExecStart=/bin/sh -c 'test ! -e ${WINDLASS_ROOT}/broken || exit 1; echo x >> " +
	"${WINDLASS_ROOT}/NAME; exec sleep 1021'\nRestart=always\n"

// TestADebtThatCannotBePaidHoldsUpNoOtherConfiguration has a service not start any more, whatever its files are.
func TestADebtThatCannotBePaidHoldsUpNoOtherConfiguration(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", picky), true, false)
	m.awaitState(done, "one")
	m.place("broken", "")
	m.cluster.send(with(t, "two", "2", picky), true, false, renewed(false))
	m.await("it fails", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetDesiredConfig() == "two"
	})
	three := config(t, "three", []any{fileAt("/etc/x", "1", 0o644), fileAt("/etc/z", "3", 0o644)},
		[]any{service("reader.service", picky)})
	m.cluster.send(three, true, false)
	m.await("the other is applied, and says what does not run", func(r *configv1.ReportConfigRequest) bool {
		return r.GetCurrentConfig() == "three" && r.GetState() == degraded &&
			strings.Contains(r.GetReason(), "reader.service")
	})
}

// TestEachDebtIsPaidByItself has one service of three not start: the others are restarted once, and not again with it.
func TestEachDebtIsPaidByItself(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.host.correcting = backoff.New(20*time.Millisecond, 20*time.Millisecond)
	var units []any
	for _, name := range []string{"a", "b", "c"} {
		text := strings.ReplaceAll(picky, "NAME", name)
		if name != "b" {
			text = strings.ReplaceAll(text, "test ! -e ${WINDLASS_ROOT}/broken || exit 1; ", "")
		}
		units = append(units, service(name+".service", text))
	}
	one := config(t, "one", []any{fileAt("/etc/x", "1", 0o644)}, units)
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.place("broken", "")
	m.cluster.sendRepairs(one, &configv1.PathRepair{Paths: []string{"/etc/x"}, Services: []*configv1.ServiceAction{
		{Name: "a.service"}, {Name: "b.service"}, {Name: "c.service"},
	}})
	m.place("etc/x", "2")
	m.await("the last is restarted, too", func(*configv1.ReportConfigRequest) bool { return m.content("c") == "x\nx\n" })
	for range 3 { // tries of the one that does not start
		if err := os.Remove(m.path("broken")); err != nil {
			t.Fatal(err)
		}
		m.await("it starts", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == done })
		if a, c := m.content("a"), m.content("c"); a != "x\nx\n" || c != "x\nx\n" {
			t.Fatalf("the others were started %d and %d times, want 2", strings.Count(a, "x"), strings.Count(c, "x"))
		}
		m.place("broken", "")
	}
}

// TestAServiceThatCrashedDuringAFailedChangeIsRestarted: it runs with files that were taken back, although no action
// for it had begun.
func TestAServiceThatCrashedDuringAFailedChangeIsRestarted(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	make := func(name, x, command string) *configv1.MachineConfig {
		return config(t, name, []any{fileAt("/etc/x", x, 0o644)}, []any{
			service("reader.service", reads),
			service("other.service", "[Service]\nType=oneshot\nExecStart=/bin/sh -c '"+command+"'\n"),
		})
	}
	one := make("one", "1", "true")
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.send(make("two", "2", "until test -e ${WINDLASS_ROOT}/fail; do sleep 0.05; done; exit 1"), true, false,
		renewed(false))
	m.await("the file is there", func(*configv1.ReportConfigRequest) bool { return m.content("etc/x") == "2" })
	if err := syscall.Kill(m.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.awaitSeen("2")
	m.place("fail", "")
	m.await("it fails", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == degraded })
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
}

// TestADebtIsPaidWhileAnotherConfigurationWaits abandons a change in the middle of its reload for one that has to wait
// for a drain.
func TestADebtIsPaidWhileAnotherConfigurationWaits(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	slow := strings.Replace(reads, "ExecReload=/bin/sh -c '", "ExecReload=/bin/sh -c 'cp ${WINDLASS_ROOT}/etc/x "+
		"${WINDLASS_ROOT}/etc/seen; touch ${WINDLASS_ROOT}/hangs; sleep 1; ", 1)
	m.cluster.send(with(t, "one", "1", slow), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.send(with(t, "two", "2", slow), true, false, renewed(true))
	m.await("the reload runs", func(*configv1.ReportConfigRequest) bool { return m.content("hangs") == "" })
	m.cluster.send(with(t, "three", "3", slow), false, true)
	m.await("the file is back", func(*configv1.ReportConfigRequest) bool { return m.content("etc/x") == "1" })
	m.awaitSeen("1")
	m.await("it waits", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == working && r.GetDesiredConfig() == "three" && m.finished()
	})
}

func TestARecordOfDebtsThatIsNoneIsOneOfAllServices(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", reads), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.place("etc/seen", "2")
	if err := os.WriteFile(filepath.Join(m.dir, owedFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.boot("boot-1")
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.send(config(t, "two", []any{fileAt("/etc/z", "1", 0o644)}, nil), true, false)
	m.awaitState(done, "two")
}

// TestAUnitThatARepairStartsIsNoTroubleAnyMore has a damaged file keep a unit from starting at boot.
func TestAUnitThatARepairStartsIsNoTroubleAnyMore(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	one := with(t, "one", "1", "[Service]\nExecStartPre=/bin/sh -c 'grep -q 1 ${WINDLASS_ROOT}/etc/x'\n"+
		"ExecStart=/bin/sleep 1025\nRestart=always\n")
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.place("etc/x", "2")
	m.cluster.sendRepairs(one, &configv1.PathRepair{
		Paths: []string{"/etc/x"}, Services: []*configv1.ServiceAction{renewed(false)},
	})
	m.boot("boot-2")
	m.awaitState(done, "one")
	m.awaitRunning("1025")
}

// TestAUnitThatRanOnceForAFailedChangeRunsAgainAsItWas takes back what it did.
func TestAUnitThatRanOnceForAFailedChangeRunsAgainAsItWas(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	make := func(name, x string, more ...any) *configv1.MachineConfig {
		once := service("once.service", "# "+name+"\n[Service]\nType=oneshot\nExecStart=/bin/sh -c "+
			"'cp ${WINDLASS_ROOT}/etc/x ${WINDLASS_ROOT}/etc/seen'\n")
		return config(t, name, []any{fileAt("/etc/x", x, 0o644)}, append([]any{once}, more...))
	}
	one := make("one", "1")
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.send(make("two", "2", service("zfails.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")), true,
		false)
	m.await("it fails", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == degraded })
	m.cluster.send(one, true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
}

// TestAReloadDoesNotPayForARestart abandons a change in which a service was restarted for one that reloads it.
func TestAReloadDoesNotPayForARestart(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	// What it has read when it started counts; when it is reloaded it reads nothing.
	unit := strings.Replace(reads, "cp ${WINDLASS_ROOT}/etc/x ${WINDLASS_ROOT}/etc/seen'\nRestart", "true'\nRestart", 1)
	make := func(name, x, y string) *configv1.MachineConfig {
		return config(t, name, []any{fileAt("/etc/x", x, 0o644), fileAt("/etc/y", y, 0o644)}, []any{
			service("reader.service", unit),
			service("slow.service", "[Service]\nExecStart=/bin/sleep 1031\nExecReload=/bin/sh -c 'test ! -e "+
				"${WINDLASS_ROOT}/hangs || exit 0; touch ${WINDLASS_ROOT}/hangs; exec sleep 60'\n"),
		})
	}
	m.cluster.send(make("one", "1", "1"), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	m.cluster.send(make("two", "2", "1"), true, false, renewed(false),
		&configv1.ServiceAction{Name: "slow.service", Reload: true})
	m.await("the first is restarted, the second hangs", func(*configv1.ReportConfigRequest) bool {
		return m.content("hangs") == "" && m.content("etc/seen") == "2"
	})
	m.cluster.send(make("three", "1", "3"), true, false, renewed(true))
	m.awaitState(done, "three")
	m.awaitSeen("1")
}

// TestWhatFailedAtBootIsSaidUntilItWorks has a unit that runs once fail at boot: neither another configuration nor
// another start of the agent forgets it.
func TestWhatFailedAtBootIsSaidUntilItWorks(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	once := service("once.service",
		"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'test ! -e ${WINDLASS_ROOT}/broken'\n")
	m.cluster.send(config(t, "one", nil, []any{once}), true, false)
	m.awaitState(done, "one")
	m.place("broken", "1")
	says := func(config string) {
		t.Helper()
		m.await("it is said", func(r *configv1.ReportConfigRequest) bool {
			return r.GetState() == degraded && r.GetCurrentConfig() == config && strings.Contains(r.GetReason(), "once.service")
		})
	}
	m.boot("boot-2")
	says("one")
	two := config(t, "two", []any{fileAt("/etc/x", "1", 0o644)}, []any{once})
	m.cluster.send(two, true, false)
	says("two")
	m.boot("boot-2")
	says("two")
	if err := os.Remove(m.path("broken")); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(config(t, "three", []any{fileAt("/etc/x", "3", 0o644)}, []any{once}), true, false)
	m.awaitState(done, "three")
	m.boot("boot-2")
	m.awaitState(done, "three")
}

// TestAChangeThatFailsBeforeItsUnitsRestartsNone has a file not be written, beside a unit that would change.
func TestAChangeThatFailsBeforeItsUnitsRestartsNone(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", reads), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	first := m.pid()
	if err := os.MkdirAll(m.path("etc/full/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.cluster.send(config(t, "two", []any{fileAt("/etc/full", "1", 0o644)},
		[]any{service("reader.service", "# changed\n"+reads)}), true, false)
	m.await("it is taken back", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && r.GetCurrentConfig() == "one" && m.finished()
	})
	if m.pid() != first {
		t.Error("the service was restarted")
	}
}

// TestARepairThatFailsRestartsNoService, and is tried again although a service that it restarted does not start.
func TestARepairThatFailsRestartsNoService(t *testing.T) {
	m := newMachine(t)
	m.boot("boot-1")
	m.cluster.send(with(t, "one", "1", reads), true, false)
	m.awaitState(done, "one")
	m.awaitSeen("1")
	first := m.pid()
	repair := &configv1.PathRepair{Paths: []string{"/etc/x"}, Services: []*configv1.ServiceAction{renewed(false)}}
	if err := os.Remove(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.path("etc/x/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.cluster.sendRepairs(with(t, "one", "1", reads), repair)
	m.await("it fails", func(r *configv1.ReportConfigRequest) bool {
		return r.GetState() == degraded && strings.Contains(r.GetReason(), `put back "/etc/x"`) && m.finished()
	})
	if m.pid() != first {
		t.Error("the service was restarted")
	}
	if err := os.RemoveAll(m.path("etc/x")); err != nil {
		t.Fatal(err)
	}
	m.await("it is put back", func(r *configv1.ReportConfigRequest) bool { return r.GetState() == done })
	m.awaitSeen("1")
	if m.pid() == first {
		t.Error("the service was not restarted")
	}
}
