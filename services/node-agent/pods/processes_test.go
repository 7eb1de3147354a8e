package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
)

// fewProcesses is a limit of a pod that the shim of a container, with its threads, and some commands have room in.
const fewProcesses = 40

// bomb starts more processes than a pod may have in a child of the container's shell: a shell that cannot fork ends.
const bomb = `(i=0; while [ $i -lt 120 ]; do sleep 1000 & i=$$((i+1)); done) 2>/dev/null; echo $$$$ >>pids; exec sleep 1000`

func TestAForkBombIsHeldInItsPod(t *testing.T) {
	if err := cgroup.Find(t.TempDir()).CanLimitProcesses(); err != nil {
		t.Skip(err)
	}
	c := newCluster(t)
	m := newMachine(t, c)
	m.processLimit = fewProcesses
	s, _ := m.run()
	c.add(sh("beside", forever))
	c.await("beside", "is ready", ready)
	c.add(sh("a", bomb))
	c.await("a", "is ready", ready)
	pids := m.written("a", 1)
	if got := processesOf(t, s, "a"); got > fewProcesses || got < fewProcesses/2 {
		t.Errorf("the pod has %d processes", got)
	}
	if got := setting(t, pids[0], "pids", "../pids.max", "../pids.max"); got != fmt.Sprint(fewProcesses) {
		t.Errorf("the limit is %s", got)
	}

	// At the limit no command is started in the pod, and its user reads why. One may have got the last place.
	const commands = 3
	said := make(chan string, commands)
	for range commands {
		out, _ := c.request(&schedulingv1.AttendResponse{
			Name: "a", Exec: &schedulingv1.ExecPodStart{Command: []string{"sleep", "1000"}},
		})
		go func() {
			_, _, last := whole(t, out)
			said <- last.GetError()
		}()
	}
	if text := <-said; !strings.Contains(text, "the limit of 40 processes and threads") ||
		!strings.Contains(text, "resource temporarily unavailable") {
		t.Errorf("a command says %q", text)
	}
	if out, text := c.exec("beside", "sh", "-c", "true; echo on"); out != "on\n" || text != "" {
		t.Errorf("a command in the pod beside: %q, %q", out, text)
	}
	for name := range m.processes() {
		if st := c.status(strings.Split(name, ".")[0]); !ready(st) || st.GetContainerStatuses()[0].GetRestartCount() != 0 {
			t.Errorf("%s: %v", name, st)
		}
	}

	c.remove("a", 1)
	m.awaitLess("a", pids)
	for range commands - 1 {
		<-said
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/windlass-*/" + poolOf(processName("uid-a", "main"))); len(left) > 0 {
		for _, at := range left { // of this machine, not of another test's
			if data, _ := os.ReadFile(filepath.Join(at, "pids.max")); strings.TrimSpace(string(data)) == fmt.Sprint(
				fewProcesses) {
				t.Errorf("%s is left", at)
			}
		}
	}
	c.add(sh("next", `for i in 1 2 3; do sleep 1000 & done; echo $$$$ >>pids; wait`))
	c.await("next", "is ready", ready)
	m.written("next", 1)
}

// processesOf returns how many processes a pod has.
func processesOf(t *testing.T, s *Pods, pod string) int {
	t.Helper()
	pool := poolOf(processName("uid-"+pod, "main"))
	uses, err := s.cfg.Supervisor.Uses([]string{pool})
	if err != nil {
		t.Fatal(err)
	}
	return uses[pool].Processes
}

// TestAPodRunsWhereItsProcessesHaveNoLimit is about machines without control groups, and about agents of the version
// before, which knew no such limit.
func TestAPodRunsWhereItsProcessesHaveNoLimit(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	log, err := os.Create(m.path("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.bare, m.log, m.processLimit = true, log, fewProcesses
	_, stop := m.run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	stop()
	data, err := os.ReadFile(log.Name())
	if n := strings.Count(string(data), "pods have no limit of processes"); err != nil || n != 1 {
		t.Errorf("it is logged %d times: %s, %v", n, data, err)
	}

	m.bare, m.processLimit = false, 0
	_, stop = m.run()
	c.add(sh("b", `echo $$$$ >>pids; `+forever))
	c.await("b", "is ready", ready)
	pid := m.written("b", 1)[0]
	stop()
	m.processLimit = fewProcesses
	m.run()
	if out, text := c.exec("b", "echo", "on"); out != "on\n" || text != "" {
		t.Errorf("a command in a pod that was taken over: %q, %q", out, text)
	}
	for _, name := range []string{"a", "b"} {
		if st := c.status(name); !ready(st) || st.GetContainerStatuses()[0].GetRestartCount() != 0 {
			t.Errorf("pod %s: %v", name, st)
		}
	}
	if !alive(pid) {
		t.Error("the pod was started again")
	}
}
