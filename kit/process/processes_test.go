package process_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/process"
)

const fewProcesses = 20

// needProcessLimit returns a supervisor whose pools can have limits of processes.
func needProcessLimit(t *testing.T, dir string) (s *process.Supervisor, end func()) {
	t.Helper()
	s, end = supervisor(t, dir)
	if err := s.CanLimitProcesses(); err != nil {
		t.Skip(err)
	}
	return s, end
}

// inPool is a shell in a pool with a limit of processes.
func inPool(dir, pool, name, script string, limit int64) process.Spec {
	return process.Spec{
		Name: pool + "." + name, Pool: pool, PoolLimits: cgroup.Limits{Processes: limit}, Path: "/bin/sh",
		Args: []string{"-c", script}, LogFile: filepath.Join(dir, pool+"."+name+".log"), Grace: 100 * time.Millisecond,
	}
}

// bomb starts three times as many processes as its pool may have, and then waits. A shell that cannot fork ends: that
// is a child of the first one.
const bomb = `( i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done ) 2>/dev/null; echo ready; exec sleep 1000`

func useOf(t *testing.T, s *process.Supervisor, pool string) int {
	t.Helper()
	uses, err := s.Uses([]string{pool})
	if err != nil {
		t.Fatal(err)
	}
	return uses[pool].Processes
}

// filled starts commands beside a process until its pool is full, and returns the error of the last one.
func filled(t *testing.T, s *process.Supervisor, name string) error {
	t.Helper()
	for range fewProcesses {
		cmd := exec.Command("/bin/sleep", "1000")
		if err := s.StartBeside(name, cmd, nil); err != nil {
			return err
		}
		waited := make(chan struct{})
		go func() { defer close(waited); _ = cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-waited })
	}
	t.Fatal("the pool is never full")
	return nil
}

func TestAForkBombIsHeldInItsPool(t *testing.T) {
	dir := t.TempDir()
	s, _ := needProcessLimit(t, dir)
	beside := inPool(dir, "b", "worker", `echo ready; while :; do /bin/true; sleep 0.01; echo on; done`, fewProcesses)
	if err := s.Ensure(beside); err != nil {
		t.Fatal(err)
	}
	saying(t, s, inPool(dir, "a", "worker", bomb, fewProcesses))
	pid := running(t, s, "a.worker", 0)
	if n := useOf(t, s, "a"); n > fewProcesses || n < fewProcesses-2 {
		t.Errorf("the bomb has %d processes, want %d or a little less", n, fewProcesses)
	}

	err := filled(t, s, "a.worker")
	if !errors.Is(err, process.ErrTooManyProcesses) || !errors.Is(err, syscall.EAGAIN) ||
		!strings.Contains(err.Error(), "limit of 20 processes") ||
		!strings.HasSuffix(err.Error(), "resource temporarily unavailable") {
		t.Errorf("a command in a full pool: %v", err)
	}
	// Another process of the pool is not started outside of it, but when there is room.
	if err := s.Ensure(inPool(dir, "a", "second", "exec sleep 1000", fewProcesses)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second process is refused", func() bool {
		return errors.Is(statusOf(s, "a.second").LastError, process.ErrTooManyProcesses)
	})
	if n := useOf(t, s, "a"); n > fewProcesses {
		t.Errorf("the pool has %d processes", n)
	}

	on := func() int {
		data, _ := os.ReadFile(beside.LogFile)
		return bytes.Count(data, []byte("on\n"))
	}
	before := on()
	eventually(t, "the other pool goes on", func() bool { return on() > before+5 })
	if st := statusOf(s, "b.worker"); st.Restarts != 0 || !st.Running {
		t.Errorf("the other pool: %+v", st)
	}
	if st := statusOf(s, "a.worker"); st.PID != pid || st.Restarts != 0 {
		t.Errorf("the bomb ended: %+v", st)
	}

	if err := s.Stop(t.Context(), "a.worker"); err != nil {
		t.Fatal(err)
	}
	running(t, s, "a.second", 0)
	if err := s.Stop(t.Context(), "a.second"); err != nil {
		t.Fatal(err)
	}
	if err := s.EndPool("a"); err != nil {
		t.Fatal(err)
	}
	// The limit went with the pool.
	saying(t, s, inPool(dir, "a", "third", bomb, 2*fewProcesses))
	if n := useOf(t, s, "a"); n <= fewProcesses || n > 2*fewProcesses {
		t.Errorf("the next pool of the name has %d processes", n)
	}
	if err := s.Stop(t.Context(), "a.third"); err != nil {
		t.Fatal(err)
	}
	saying(t, s, inPool(dir, "a", "free", bomb, 0))
	if n := useOf(t, s, "a"); n != 61 {
		t.Errorf("a pool without a limit has %d processes", n)
	}
}

