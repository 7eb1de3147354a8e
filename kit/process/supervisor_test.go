package process_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
)

// The test binary is also the program that the tests supervise: this variable selects what it does.
const childMode = "PROCESS_TEST_CHILD"

func TestMain(m *testing.M) {
	mode, arg, _ := strings.Cut(os.Getenv(childMode), " ")
	switch mode {
	case "":
		goleak.VerifyTestMain(m)
	case "wait":
		fmt.Println("child", os.Getpid(), arg)
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		<-terminated
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ignoring")
		select {}
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "supervise": // arg: the run directory
		log := slog.New(slog.DiscardHandler)
		s := process.NewSupervisor(arg, log)
		if err := s.Ensure(waiting(arg)); err != nil {
			panic(err)
		}
		panic(s.Run(context.Background()))
	}
}

// waiting is a process that waits for SIGTERM; the same spec in every supervisor of dir.
func waiting(dir string) process.Spec {
	return spec("worker", "wait", filepath.Join(dir, "worker.log"))
}

func spec(name, mode, logFile string) process.Spec {
	return process.Spec{
		Name: name, Path: "/proc/self/exe", Args: []string{"-test.run=^$"},
		Env: []string{childMode + "=" + mode}, LogFile: logFile,
	}
}

// supervisor runs a supervisor until the returned function is called; whatever it leaves is ended with the test.
func supervisor(t testing.TB, dir string) (s *process.Supervisor, end func()) {
	t.Helper()
	s, end = run(t, dir, process.NewSupervisor(dir, slog.New(slog.DiscardHandler)))
	eventually(t, "the supervisor runs", func() bool {
		return !errors.Is(s.Stop(t.Context(), "missing"), process.ErrNotRunning)
	})
	return s, end
}

func stopAll(t testing.TB, dir string) {
	s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	names, err := s.Recorded()
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		for err = process.ErrNotRunning; errors.Is(err, process.ErrNotRunning) && ctx.Err() == nil; {
			err = s.Stop(ctx, name)
		}
		if err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-done
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func statusOf(s *process.Supervisor, name string) process.Status {
	for _, st := range s.Status() {
		if st.Name == name {
			return st
		}
	}
	return process.Status{}
}

// running waits for a process of that name with another pid than not, and returns its pid.
func running(t *testing.T, s *process.Supervisor, name string, not int) int {
	t.Helper()
	var pid int
	eventually(t, name+" runs", func() bool {
		pid = statusOf(s, name).PID
		return pid != 0 && pid != not
	})
	return pid
}

func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// starts counts the children that ever logged hello in the log of a "wait" process.
func starts(t *testing.T, logFile string) int {
	t.Helper()
	data, err := os.ReadFile(logFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), "child ")
}

func greeted(t *testing.T, logFile string) {
	t.Helper()
	eventually(t, "the child wrote to its log", func() bool {
		data, _ := os.ReadFile(logFile)
		return strings.Contains(string(data), "\n")
	})
}

func TestAProcessThatIsKilledIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	if err := s.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	first := running(t, s, "worker", 0)
	if err := s.Signal("worker", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	running(t, s, "worker", first)
	st := statusOf(s, "worker")
	if st.Restarts != 1 || st.LastExit.Signal != syscall.SIGKILL || !st.LastExit.Known {
		t.Errorf("status = %+v, want one restart after a SIGKILL", st)
	}
	if alive(first) {
		t.Errorf("pid %d still lives", first)
	}
}

