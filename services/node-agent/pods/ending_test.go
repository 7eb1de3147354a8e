package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/process"
)

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(data), ") Z ")
}

// inBothWays runs a test on a machine with control groups, and on one without.
func inBothWays(t *testing.T, test func(t *testing.T, c *cluster, m *machine)) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("control groups %v", !bare), func(t *testing.T) {
			if !bare && !cgroup.Find(t.TempDir()).Usable() {
				t.Skip("no writable control groups here")
			}
			c := newCluster(t)
			m := newMachine(t, c)
			m.bare = bare
			test(t, c, m)
		})
	}
}

// written waits until n pids are in a file of the container's directory, and returns them.
func (m *machine) written(pod string, n int) (pids []int) {
	m.t.Helper()
	eventually(m.t, "the pids are written", func() bool {
		data, _ := os.ReadFile(m.path("pods/uid-" + pod + "/containers/main/work/pids"))
		pids = nil
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
		return len(pids) == n && strings.HasSuffix(string(data), "\n")
	})
	m.t.Cleanup(func() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return pids
}

// awaitLess waits until nothing is on the disk of a pod, and checks that nothing of it runs then.
func (m *machine) awaitLess(pod string, pids []int) {
	m.t.Helper()
	eventually(m.t, "the record of the pod is gone", func() bool {
		_, err := os.Stat(m.path("pods/uid-" + pod))
		return errors.Is(err, os.ErrNotExist)
	})
	for _, pid := range pids {
		if alive(pid) {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			m.t.Errorf("process %d outlives its pod: %q", pid, strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
}

// aLongTime is a grace that no test waits for.
const aLongTime = 3600

func TestNothingOutlivesItsPod(t *testing.T) {
	const stay = `trap "exit 0" TERM; while :; do sleep 0.05; done`
	for name, script := range map[string]string{
		"a child in a session of its own": `setsid sleep 1000 & echo $! >>pids; ` + stay,
		"a command under timeout":         `echo $$$$ >>pids; exec timeout 1000 sh -c 'echo $$$$ >>pids; ` + stay + `'`,
		"a daemon that forks twice": `(setsid sh -c 'sleep 1000 & echo $! >>pids' >/dev/null &) ; (setsid sh -c 'sleep 1000 & echo $! >>pids' &); ` +
			stay,
		"jobs of a shell with job control": `set -m; sleep 1000 & echo $! >>pids; sh -c 'trap "" TERM; ` +
			`echo $$$$ >>pids; exec sleep 1000' & ` + stay,
		"a child without environment": `env -i sleep 1000 & echo $! >>pids; env -i setsid -w sleep 1000 & echo $! >>pids; ` +
			stay,
	} {
		n := strings.Count(script, ">>pids")
		t.Run(name, func(t *testing.T) {
			inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
				m.run()
				c.add(sh("a", script))
				c.await("a", "is ready", ready)
				pids := m.written("a", n)
				// What ignores SIGTERM does not keep a container whose main process ends.
				c.remove("a", aLongTime)
				m.awaitLess("a", pids)
			})
		})
	}
}

func TestWhatIgnoresToEndIsKilledEverywhere(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		m.run()
		const deaf = `trap "" TERM INT HUP; echo $$$$ >>pids; while :; do sleep 0.05; done`
		c.add(sh("a", `setsid sh -c '`+deaf+`' & timeout 1000 sh -c '`+deaf+`' & `+deaf))
		c.await("a", "is ready", ready)
		pids := m.written("a", 3)
		c.remove("a", 1)
		m.awaitLess("a", pids)
	})
}

func TestWhatAContainerLeavesEndsBeforeItStartsAgain(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		m.run()
		c.add(sh("a", `if test -e pids; then `+forever+`; fi; setsid sleep 1000 & echo $! >>pids; exit 3`))
		c.await("a", "runs again", func(st *schedulingv1.PodStatus) bool {
			return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
		})
		if pid := m.written("a", 1)[0]; alive(pid) {
			t.Errorf("process %d of the first start still runs", pid)
		}
	})
}

func TestACommandEndsWithItsContainer(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		m.run()
		c.add(sh("a", forever))
		c.await("a", "is ready", ready)
		out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
			Command: []string{
				"sh", "-c", `trap "" TERM; setsid sleep 1000 & echo $! >>pids; echo $$ >>pids; while :; do sleep 0.05; done`,
			},
		}})
		pids := m.written("a", 2)
		c.remove("a", aLongTime)
		m.awaitLess("a", pids)
		if _, _, last := whole(t, out); last.GetExitCode() != codeKilled {
			t.Errorf("last %v", last)
		}
	})
}

// TestTheNextAgentEndsAll has a container end and another go while no agent runs: the next agent ends what is left of
// both.
func TestTheNextAgentEndsAll(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		_, stop := m.run()
		for _, name := range []string{"ends", "goes"} {
			p := sh(name, `setsid sleep 1000 & echo $! >>pids; echo $$$$ >>pids; while ! test -e go; do sleep 0.02; done`)
			p.Spec.RestartPolicy = "Never"
			c.add(p)
			c.await(name, "is ready", ready)
		}
		ends, goes := m.written("ends", 2), m.written("goes", 2)
		stop()
		if err := os.WriteFile(m.path("pods/uid-ends/containers/main/work/go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "one ended", func() bool { return !alive(ends[1]) })
		c.drop("goes")
		m.run()
		st := c.await("ends", "succeeded", phase("Succeeded"))
		if alive(ends[0]) {
			t.Errorf("process %d outlives its container: %v", ends[0], st)
		}
		m.awaitLess("goes", goes)
	})
}

// TestAMachineThatIsErasedKeepsNoProcess kills the agent and then what is in its directory, as the provider does.
func TestAMachineThatIsErasedKeepsNoProcess(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		_, stop := m.run()
		c.add(sh("a", `setsid sleep 1000 & echo $! >>pids; env -i setsid -w sleep 1000 & echo $! >>pids; `+forever))
		c.await("a", "is ready", ready)
		pids := m.written("a", 2)
		stop()
		if !m.bare { // a group whose process was never started, or lost its record
			at := filepath.Join("/proc", strconv.Itoa(m.processes()["a.main"]), "cgroup")
			if data, err := os.ReadFile(at); err != nil || !strings.Contains(string(data), "/pod.uid-a/") {
				t.Errorf("the container is in %s, %v", data, err)
			}
		}
		if err := process.KillAll(t.Context(), m.path("run")); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("process %d outlives its machine", pid)
			}
		}
	})
}