// TestABombIsTakenOverAndEnded has a supervisor begin while a pool is full.
func TestABombIsTakenOverAndEnded(t *testing.T) {
	dir := t.TempDir()
	s, end := needProcessLimit(t, dir)
	sp := inPool(dir, "a", "worker", bomb, fewProcesses)
	saying(t, s, sp)
	pid := running(t, s, sp.Name, 0)
	if err := filled(t, s, sp.Name); !errors.Is(err, process.ErrTooManyProcesses) {
		t.Fatal(err)
	}
	end()
	s, end = supervisor(t, dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	if got := running(t, s, sp.Name, 0); got != pid {
		t.Errorf("pid %d, want %d taken over", got, pid)
	}
	if err := filled(t, s, sp.Name); !errors.Is(err, process.ErrTooManyProcesses) {
		t.Errorf("a command in a full pool: %v", err)
	}
	if err := s.Stop(t.Context(), sp.Name); err != nil {
		t.Fatal(err)
	}
	if n := useOf(t, s, "a"); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	end()
	left, _ := filepath.Glob("/sys/fs/cgroup/*/windlass-*/a")
	for _, at := range left {
		data, _ := os.ReadFile(filepath.Join(at, "pids.max"))
		if strings.TrimSpace(string(data)) == "20" {
			t.Errorf("the group %s is left", at)
		}
	}
}

// TestAProcessOfAnotherVersionIsTakenOver has a supervisor that knows no limit of processes, before or after one that
// does.
func TestAProcessOfAnotherVersionIsTakenOver(t *testing.T) {
	for name, limits := range map[string][2]int64{
		"of an earlier version": {0, fewProcesses}, "of a later version": {fewProcesses, 0},
		"with another limit": {fewProcesses, 2 * fewProcesses},
	} {
		for _, requests := range []int64{0, 100} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				s, end := supervisor(t, dir)
				sp := inPool(dir, "a", "worker", "echo ready; exec sleep 1000", limits[0])
				sp.PoolLimits.MilliCPURequest = requests
				saying(t, s, sp)
				pid := running(t, s, sp.Name, 0)
				sp.PoolLimits.Processes = limits[1]
				// What it says while it runs does not count either.
				if err := s.Ensure(sp); err != nil {
					t.Fatal(err)
				}
				end()
				s, _ = supervisor(t, dir)
				if err := s.Ensure(sp); err != nil {
					t.Fatal(err)
				}
				running(t, s, sp.Name, 0)
				cmd := exec.Command("/bin/true")
				if err := s.StartBeside(sp.Name, cmd, nil); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
				if st := statusOf(s, sp.Name); st.PID != pid || st.Restarts != 0 {
					t.Errorf("status %+v, want pid %d", st, pid)
				}
			})
		}
	}
}

// TestDigestsAreThoseOfTheVersionBefore has digests of the version that knew no limit of processes.
func TestDigestsAreThoseOfTheVersionBefore(t *testing.T) {
	sp := process.Spec{Name: "a.worker", Path: "/bin/true", Args: []string{"x"}, Env: []string{"A=b"}, Pool: "a"}
	for _, tc := range []struct {
		pool, process cgroup.Limits
		want          string
	}{
		{cgroup.Limits{}, cgroup.Limits{}, "cb9a030f04632dfe"},
		{cgroup.Limits{MilliCPURequest: 100, MemoryRequest: 1 << 20}, cgroup.Limits{}, "9bb50e6b777930c8"},
		{
			cgroup.Limits{MilliCPURequest: 100, MemoryRequest: 1 << 20},
			cgroup.Limits{MilliCPU: 100, Memory: 1 << 20},
			"9a12806b482203f1",
		},
	} {
		for _, n := range []int64{0, 4096} {
			sp.PoolLimits, sp.Limits = tc.pool, tc.process
			sp.PoolLimits.Processes = n
			if got := process.Digest(sp); got != tc.want || sp.PoolLimits.Processes != n {
				t.Errorf("%+v: %s, want %s", sp, got, tc.want)
			}
		}
	}
}

// TestALimitOfProcessesNeedsNoController starts a process where there are no control groups.
func TestALimitOfProcessesNeedsNoController(t *testing.T) {
	dir := t.TempDir()
	s, _ := run(t, dir, process.NewSupervisor(dir, slog.New(slog.DiscardHandler)).WithoutCgroups())
	sp := inPool(dir, "a", "worker", "echo ready; exec sleep 1000", fewProcesses)
	saying(t, s, sp)
	if err := s.CanLimitProcesses(); err == nil || errors.Is(err, process.ErrNotRunning) {
		t.Errorf("a limit is possible: %v", err)
	}
	for name, spoil := range map[string]func(*process.Spec){
		"of a process":   func(sp *process.Spec) { sp.Limits.Processes = 1 },
		"below 0":        func(sp *process.Spec) { sp.PoolLimits.Processes = -1 },
		"without a pool": func(sp *process.Spec) { sp.Pool = "" },
	} {
		bad := sp
		spoil(&bad)
		if s.Ensure(bad) == nil {
			t.Errorf("a limit %s is accepted", name)
		}
	}
}