func TestAStoppedProcessIsGoneAndCanBeEnsuredAgain(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	pid := 0
	for range 3 {
		if err := s.Ensure(waiting(dir)); err != nil {
			t.Fatal(err)
		}
		pid = running(t, s, "worker", pid)
		if err := s.Stop(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
		if alive(pid) || len(s.Status()) != 0 {
			t.Errorf("after Stop: alive %v, status %+v", alive(pid), s.Status())
		}
		if names, err := s.Recorded(); err != nil || len(names) != 0 {
			t.Errorf("Recorded = %v, %v, want none", names, err)
		}
	}
}

func TestAnIgnoredSIGTERMIsFollowedBySIGKILL(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := spec("stubborn", "stubborn", filepath.Join(dir, "log"))
	sp.Grace = 100 * time.Millisecond
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	pid := running(t, s, "stubborn", 0)
	greeted(t, sp.LogFile)
	if err := s.Stop(t.Context(), "stubborn"); err != nil || alive(pid) {
		t.Errorf("Stop = %v, alive %v", err, alive(pid))
	}
}

func TestAChangedSpecRestartsAndTheSameDoesNot(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := waiting(dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	first := running(t, s, "worker", 0)
	greeted(t, sp.LogFile)
	for range 10 {
		if err := s.Ensure(sp); err != nil {
			t.Fatal(err)
		}
	}
	sp.Args = append(sp.Args, "-test.v")
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	running(t, s, "worker", first)
	eventually(t, "the second child wrote to its log", func() bool { return starts(t, sp.LogFile) == 2 })
	if st := statusOf(s, "worker"); alive(first) || st.Restarts != 0 {
		t.Errorf("old process alive %v, status %+v", alive(first), st)
	}
}

func TestAProcessThatEndsWithAFinalCodeIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := spec("done", "exit 3", "")
	sp.FinalExits = []int{3}
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ended for good", func() bool { return statusOf(s, "done").Final })
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(s, "done"); !st.Final || st.Restarts != 0 || st.LastExit.Code != 3 {
		t.Errorf("status = %+v, want final with exit code 3", st)
	}
	sp.Env = []string{childMode + "=wait"}
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	running(t, s, "done", 0)
	if err := s.Stop(t.Context(), "done"); err != nil {
		t.Error(err)
	}
}

func TestAProcessThatKeepsEndingIsRestartedMoreAndMoreSlowly(t *testing.T) {
	s, _ := supervisor(t, t.TempDir())
	begin := time.Now()
	if err := s.Ensure(spec("failing", "exit 7", "")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was restarted four times", func() bool { return statusOf(s, "failing").Restarts >= 4 })
	if took := time.Since(begin); took < (50+100+200+400)*time.Millisecond {
		t.Errorf("four restarts within %v", took)
	}
	if st := statusOf(s, "failing"); st.LastExit.Code != 7 {
		t.Errorf("last exit = %v, want code 7", st.LastExit)
	}
	if err := s.Stop(t.Context(), "failing"); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatCannotBeStartedIsTold(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(process.Spec{Name: "broken", Path: broken}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the error is in the status", func() bool { return statusOf(s, "broken").LastError != nil })
}

func TestBadSpecsAreRefused(t *testing.T) {
	s := process.NewSupervisor(t.TempDir(), slog.New(slog.DiscardHandler))
	for name, bad := range map[string]process.Spec{
		"no name":                     {Path: "/bin/true"},
		"a name with a slash":         {Name: "a/b", Path: "/bin/true"},
		"a hidden name":               {Name: ".a", Path: "/bin/true"},
		"a relative path":             {Name: "a", Path: "true"},
		"no such program":             {Name: "a", Path: "/nonexistent"},
		"an environment without name": {Name: "a", Path: "/bin/true", Env: []string{"=x"}},
		"an argument with NUL":        {Name: "a", Path: "/bin/true", Args: []string{"x\x00y"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.Ensure(bad); err == nil {
				t.Error("Ensure = nil, want an error")
			}
		})
	}
}

func TestTheNextSupervisorTakesTheProcessOver(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, record string){
		"when the record is right": func(*testing.T, string) {},
		"when the record was never written": func(t *testing.T, record string) {
			if err := os.Remove(record); err != nil {
				t.Fatal(err)
			}
		},
		"when the record is of another process": func(t *testing.T, record string) {
			rewrite(t, record, fmt.Sprintf(`{"pid":%d,"startTime":1,"bootID":"other"}`, os.Getpid()))
		},
		"when the record is cut off": func(t *testing.T, record string) {
			rewrite(t, record, `{"pid":`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, end := supervisor(t, dir)
			if err := s.Ensure(waiting(dir)); err != nil {
				t.Fatal(err)
			}
			pid := running(t, s, "worker", 0)
			greeted(t, waiting(dir).LogFile)
			since := statusOf(s, "worker").Since
			end()
			spoil(t, filepath.Join(dir, "worker.json"))
			s, _ = supervisor(t, dir)
			if err := s.Ensure(waiting(dir)); err != nil {
				t.Fatal(err)
			}
			if got := running(t, s, "worker", 0); got != pid || starts(t, waiting(dir).LogFile) != 1 {
				t.Errorf("pid %d, want %d taken over", got, pid)
			}
			if d := statusOf(s, "worker").Since.Sub(since).Abs(); d > time.Second {
				t.Errorf("start time is off by %v", d)
			}
			if err := s.Stop(t.Context(), "worker"); err != nil || alive(pid) {
				t.Errorf("Stop = %v, alive %v", err, alive(pid))
			}
		})
	}
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKillingTheSupervisorAtAnyMomentNeverDoublesAProcess(t *testing.T) {
	dir := t.TempDir()
	boss, end := supervisor(t, filepath.Join(t.TempDir(), "boss"))
	defer end()
	sup := spec("supervisor", "supervise "+dir, "")
	// The supervisor is killed sooner and sooner after its start, then keeps one child.
	for i := range 12 {
		if err := boss.Ensure(sup); err != nil {
			t.Fatal(err)
		}
		running(t, boss, "supervisor", 0)
		<-time.After(time.Duration(24-2*i) * time.Millisecond)
		_ = boss.Signal("supervisor", syscall.SIGKILL)
		if err := boss.Stop(t.Context(), "supervisor"); err != nil {
			t.Fatal(err)
		}
		if n := len(carriers(t, filepath.Join(dir, "worker"))); n > 1 {
			t.Fatalf("%d processes of one name", n)
		}
	}
	s, _ := supervisor(t, dir)
	if err := s.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	pid := running(t, s, "worker", 0)
	if got := carriers(t, filepath.Join(dir, "worker")); len(got) != 1 || got[0] != pid {
		t.Errorf("processes = %v, want only %d", got, pid)
	}
	// Its parent has ended, and its end is still detected.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	running(t, s, "worker", pid)
}

// carriers lists the living processes that carry the marker.
func carriers(t *testing.T, marker string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && alive(pid) && strings.Contains(string(env), "WINDLASS_PROCESS="+marker+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestASecondSupervisorIsRefused(t *testing.T) {
	dir := t.TempDir()
	supervisor(t, dir)
	s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context()); !errors.Is(err, process.ErrLocked) ||
		!strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("Run = %v, want ErrLocked naming the pid", err)
	}
}

func TestMethodsMayBeCalledAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			sp := spec("p"+strconv.Itoa(i%2), "wait", "")
			for range 10 {
				if err := s.Ensure(sp); err != nil {
					t.Error(err)
				}
				s.Status()
				_ = s.Signal(sp.Name, syscall.SIGCONT)
				if err := s.Stop(t.Context(), sp.Name); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	eventually(t, "none is left", func() bool {
		return len(carriers(t, filepath.Join(dir, "p0")))+len(carriers(t, filepath.Join(dir, "p1"))) == 0
	})
}

func TestAProcessToBeStartedOnceIsStartedOnce(t *testing.T) {
	dir := t.TempDir()
	s, end := supervisor(t, dir)
	changed := make(chan struct{}, 100)
	once := func(name, mode string) process.Spec {
		sp := spec(name, mode, filepath.Join(dir, name+".log"))
		sp.Once, sp.Changed = true, func() { changed <- struct{}{} }
		return sp
	}
	if err := s.Ensure(once("ends", "exit 4")); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(once("stays", "wait")); err != nil {
		t.Fatal(err)
	}
	pid := running(t, s, "stays", 0)
	greeted(t, filepath.Join(dir, "stays.log"))
	eventually(t, "the first one ended", func() bool { st, _ := s.Lookup("ends"); return st.Final })
	eventually(t, "a start, a start and an end were reported", func() bool { return len(changed) >= 3 })
	end()

	s, end = supervisor(t, dir)
	for name, mode := range map[string]string{"ends": "exit 4", "stays": "wait"} {
		if err := s.Ensure(once(name, mode)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the end is remembered", func() bool { st, _ := s.Lookup("ends"); return st.Final })
	if st, _ := s.Lookup("ends"); !st.LastExit.Known || st.LastExit.Code != 4 {
		t.Errorf("remembered %v, want exit code 4", st.LastExit)
	}
	if again := running(t, s, "stays", 0); again != pid {
		t.Errorf("pid %d after %d", again, pid)
	}
	end()

	// It ends while no supervisor runs: it is not started again, and its exit status is not known.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s, _ = supervisor(t, dir)
	if err := s.Ensure(once("stays", "wait")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its end was seen", func() bool { st, _ := s.Lookup("stays"); return st.Final })
	if n := starts(t, filepath.Join(dir, "stays.log")); n != 1 {
		t.Errorf("%d starts", n)
	}
	// Another spec of the name is another process, and so is the same after a stop.
	other := once("stays", "wait")
	other.Args = append(other.Args, "-test.v")
	if err := s.Ensure(other); err != nil {
		t.Fatal(err)
	}
	second := running(t, s, "stays", 0)
	if err := s.Stop(t.Context(), "stays"); err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(other); err != nil {
		t.Fatal(err)
	}
	running(t, s, "stays", second)
}

func TestAnotherSerialIsAnotherStart(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := spec("again", "exit 4", "")
	sp.Once = true
	for sp.Serial = 1; sp.Serial <= 3; sp.Serial++ {
		var began time.Time
		if st, ok := s.Lookup("again"); ok {
			began = st.LastExit.At
		}
		if err := s.Ensure(sp); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it ran and ended once more", func() bool {
			st, _ := s.Lookup("again")
			return st.Final && st.LastExit.At.After(began) && st.LastExit.Code == 4
		})
	}
}

func TestARecordOfAProcessThatIsGoneIsRemoved(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "gone.json"), []byte(`{"pid":1,"startTime":1,"bootID":"another"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := supervisor(t, dir)
	if err := s.Stop(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if names, err := s.Recorded(); err != nil || len(names) > 0 {
		t.Errorf("recorded %q, %v", names, err)
	}
}

// TestAProcessWithoutARecordIsFoundAndStopped: a full disk takes no record.
func TestAProcessWithoutARecordIsFoundAndStopped(t *testing.T) {
	dir := t.TempDir()
	s, end := supervisor(t, dir)
	if err := s.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	name := waiting(dir).Name
	pid := running(t, s, name, 0)
	end()
	if err := os.Remove(filepath.Join(dir, name+".json")); err != nil {
		t.Fatal(err)
	}
	s, end = supervisor(t, dir)
	defer end()
	names, err := s.Recorded()
	if err != nil || !slices.Equal(names, []string{name}) {
		t.Fatalf("Recorded = %q, %v, want %q", names, err, name)
	}
	if err := s.Stop(t.Context(), name); err != nil || alive(pid) {
		t.Errorf("Stop = %v, process %d alive: %t", err, pid, alive(pid))
	}
	if names, err := s.Recorded(); err != nil || len(names) > 0 {
		t.Errorf("after it Recorded = %q, %v", names, err)
	}
}

// TestTheTextOfALockIsReplacedWhereItIs: on a full disk what was cut off could not be written again, and the supervisor
// would not be found.
func TestTheTextOfALockIsReplacedWhereItIs(t *testing.T) {
	dir := t.TempDir()
	lock := filepath.Join(dir, "lock")
	before := strings.Repeat("9", 31) + "\n"
	if err := os.WriteFile(lock, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	_, end := supervisor(t, dir)
	defer end()
	now, err := os.ReadFile(lock)
	if err != nil || len(now) != len(before) {
		t.Errorf("lock holds %q, %v, want %d bytes", now, err, len(before))
	}
	if pid, err := process.Owner(dir); err != nil || pid != os.Getpid() {
		t.Errorf("Owner = %d, %v, want %d", pid, err, os.Getpid())
	}
}

func TestTheOlderPartOfALongLogIsDropped(t *testing.T) {
	const keep = 1 << 20
	path := filepath.Join(t.TempDir(), "log")
	used := func(size int) int64 {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := process.TrimLog(path, keep); err != nil {
			t.Fatal(err)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != int64(size) {
			t.Errorf("size %d, want %d: who appends must find the same end", st.Size, size)
		}
		return st.Blocks * 512
	}
	if n := used(2*keep - 8192); n < 2*keep-8192 {
		t.Errorf("a log that is not long takes %d bytes", n)
	}
	if n := used(3 * keep); n >= 3*keep {
		t.Skip("this file system has no holes")
	} else if n < keep || n > keep+8192 {
		t.Errorf("%d bytes are left, want about %d", n, keep)
	}
	if err := process.TrimLog(path+".none", keep); err != nil {
		t.Error(err)
	}
}

func TestALongLogIsShortenedWhereThereAreNoHoles(t *testing.T) {
	const keep = 1 << 16
	path := filepath.Join(t.TempDir(), "log")
	writer, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write := func(text string) {
		t.Helper()
		if _, err := writer.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Repeat("x", 3*keep) + "last\n")
	if err := process.TrimLogWithoutHoles(path, keep); err != nil {
		t.Fatal(err)
	}
	write("next\n")
	if got, err := os.ReadFile(path); err != nil || len(got) != keep+len("next\n") ||
		!strings.HasSuffix(string(got), "xlast\nnext\n") {
		t.Errorf("%d bytes are left, %v, want %d with the last lines", len(got), err, keep+len("next\n"))
	}
}

func TestTheWholeGroupEndsWithItsLeader(t *testing.T) {
	dir := t.TempDir()
	s, _ := supervisor(t, dir)
	sp := process.Spec{
		Name: "family", Path: "/bin/sh", Args: []string{"-c", `sleep 1000 & echo $! >"$FILE"; exit 0`}, Once: true,
		OnlyEnv: true,
		Env:     []string{"PATH=" + os.Getenv("PATH"), "FILE=" + filepath.Join(dir, "child")},
	}
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leader ended", func() bool { st, _ := s.Lookup("family"); return st.Final })
	data, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child ended", func() bool { return !alive(child) })
}

func TestWhatALeaderLeftBehindEndsThoughNobodySawItEnd(t *testing.T) {
	dir := t.TempDir()
	s, end := supervisor(t, dir)
	sp := process.Spec{
		Name: "family", Path: "/bin/sh", Args: []string{"-c", `sleep 1000 & echo $! >"$FILE"; wait`}, OnlyEnv: true,
		Env: []string{"PATH=" + os.Getenv("PATH"), "FILE=" + filepath.Join(dir, "child")},
	}
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	leader, child := running(t, s, "family", 0), 0
	eventually(t, "there is a child", func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "child"))
		child, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return child != 0
	})
	end()
	if err := unix.Kill(leader, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(leader, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if !alive(child) {
		t.Fatal("the child ended with its leader: this test shows nothing")
	}
	s, _ = supervisor(t, dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child ended", func() bool { return !alive(child) })
}

// logged records log messages.
type logged struct {
	slog.Handler
	mu    sync.Mutex
	words []string
}

func (s *logged) Enabled(context.Context, slog.Level) bool { return true }

func (s *logged) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s *logged) Handle(_ context.Context, r slog.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words = append(s.words, r.Message)
	return nil
}

func (s *logged) has(words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.words, words)
}

// TestAProcessThatCannotBeTakenOverYetIsNotDoubled lets the next supervisor open no files while it takes a process
// over.
func TestAProcessThatCannotBeTakenOverYetIsNotDoubled(t *testing.T) {
	dir := t.TempDir()
	first, end := supervisor(t, dir)
	if err := first.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	pid := running(t, first, "worker", 0)
	end()

	log := &logged{}
	second := process.NewSupervisor(dir, slog.New(log))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	<-second.Active()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := sync.OnceFunc(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	t.Cleanup(restore)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	if err := second.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is not taken over", func() bool { return log.has("process is not taken over") })
	restore()
	if got := running(t, second, "worker", 0); got != pid {
		t.Errorf("process %d runs, beside %d", got, pid)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
