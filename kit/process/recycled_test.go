package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/process"
)

// startTimeOf returns field 22 of a process's or a thread's stat.
func startTimeOf(t *testing.T, pid int) uint64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	line := string(data)
	n, err := strconv.ParseUint(strings.Fields(line[strings.LastIndexByte(line, ')')+1:])[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// recordAs writes a record of the process "worker" of dir that names a pid, as a supervisor of this boot and pid
// namespace would have.
func recordAs(t *testing.T, dir string, pid int, started uint64) {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{
		"pid": pid, "startTime": started, "bootID": strings.TrimSpace(string(boot)), "pidNamespace": ns,
		"mark": "of-another-start", "digest": "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(dir, "worker.json"), string(data))
}

// daemon starts an unsupervised process: the leader of a session, which ends, and a child in the leader's group, which
// stays. It returns the number of the group and the child.
func daemon(t *testing.T) (group, child int) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if child, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	return cmd.Process.Pid, child
}

// leader starts an unsupervised process that leads a session.
func leader(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestAPidThatMeansAnotherProcessNowIsLeftAlone gives the pid, or the number of the group, of a recorded process to one
// that is not ours: no operation on the record affects that process.
func TestAPidThatMeansAnotherProcessNowIsLeftAlone(t *testing.T) {
	for name, unrelated := range map[string]func(t *testing.T, dir string) int{
		"the group of a daemon": func(t *testing.T, dir string) int {
			group, child := daemon(t)
			recordAs(t, dir, group, 1)
			return child
		},
		"a process of another time": func(t *testing.T, dir string) int {
			pid := leader(t)
			recordAs(t, dir, pid, 1)
			return pid
		},
		"a process of that very time without our marker": func(t *testing.T, dir string) int {
			pid := leader(t)
			recordAs(t, dir, pid, startTimeOf(t, pid))
			return pid
		},
	} {
		for what, use := range map[string]func(t *testing.T, dir string){
			"ensured": func(t *testing.T, dir string) {
				s, _ := supervisor(t, dir)
				if err := s.Ensure(waiting(dir)); err != nil {
					t.Fatal(err)
				}
				running(t, s, "worker", 0)
				if err := s.Stop(t.Context(), "worker"); err != nil {
					t.Fatal(err)
				}
			},
			"stopped": func(t *testing.T, dir string) {
				s, _ := supervisor(t, dir)
				if err := s.Stop(t.Context(), "worker"); err != nil {
					t.Fatal(err)
				}
			},
			"killed": func(t *testing.T, dir string) {
				if err := process.KillAll(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
			},
			"listed": func(t *testing.T, dir string) {
				if found, err := process.Running(dir); err != nil || len(found) > 0 {
					t.Errorf("running: %v, %v", found, err)
				}
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				dir := t.TempDir()
				pid := unrelated(t, dir)
				use(t, dir)
				if !alive(pid) {
					t.Error("an unrelated process was killed")
				}
			})
		}
	}
}

// TestAPidThatIsAThreadNowMeansThatTheProcessIsGone is what happens to a container that is started again: its pids
// begin at 1, and one that was a process may be a thread.
func TestAPidThatIsAThreadNowMeansThatTheProcessIsGone(t *testing.T) {
	thread := 0
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if id, err := strconv.Atoi(task.Name()); err == nil && id != os.Getpid() {
			thread = id
		}
	}
	if thread == 0 {
		t.Fatal("this test has but one thread")
	}
	dir := t.TempDir()
	recordAs(t, dir, thread, startTimeOf(t, thread))
	s, _ := supervisor(t, dir)
	if err := s.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	running(t, s, "worker", thread)
}

// TestWhatAProcessLeftBehindEnds has a process leave children behind in three ways: in its group, in a session of their
// own, and, where there are control groups, without its environment. Beside it another supervised process, started by
// the same supervisor, is left alone.
func TestWhatAProcessLeftBehindEnds(t *testing.T) {
	const family = `sleep 1000 & echo $! >>"$FILE"; setsid sleep 1000 & echo $! >>"$FILE"; [ -z "$BARE" ] || { env -i setsid sleep 1000 & echo $! >>"$FILE"; }; echo done >>"$FILE"; wait`
	for _, cgroups := range []bool{true, false} {
		for _, seen := range []bool{true, false} {
			t.Run(fmt.Sprintf("control groups %v, end seen %v", cgroups, seen), func(t *testing.T) {
				if cgroups && !cgroupsWritable() {
					t.Skip("no writable control groups here")
				}
				dir := t.TempDir()
				begin := func() (*process.Supervisor, func()) {
					s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
					if !cgroups {
						s.WithoutCgroups()
					}
					return run(t, dir, s)
				}
				s, end := begin()
				sp := process.Spec{
					Name: "family", Path: "/bin/sh", Args: []string{"-c", family}, OnlyEnv: true,
					Env: []string{"PATH=" + os.Getenv("PATH"), "FILE=" + filepath.Join(dir, "children"), "BARE=" + map[bool]string{
						true: "1",
					}[cgroups]},
				}
				for _, want := range []process.Spec{sp, waiting(dir)} {
					if err := s.Ensure(want); err != nil {
						t.Fatal(err)
					}
				}
				first, other := running(t, s, "family", 0), running(t, s, "worker", 0)
				children := childrenOf(t, filepath.Join(dir, "children"))
				if !seen {
					end()
				}
				if err := unix.Kill(first, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if !seen {
					if _, err := unix.Wait4(first, nil, 0, nil); err != nil {
						t.Fatal(err)
					}
					s, _ = begin()
					if err := s.Ensure(sp); err != nil {
						t.Fatal(err)
					}
				}
				running(t, s, "family", first)
				for i, pid := range children {
					eventually(t, fmt.Sprintf("child %d ended", i), func() bool { return !alive(pid) })
				}
				if !alive(other) {
					t.Error("another process of the supervisor ended")
				}
			})
		}
	}
}

func cgroupsWritable() bool {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for _, at := range append(found, "/sys/fs/cgroup/cgroup.procs") {
		dir := filepath.Dir(at)
		probe := filepath.Join(dir, fmt.Sprintf("windlass-test-%d", os.Getpid()))
		if os.Mkdir(probe, 0o755) == nil {
			_, err := os.Stat(filepath.Join(probe, "cgroup.kill"))
			_ = os.Remove(probe)
			if err == nil {
				return true
			}
		}
	}
	return false
}

// childrenOf waits until the family wrote down its children.
func childrenOf(t *testing.T, file string) (pids []int) {
	t.Helper()
	eventually(t, "the children are there", func() bool {
		data, _ := os.ReadFile(file)
		return strings.Contains(string(data), "done")
	})
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(line); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestNothingIsLeftInControlGroups stops a process and checks that its group is gone, and has a group without a record
// swept.
func TestNothingIsLeftInControlGroups(t *testing.T) {
	if !cgroupsWritable() {
		t.Skip("no writable control groups here")
	}
	dir := t.TempDir()
	s, end := supervisor(t, dir)
	if err := s.Ensure(waiting(dir)); err != nil {
		t.Fatal(err)
	}
	pid := running(t, s, "worker", 0)
	var record struct{ Cgroup string }
	data, err := os.ReadFile(filepath.Join(dir, "worker.json"))
	if err != nil || json.Unmarshal(data, &record) != nil || record.Cgroup == "" {
		t.Fatalf("the record has no control group: %s, %v", data, err)
	}
	if err := s.Stop(t.Context(), "worker"); err != nil || alive(pid) {
		t.Fatal(err)
	}
	if _, err := os.Stat(record.Cgroup); !os.IsNotExist(err) {
		t.Errorf("control group %s is left: %v", record.Cgroup, err)
	}
	end()
	lost := record.Cgroup + "lost"
	if err := os.Mkdir(lost, 0o755); err != nil {
		t.Fatal(err)
	}
	stray := leader(t)
	if err := os.WriteFile(filepath.Join(lost, "cgroup.procs"), []byte(strconv.Itoa(stray)), 0); err != nil {
		t.Fatal(err)
	}
	supervisor(t, dir)
	eventually(t, "what was in an unknown group ended", func() bool { return !alive(stray) })
	eventually(t, "the group is gone", func() bool { _, err := os.Stat(lost); return os.IsNotExist(err) })
}

// TestASupervisorThatDiesBeforeTheStartLeavesNoGroup has a record and a group of a process that was never started.
func TestASupervisorThatDiesBeforeTheStartLeavesNoGroup(t *testing.T) {
	dir := t.TempDir()
	groups := cgroup.Find(dir)
	if !groups.Usable() {
		t.Skip("no writable control groups here")
	}
	sp := waiting(dir)
	sp.Once, sp.Name, sp.Pool = true, "pool.worker", "pool"
	group, err := groups.Make(cgroup.Pool{Name: sp.Pool}, "a-mark", cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	recordAs(t, dir, 0, 0)
	data, err := os.ReadFile(filepath.Join(dir, "worker.json"))
	if err != nil {
		t.Fatal(err)
	}
	record := strings.Replace(string(data), `"of-another-start"`, fmt.Sprintf(`"a-mark", "once": true, "cgroup": %q`,
		group.Path), 1)
	rewrite(t, filepath.Join(dir, sp.Name+".json"), record)
	if err := os.Remove(filepath.Join(dir, "worker.json")); err != nil {
		t.Fatal(err)
	}
	s, _ := supervisor(t, dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the group is gone", func() bool { _, err := os.Stat(group.Path); return os.IsNotExist(err) })
	if err := s.Stop(t.Context(), sp.Name); err != nil {
		t.Fatal(err)
	}
	if err := s.EndPool(sp.Pool); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(group.Path))); !os.IsNotExist(err) {
		t.Errorf("the group of the pools is left: %v", err)
	}
}

func TestAProcessOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as other users")
	}
	const uid = 1_999_999_001
	for _, cgroups := range []bool{true, false} {
		t.Run(fmt.Sprintf("control groups %v", cgroups), func(t *testing.T) {
			dir := t.TempDir()
			secret := filepath.Join(dir, "secret")
			rewrite(t, secret, "the secret")
			begin := func() (*process.Supervisor, func()) {
				s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
				if !cgroups {
					s.WithoutCgroups()
				}
				return run(t, dir, s)
			}
			s, end := begin()
			sp := process.Spec{
				Name: "other", Path: "/bin/sh", OnlyEnv: true, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/",
				LogFile: filepath.Join(dir, "other.log"),
				Args: []string{"-c", `id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; cat ` + secret +
					` <&- ; echo again >>/dev/stdout; echo 7 >&3; read line <&4; echo "$line"; exec sleep 1000`},
				User:  &process.User{UID: uid, GID: uid},
				Files: []process.File{{Path: filepath.Join(dir, "written"), Write: true}, {Path: secret}},
			}
			if err := s.Ensure(sp); err != nil {
				t.Fatal(err)
			}
			pid := running(t, s, "other", 0)
			eventually(t, "it said everything", func() bool {
				data, _ := os.ReadFile(sp.LogFile)
				return strings.Contains(string(data), "the secret\n")
			})
			data, err := os.ReadFile(sp.LogFile)
			if err != nil {
				t.Fatal(err)
			}
			id := strconv.Itoa(uid)
			if want := id + "\n" + id + "\n" + id + "\nNoNewPrivs:\t1\n"; !strings.HasPrefix(string(data), want) ||
				!strings.Contains(string(data), "Permission denied") || !strings.Contains(string(data), "again\n") {
				t.Errorf("it said:\n%s", data)
			}
			if data, err := os.ReadFile(filepath.Join(dir, "written")); err != nil || string(data) != "7\n" {
				t.Errorf("written: %q, %v", data, err)
			}
			end()
			s, _ = begin()
			if err := s.Ensure(sp); err != nil {
				t.Fatal(err)
			}
			if again := running(t, s, "other", 0); again != pid {
				t.Errorf("process %d was not taken over: %d runs", pid, again)
			}
			if err := (process.Users{First: uid, Count: 1}).Kill(); err != nil {
				t.Fatal(err)
			}
			running(t, s, "other", pid)
			if err := s.Stop(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// While a process replaces its program, it shows no environment, or the end of it is not yet known. It is taken over
// all the same, and not started again.
func TestAProcessThatReplacesItsProgramIsTakenOver(t *testing.T) {
	for name, env := range map[string][]string{
		"again and again":              nil,
		"with much in its environment": {"A=" + strings.Repeat("a", 100<<10), "Z=" + strings.Repeat("z", 100<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := filepath.Join(dir, "script")
			rewrite(t, script, "exec /bin/sh "+script+"\n")
			sp := process.Spec{
				Name: "again", Path: "/bin/sh", Args: []string{script}, Env: env, LogFile: filepath.Join(dir, "log"),
			}
			pid := 0
			for range 40 {
				s := process.NewSupervisor(dir, slog.New(slog.DiscardHandler))
				s.WithoutCgroups()
				_, end := run(t, dir, s)
				if err := s.Ensure(sp); err != nil {
					t.Fatal(err)
				}
				is := running(t, s, "again", 0)
				if pid != 0 && is != pid {
					t.Fatalf("process %d was not taken over: %d runs", pid, is)
				}
				pid = is
				end()
			}
		})
	}
}

// run runs a supervisor of dir until the returned function is called; what it leaves is ended with the test.
func run(t testing.TB, dir string, s *process.Supervisor) (*process.Supervisor, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}
	t.Cleanup(func() { end(); stopAll(t, dir) })
	select {
	case <-s.Active():
	case err := <-done:
		t.Fatal(err)
	}
	return s, end
}

// TestAMarkerUnderAnotherUserIsNotTakenOver has a process of another user, such as a pod, carry all that marks a
// supervised one which lost its record.
func TestAMarkerUnderAnotherUserIsNotTakenOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as other users")
	}
	dir := t.TempDir()
	sp := waiting(dir)
	const uid = 1_999_999_002
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Env = process.Markers(dir, sp, "any")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(cmd, &process.User{UID: uid, GID: uid}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s, _ := supervisor(t, dir)
	if err := s.Ensure(sp); err != nil {
		t.Fatal(err)
	}
	running(t, s, "worker", cmd.Process.Pid)
}
