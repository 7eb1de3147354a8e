package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/process"
)

func needLimits(t *testing.T) {
	t.Helper()
	if err := cgroup.Find(t.TempDir()).CanLimit(); err != nil {
		t.Skip(err)
	}
}

func quantities(list ...string) map[string]*structpb.Value {
	out := map[string]*structpb.Value{}
	for i := 0; i < len(list); i += 2 {
		out[list[i]] = structpb.NewStringValue(list[i+1])
	}
	return out
}

// limited gives the pod's container limits.
func limited(p *schedulingv1.Pod, limits ...string) *schedulingv1.Pod {
	p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{Limits: quantities(limits...)}
	return p
}

// eater is a command that takes more memory than there is: this test itself, with a variable.
func (m *machine) eater(p *schedulingv1.Pod, script string) *schedulingv1.Pod {
	m.t.Helper()
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	c.Command = []string{"/bin/sh", "-c", script, self}
	c.Env = []*schedulingv1.EnvVar{{Name: eat, Value: new("1")}}
	if users().Count > 0 { // the test's file is not the pod's user's to run
		data, err := os.ReadFile(self)
		if err != nil {
			m.t.Fatal(err)
		}
		rewritten := filepath.Join(m.dir, "eater")
		if err := os.WriteFile(rewritten, data, 0o755); err != nil {
			m.t.Fatal(err)
		}
		c.Command[3] = rewritten
	}
	return p
}

// eat is the variable that has this test take memory until it ends.
const eat = "PODS_TEST_EAT"

func takeMemory() {
	var all [][]byte
	for range 4096 {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		all = append(all, b)
	}
	fmt.Println(len(all))
}

func terminatedOf(st *schedulingv1.PodStatus, last bool) *schedulingv1.ContainerStateTerminated {
	if len(st.GetContainerStatuses()) == 0 {
		return nil
	}
	if s := st.GetContainerStatuses()[0]; !last {
		return s.GetState().GetTerminated()
	}
	return st.GetContainerStatuses()[0].GetLastState().GetTerminated()
}

func TestAContainerThatTakesTooMuchMemoryIsKilled(t *testing.T) {
	needLimits(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(sh("beside", forever))
	c.await("beside", "is ready", ready)

	once := limited(m.eater(sh("once", ""), `exec "$0"`), "memory", "64Mi")
	once.Spec.RestartPolicy = "Never"
	c.add(once)
	st := c.await("once", "failed", phase("Failed"))
	if e := terminatedOf(st, false); e.GetReason() != "OOMKilled" || e.GetExitCode() != 137 || e.GetSignal() != 9 {
		t.Errorf("ended %v", e)
	}

	// A child that is killed fails its container, if that fails.
	child := limited(m.eater(sh("child", ""), `"$0" || exit 5`), "memory", "64Mi")
	child.Spec.RestartPolicy = "Never"
	c.add(child)
	st = c.await("child", "failed", phase("Failed"))
	if e := terminatedOf(st, false); e.GetReason() != "OOMKilled" || e.GetExitCode() != 5 {
		t.Errorf("ended %v", e)
	}

	c.remove("child", 0)
	c.awaitGone("child")
	c.add(limited(m.eater(sh("again", ""), `test -e once && unset `+eat+` && exec sleep 1000; echo >once; exec "$0"`),
		"memory", "64Mi"))
	st = c.await("again", "runs again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
	})
	if e := terminatedOf(st, true); e.GetReason() != "OOMKilled" || e.GetExitCode() != 137 {
		t.Errorf("ended before %v", e)
	}
	if st := c.status("beside"); !ready(st) || st.GetContainerStatuses()[0].GetRestartCount() != 0 {
		t.Errorf("the pod beside: %v", st)
	}
}

// TestTheNextAgentKnowsThatMemoryWasShort has a container be killed while no agent runs.
func TestTheNextAgentKnowsThatMemoryWasShort(t *testing.T) {
	needLimits(t)
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	p := m.eater(sh("a", ""), `echo $$$$ >>pids; while ! test -e go; do sleep 0.02; done; exec "$0"`)
	limited(p, "memory", "64Mi")
	p.Spec.RestartPolicy = "Never"
	c.add(p)
	c.await("a", "is ready", ready)
	pid := m.written("a", 1)[0]
	stop()
	if err := os.WriteFile(m.path("pods/uid-a/containers/main/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was killed", func() bool { return !alive(pid) && len(m.processes()) == 0 })
	m.run()
	st := c.await("a", "failed", phase("Failed"))
	if e := terminatedOf(st, false); e.GetReason() != "OOMKilled" || e.GetExitCode() != 137 {
		t.Errorf("ended %v", e)
	}
}

// setting returns what a control group's file says about a running process: in the hierarchy of version 1, or in the
// unified one.
func setting(t *testing.T, pid int, controller, file, unified string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, at := range []string{
			filepath.Join("/sys/fs/cgroup", controller, fields[2], file),
			filepath.Join("/sys/fs/cgroup", fields[2], unified),
		} {
			if fields[1] != controller && (fields[1] != "" || !strings.HasSuffix(at, unified)) {
				continue
			}
			if data, err := os.ReadFile(at); err == nil {
				return strings.TrimSpace(string(data))
			}
		}
	}
	t.Fatalf("nothing says %s or %s of\n%s", file, unified, data)
	return ""
}

func TestRequestsAndLimitsAreWritten(t *testing.T) {
	needLimits(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := limited(sh("a", `echo $$$$ >>pids; `+forever), "cpu", "250m", "memory", "100Mi")
	p.Spec.Containers[0].Resources.Requests = quantities("cpu", "100m", "memory", "50Mi")
	c.add(p)
	c.add(limited(sh("b", `echo $$$$ >>pids; `+forever), "cpu", "1"))
	c.add(sh("c", `echo $$$$ >>pids; `+forever))
	for _, name := range []string{"a", "b", "c"} {
		c.await(name, "is ready", ready)
	}
	unified := strings.Contains(setting(t, m.written("c", 1)[0], "cpu", "cpu.shares", "cgroup.controllers"), "cpu")
	for _, tc := range []struct{ pod, controller, file, want, file2, want2 string }{
		{"a", "cpu", "cpu.cfs_quota_us", "25000", "cpu.max", "25000 100000"},
		{"a", "cpu", "cpu.shares", "102", "cpu.weight", "4"},
		{"a", "memory", "memory.limit_in_bytes", strconv.Itoa(100 << 20), "memory.max", strconv.Itoa(100 << 20)},
		{"a", "memory", "memory.soft_limit_in_bytes", strconv.Itoa(50 << 20), "memory.low", strconv.Itoa(50 << 20)},
		{"b", "cpu", "cpu.cfs_quota_us", "100000", "cpu.max", "100000 100000"},
		{"b", "cpu", "cpu.shares", "1024", "cpu.weight", "39"},
		{"c", "cpu", "cpu.cfs_quota_us", "-1", "cpu.max", "max 100000"},
		{"c", "cpu", "cpu.shares", "2", "cpu.weight", "1"},
	} {
		want := tc.want
		if unified {
			want = tc.want2
		}
		if got := setting(t, m.written(tc.pod, 1)[0], tc.controller, tc.file, tc.file2); got != want {
			t.Errorf("%s: %s or %s is %q, want %q", tc.pod, tc.file, tc.file2, got, want)
		}
	}
	// A command that is run in the container has its limits, too.
	out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"cat", "/proc/self/cgroup"},
	}})
	stdout, _, _ := whole(t, out)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", m.written("a", 1)[0]))
	if err != nil || stdout != string(data) {
		t.Errorf("the command is in\n%s, the container in\n%s, %v", stdout, data, err)
	}
	if data, err := os.ReadFile("/proc/self/cgroup"); err != nil || strings.Contains(string(data), "uid-a") {
		t.Errorf("the agent is in\n%s, %v", data, err)
	}
}

// TestLimitsThatCannotBeEnforcedAreRefused is about a machine without control groups.
func TestLimitsThatCannotBeEnforcedAreRefused(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.bare = true
	m.run()
	c.add(limited(sh("a", forever), "memory", "64Mi"))
	st := c.await("a", "is refused", phase("Failed"))
	if st.GetReason() != "LimitsNotEnforceable" || len(st.GetContainerStatuses()) > 0 ||
		!strings.Contains(st.GetMessage(), "spec.containers[0].resources.limits['memory']") {
		t.Errorf("status %v", st)
	}
	requests := sh("b", forever)
	requests.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{Requests: quantities("cpu", "100m")}
	c.add(requests)
	c.await("b", "is ready", ready)
}

func TestNoGroupIsLeftOfAPodWithLimits(t *testing.T) {
	needLimits(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(limited(sh("a", `echo $$$$ >>pids; `+forever), "cpu", "250m", "memory", "100Mi"))
	c.await("a", "is ready", ready)
	pids := m.written("a", 1)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for line := range strings.Lines(string(data)) {
		_, path, _ := strings.Cut(strings.SplitN(strings.TrimSpace(line), ":", 2)[1], ":")
		if strings.Contains(path, "uid-a") {
			found, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", path))
			groups = append(groups, found...)
		}
	}
	if len(groups) == 0 {
		t.Fatalf("no group in\n%s", data)
	}
	c.remove("a", 5)
	m.awaitLess("a", pids)
	for _, g := range groups {
		for _, dir := range []string{g, filepath.Dir(g), filepath.Dir(filepath.Dir(g))} { // of the start, pod and machine
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	}
	if err := process.KillAll(t.Context(), m.path("run")); err != nil {
		t.Error(err)
	}
}

// TestALimitThatNoProcessFitsInHarmsNoOther is about the moment in which a thread of the agent is in the group.
func TestALimitThatNoProcessFitsInHarmsNoOther(t *testing.T) {
	needLimits(t)
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(sh("beside", forever))
	c.await("beside", "is ready", ready)
	for _, limit := range []string{"1", "4Ki", "100Ki", "1Mi"} {
		p := limited(sh("tiny", "exec sleep 1000"), "memory", limit, "cpu", "1m")
		p.Spec.RestartPolicy = "Never"
		p.Metadata.Uid += limit
		c.add(p)
		st := c.await("tiny", "ended or runs", func(st *schedulingv1.PodStatus) bool {
			return st.GetPhase() == "Failed" || ready(st)
		})
		t.Log(limit, st.GetPhase(), terminatedOf(st, false))
		c.remove("tiny", 0)
		eventually(t, "nothing is left", func() bool { return len(m.processes()) == 1 })
		c.drop("tiny")
	}
	if st := c.status("beside"); !ready(st) || st.GetContainerStatuses()[0].GetRestartCount() != 0 {
		t.Errorf("the pod beside: %v", st)
	}
}
