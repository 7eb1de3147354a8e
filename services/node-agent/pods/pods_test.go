package pods

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// forever is a script that ends at once when it is asked to.
const forever = `trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.05; done`

func TestAPodRunsAndIsRemoved(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := sh("a", `echo "$WHO at $POD_IP in $WINDLASS_VOLUME_MY_DATA says $0 $1 $(`+`printf x); "; echo err >&2; `+forever)
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "my-data", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
	main := p.GetSpec().GetContainers()[0]
	main.Env = []*schedulingv1.EnvVar{
		{Name: "NAME", ValueFrom: &schedulingv1.EnvVarSource{FieldRef: &schedulingv1.ObjectFieldSelector{
			FieldPath: "metadata.name",
		}}},
		{Name: "POD_IP", ValueFrom: &schedulingv1.EnvVarSource{FieldRef: &schedulingv1.ObjectFieldSelector{
			FieldPath: "status.podIP",
		}}},
		{Name: "WHO", Value: new("pod $(NAME)")},
	}
	main.Args = []string{"$(WHO)", "$$(WHO)"}
	main.VolumeMounts = []*schedulingv1.VolumeMount{{Name: "my-data", MountPath: "/data"}}
	c.add(p)
	st := c.await("a", "is ready", ready)
	if st.GetPodIp() != "127.0.0.1" || st.GetStartTime() == nil || st.GetPhase() != "Running" {
		t.Errorf("status %v", st)
	}
	volume := m.path("pods/uid-a/volumes/my-data")
	want := []string{"err\n", "pod a at 127.0.0.1 in " + volume + " says pod a $(WHO) x; \n", "up\n"}
	eventually(t, "the log is complete", func() bool { // in the order in which the two streams were read
		return slices.Equal(slices.Sorted(strings.Lines(c.log("a", &schedulingv1.GetPodLogRequest{}))), want)
	})
	if _, err := os.Stat(volume); err != nil {
		t.Error(err)
	}
	c.remove("a", 30)
	c.awaitGone("a")
	eventually(t, "nothing is left", func() bool {
		_, err := os.Stat(m.path("pods/uid-a"))
		return errors.Is(err, os.ErrNotExist) && len(m.processes()) == 0
	})
	if names, err := process.NewSupervisor(m.path("run"), nil).Recorded(); err != nil ||
		!slices.Equal(names, []string{loggerProcess}) {
		t.Errorf("records %v, %v", names, err)
	}
}

func TestHowContainersEndDecidesOnThePod(t *testing.T) {
	for _, tc := range []struct {
		name, policy, script, phase string
		code                        int32
		restarts                    bool
	}{
		{"never-well", "Never", "exit 0", "Succeeded", 0, false},
		{"never-badly", "Never", "exit 3", "Failed", 3, false},
		{"never-killed", "Never", "kill -9 $$$$", "Failed", 137, false},
		{"failure-well", "OnFailure", "exit 0", "Succeeded", 0, false},
		{"failure-twice", "OnFailure", `test -e once && exit 0; echo >once; exit 4`, "Succeeded", 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			newMachine(t, c).run()
			p := sh("a", tc.script)
			p.Spec.RestartPolicy = tc.policy
			c.add(p)
			st := c.await("a", tc.phase, phase(tc.phase))
			got := st.GetContainerStatuses()[0]
			if e := got.GetState().GetTerminated(); e.GetExitCode() != tc.code || (tc.code == 137) != (e.GetSignal() == 9) ||
				(got.GetRestartCount() > 0) != tc.restarts {
				t.Errorf("container %v", got)
			}
		})
	}
}

func TestACrashingContainerIsHeldBack(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(sh("a", "echo try; exit 1"))
	st := c.await("a", "backs off", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "CrashLoopBackOff" && cs[0].GetRestartCount() == 1
	})
	got := st.GetContainerStatuses()[0]
	if got.GetLastState().GetTerminated().GetExitCode() != 1 || st.GetPhase() != "Running" || ready(st) {
		t.Errorf("status %v", st)
	}
	if prev := c.log("a", &schedulingv1.GetPodLogRequest{Previous: true}); prev != "try\n" {
		t.Errorf("previous log %q", prev)
	}
}

func TestInitContainersRunFirstAndInOrder(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	p := sh("a", forever)
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
	mount := []*schedulingv1.VolumeMount{{Name: "v", MountPath: "/v"}}
	p.Spec.InitContainers = []*schedulingv1.Container{
		{Name: "one", Command: []string{"sh", "-c", `sleep 0.1; echo one >>"$WINDLASS_VOLUME_V/f"`}, VolumeMounts: mount},
		{Name: "two", Command: []string{"sh", "-c", `echo two >>"$WINDLASS_VOLUME_V/f"`}, VolumeMounts: mount},
	}
	p.Spec.Containers[0].Command = []string{"sh", "-c", `cat "$WINDLASS_VOLUME_V/f"; ` + forever}
	p.Spec.Containers[0].VolumeMounts = mount
	c.add(p)
	c.await("a", "is ready", ready)
	eventually(t, "the log is complete",
		func() bool { return c.log("a", &schedulingv1.GetPodLogRequest{}) == "one\ntwo\nup\n" })

	bad := sh("b", forever)
	bad.Spec.RestartPolicy = "Never"
	bad.Spec.InitContainers = []*schedulingv1.Container{{Name: "one", Command: []string{"sh", "-c", "exit 5"}}}
	c.add(bad)
	st := c.await("b", "failed", phase("Failed"))
	if st.GetContainerStatuses()[0].GetState().GetWaiting() == nil {
		t.Errorf("status %v", st)
	}
}

func TestTheGraceIsKeptAndThenNoLonger(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	// The container's own child ignores SIGTERM, too: the whole group ends.
	c.add(sh("stubborn", `trap "" TERM; sleep 1000 & echo up; while :; do sleep 0.05; done`))
	c.add(sh("tidy", forever))
	c.await("stubborn", "is ready", ready)
	c.await("tidy", "is ready", ready)
	eventually(t, "both are up", func() bool {
		return c.log("stubborn", &schedulingv1.GetPodLogRequest{}) == "up\n" &&
			c.log("tidy", &schedulingv1.GetPodLogRequest{}) == "up\n"
	})
	began := time.Now()
	c.remove("tidy", 1)
	c.remove("stubborn", 1)
	c.awaitGone("tidy")
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("the tidy one took %v", took)
	}
	c.awaitGone("stubborn")
	if took := time.Since(began); took < time.Second || took > 4*time.Second {
		t.Errorf("the stubborn one took %v, want its grace of 1 s", took)
	}
	c.add(sh("stubborn2", `trap "" TERM; echo up; while :; do sleep 0.05; done`))
	c.await("stubborn2", "is ready", ready)
	began = time.Now()
	c.remove("stubborn2", 0)
	c.awaitGone("stubborn2")
	if took := time.Since(began); took > 900*time.Millisecond {
		t.Errorf("without grace it took %v", took)
	}
}

func TestADeadlineEndsAPod(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	p := sh("a", forever)
	p.Spec.ActiveDeadlineSeconds = new(int32(1))
	c.add(p)
	st := c.await("a", "failed and ended", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return st.GetPhase() == "Failed" && len(cs) == 1 && cs[0].GetState().GetTerminated() != nil
	})
	if st.GetReason() != "DeadlineExceeded" {
		t.Errorf("status %v", st)
	}
}

func TestAPodThatSomebodyElseFailedEnds(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	c.mu.Lock()
	st := c.pods["a"]
	st.Status = &schedulingv1.PodStatus{Phase: new("Failed"), Reason: new("Evicted")}
	c.changed("MODIFIED", st)
	c.mu.Unlock()
	eventually(t, "nothing runs", func() bool { return len(m.processes()) == 0 })
	got := c.await("a", "is reported", func(st *schedulingv1.PodStatus) bool {
		return len(st.GetContainerStatuses()) == 1 && st.GetContainerStatuses()[0].GetState().GetTerminated() != nil
	})
	if got.GetPhase() != "Failed" || got.GetReason() != "Evicted" {
		t.Errorf("status %v", got)
	}
}

func TestAPodThatWasTakenForLostSaysThatItIsReady(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	c.add(sh("a", forever))
	st := c.await("a", "is ready", ready)
	c.mu.Lock()
	i := slices.IndexFunc(st.GetConditions(), func(c *schedulingv1.PodCondition) bool { return c.GetType() == "Ready" })
	st.Conditions[i] = &schedulingv1.PodCondition{Type: "Ready", Status: "False", Reason: new(placement.NodeNotReady)}
	c.pods["a"].Status = st
	c.changed("MODIFIED", c.pods["a"])
	c.mu.Unlock()
	c.await("a", "is ready again", ready)
}

func TestTheNextAgentGoesOn(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(sh("stays", forever))
	c.add(sh("vanishes", forever))
	ends := sh("ends", `while ! test -e go; do sleep 0.02; done; exit 7`)
	ends.Spec.RestartPolicy = "Never"
	c.add(ends)
	for _, name := range []string{"stays", "vanishes", "ends"} {
		c.await(name, "is ready", ready)
	}
	before := m.processes()
	stop()

	// While no agent is there, one container ends and one pod is deleted.
	if err := os.WriteFile(m.path("pods/uid-ends/containers/main/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one ended", func() bool { return len(m.processes()) == 2 })
	c.drop("vanishes")

	m.run()
	st := c.await("ends", "failed", phase("Failed"))
	if e := st.GetContainerStatuses()[0].GetState().GetTerminated(); e.GetExitCode() != 7 {
		t.Errorf("ended %v, want exit code 7", e)
	}
	eventually(t, "what was deleted in the meantime is gone", func() bool {
		_, err := os.Stat(m.path("pods/uid-vanishes"))
		return errors.Is(err, os.ErrNotExist) && len(m.processes()) == 1
	})
	if after := m.processes(); after["stays.main"] != before["stays.main"] || after["stays.main"] == 0 {
		t.Errorf("processes %v, before %v", after, before)
	}
	// An exit that the second agent sees of a process that is not its child is known, too.
	if st := c.status("stays"); st.GetContainerStatuses()[0].GetRestartCount() != 0 || !ready(st) {
		t.Errorf("status %v", st)
	}
	if got := c.log("stays", &schedulingv1.GetPodLogRequest{}); strings.Count(got, "up\n") != 1 {
		t.Errorf("log %q: it was started twice", got)
	}
	c.remove("stays", 5)
	c.awaitGone("stays")
}

func TestAnotherBootStartsThePodsAnew(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(sh("a", `trap "" TERM; while :; do sleep 0.05; done`))
	once := sh("b", forever)
	once.Spec.RestartPolicy = "Never"
	c.add(once)
	c.await("a", "is ready", ready)
	c.await("b", "is ready", ready)
	before := m.processes()
	stop()
	if err := process.KillAll(t.Context(), m.path("run")); err != nil {
		t.Fatal(err)
	}
	m.boot = "boot-2"
	m.run()
	st := c.await("a", "runs again", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return ready(st) && cs[0].GetRestartCount() == 1
	})
	if st.GetContainerStatuses()[0].GetLastState().GetTerminated().GetReason() != "ContainerStatusUnknown" ||
		m.processes()["a.main"] == before["a.main"] {
		t.Errorf("status %v", st)
	}
	c.await("b", "failed", phase("Failed"))
}

func TestAHaltEndsEverything(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	a := m.start()
	c.add(sh("a", `trap "" TERM; while :; do sleep 0.05; done`))
	c.add(sh("b", forever))
	c.await("a", "is ready", ready)
	c.await("b", "is ready", ready)
	a.halt(200 * time.Millisecond)
	if left := m.processes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestADirectoryThatWasLostIsMadeAnew(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(sh("a", forever))
	c.await("a", "is ready", ready)
	stop()
	if err := os.RemoveAll(m.path("pods/uid-a")); err != nil {
		t.Fatal(err)
	}
	m.run()
	c.await("a", "was started again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
	})
	if n := len(m.processes()); n != 1 {
		t.Errorf("%d processes", n)
	}
}

func TestAPodThatDoesNotFitIsRefused(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	needs := func(name, resource, amount string) *schedulingv1.Pod {
		p := sh(name, forever)
		p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{
			Requests: map[string]*structpb.Value{resource: structpb.NewStringValue(amount)},
		}
		return p
	}
	first := needs("first", "cpu", "1500m")
	first.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	c.add(first)
	c.await("first", "is ready", ready)
	port := sh("port", forever)
	port.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{ContainerPort: 8080, HostPort: 80}}
	selector := sh("selector", forever)
	selector.Spec.NodeSelector = map[string]string{"disk": "fast"}
	for _, tc := range []struct {
		pod    *schedulingv1.Pod
		reason string
	}{
		{needs("cpu", "cpu", "600m"), "OutOfcpu"},
		{needs("memory", "memory", "2Gi"), "OutOfmemory"},
		{port, "HostPort"},
		{selector, "NodeAffinity"},
	} {
		c.add(tc.pod)
		st := c.await(tc.pod.GetMetadata().GetName(), "is refused", phase("Failed"))
		if st.GetReason() != tc.reason || st.GetMessage() == "" || len(st.GetContainerStatuses()) > 0 {
			t.Errorf("status %v, want %s", st, tc.reason)
		}
	}
	m.mu.Lock()
	m.node.Metadata.Labels["disk"] = "fast" // as it is now, not as it was at the registration
	m.mu.Unlock()
	again := sh("selector2", forever)
	again.Spec.NodeSelector = selector.GetSpec().GetNodeSelector()
	c.add(again)
	c.await("selector2", "is ready", ready)
	// What a pod held is free when it is gone.
	c.remove("first", 5)
	c.awaitGone("first")
	c.add(needs("cpu2", "cpu", "600m"))
	c.await("cpu2", "is ready", ready)
}

func TestLogsAreFollowed(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := sh("a", `for i in 1 2 3; do echo line $i; done; while ! test -e go; do sleep 0.02; done; echo last; exit 0`)
	p.Spec.RestartPolicy = "Never"
	c.add(p)
	c.await("a", "is ready", ready)
	eventually(t, "three lines", func() bool {
		return strings.Count(c.log("a", &schedulingv1.GetPodLogRequest{}),
			"\n") == 3
	})
	if got := c.log("a", &schedulingv1.GetPodLogRequest{TailLines: new(int32(2))}); got != "line 2\nline 3\n" {
		t.Errorf("tail %q", got)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{TailLines: new(int32(0))}); got != "" {
		t.Errorf("tail of none %q", got)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{SinceSeconds: new(int32(1000))}); strings.Count(got, "\n") != 3 {
		t.Errorf("since the beginning %q", got)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{
		SinceTime: timestamppb.New(time.Now().Add(time.Hour)),
	}); got != "" {
		t.Errorf("since later %q", got)
	}
	if got := c.log("a", &schedulingv1.GetPodLogRequest{LimitBytes: new(int32(8))}); got != "line 1\nl" {
		t.Errorf("eight bytes %q", got)
	}
	timed := c.log("a", &schedulingv1.GetPodLogRequest{Timestamps: true, TailLines: new(int32(1))})
	at, text, _ := strings.Cut(timed, " ")
	if when, err := time.Parse(time.RFC3339Nano, at); err != nil || time.Since(when) > time.Hour || text != "line 3\n" {
		t.Errorf("with its time %q: %v", timed, err)
	}
	for what, r := range map[string]*schedulingv1.GetPodLogRequest{
		"no earlier start": {Previous: true}, "no such container": {Container: "x"},
	} {
		if got := c.log("a", r); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%s: %q", what, got)
		}
	}
	out,
		_ := c.request(&schedulingv1.AttendResponse{Name: "a", Log: &schedulingv1.GetPodLogRequest{
		Follow: true, TailLines: new(int32(1)),
	}})
	if first := <-out; string(first.GetStdout()) != "line 3\n" {
		t.Errorf("first %q", first.GetStdout())
	}
	if err := os.WriteFile(m.path("pods/uid-a/containers/main/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if rest, _, last := whole(t, out); rest != "last\n" || last.GetError() != "" {
		t.Errorf("rest %q, last %v", rest, last)
	}
}

func TestEachStartOfAContainerIsAProcessOfItsOwn(t *testing.T) {
	l := launch{command: []string{"/bin/true"}}
	shim := []string{"/shim", "run"}
	if first, second := l.spec("a", "/x", 1, shim), l.spec("a", "/x", 2, shim); first.Serial == second.Serial {
		t.Errorf("serial %d twice: the second start would count as the first, which has ended", first.Serial)
	}
}

// A program that the kernel does not run has not started, and what the kernel said is there to read.
func TestAProgramThatDoesNotStart(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	program := m.path("broken")
	if err := os.WriteFile(program, []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for at := m.dir; at != "/"; at = filepath.Dir(at) { // the pod's user passes
		if info, err := os.Stat(at); err != nil || info.Mode().Perm()&1 == 0 {
			if err := os.Chmod(at, 0o711); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := sh("a", "")
	p.Spec.RestartPolicy, p.Spec.Containers[0].Command = "Never", []string{program}
	c.add(p)
	st := c.await("a", "failed", phase("Failed"))
	if e := st.GetContainerStatuses()[0].GetState().GetTerminated(); e.GetReason() != plan.StartError ||
		e.GetExitCode() != 128 || !strings.Contains(e.GetMessage(), "exec "+program+": exec format error") {
		t.Errorf("ended %v", e)
	}
}

func TestCommandsRunBesideAContainer(t *testing.T) {
	c := newCluster(t)
	newMachine(t, c).run()
	p := sh("a", forever)
	p.Spec.Containers[0].Env = []*schedulingv1.EnvVar{{Name: "GREETING", Value: new("hello")}}
	c.add(p)
	c.await("a", "is ready", ready)
	out, in := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"sh", "-c", `echo $GREETING; cat; echo oops >&2; exit 9`}, Stdin: true,
	}})
	in <- &schedulingv1.DeliverResponse{Stdin: []byte("from ")}
	in <- &schedulingv1.DeliverResponse{Stdin: []byte("stdin"), StdinClosed: true}
	stdout, stderr, last := whole(t, out)
	if stdout != "hello\nfrom stdin" || stderr != "oops\n" || last.ExitCode == nil || last.GetExitCode() != 9 {
		t.Errorf("stdout %q, stderr %q, last %v", stdout, stderr, last)
	}
	for what, r := range map[string]*schedulingv1.ExecPodStart{
		"no such program": {Command: []string{"no-such-program"}},
		"nothing":         {},
	} {
		out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Exec: r})
		if _, _, last := whole(t, out); last.GetError() == "" {
			t.Errorf("%s: %v", what, last)
		}
	}
	out,
		_ = c.request(&schedulingv1.AttendResponse{Name: "a", Exec: &schedulingv1.ExecPodStart{
		Command: []string{"sh", "-c", "kill -15 $$"},
	}})
	if _, _, last := whole(t, out); last.GetExitCode() != 143 {
		t.Errorf("last %v", last)
	}
}

func TestAnUnknownImageIsWaitedFor(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := sh("a", "")
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = "example.com/no/such:1", nil
	c.add(p)
	st := c.await("a", "waits", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "ErrImagePull"
	})
	if w := st.GetContainerStatuses()[0].GetState().GetWaiting(); !strings.Contains(w.GetMessage(),
		"example.com/no/such:1") || st.GetPhase() != "Pending" {
		t.Errorf("status %v", st)
	}
	with := sh("b", forever)
	with.Spec.Containers[0].Image = "example.com/no/such:1"
	c.add(with)
	c.await("b", "does not run its command on the host", waitsFor("ErrImagePull"))
	broken := sh("c", "")
	broken.Spec.Containers[0].Command = []string{"/no/such/program"}
	c.add(broken)
	c.await("c", "says what is wrong", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "CreateContainerConfigError"
	})
}

func TestAPodDoesNotRunWithoutItsVolumes(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	for name, without := range map[string]struct {
		volume *schedulingv1.Volume
		says   string
	}{
		"disk": {&schedulingv1.Volume{GcePersistentDisk: &structpb.Struct{}}, `volume "data" is a disk`},
		"nfs":  {&schedulingv1.Volume{Nfs: &structpb.Struct{}}, `volume "data" has a source that this node cannot mount`},
		"csi":  {&schedulingv1.Volume{Csi: &structpb.Struct{}}, `volume "data" has a source that this node cannot mount`},
	} {
		p := sh(name, forever)
		without.volume.Name = "data"
		p.Spec.Volumes = []*schedulingv1.Volume{without.volume}
		p.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "data", MountPath: "/data"}}
		c.add(p)
		c.await(name, "does not run without its volume", func(st *schedulingv1.PodStatus) bool {
			cs := st.GetContainerStatuses()
			return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "CreateContainerConfigError" &&
				strings.Contains(cs[0].GetState().GetWaiting().GetMessage(), without.says)
		})
		c.remove(name, 0)
		c.awaitGone(name)
	}
	empty := sh("empty", `test -d "$WINDLASS_VOLUME_DATA" && `+forever)
	empty.Spec.Volumes = []*schedulingv1.Volume{{Name: "data"}}
	empty.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "data", MountPath: "/data"}}
	c.add(empty)
	c.await("empty", "has an empty directory for a volume without a source", ready)
}

// goProgram is a program that reports where it is, and reads a file and a directory of its image.
const goProgram = `package main

import ("fmt"; "os"; "time"; "os/signal"; "syscall")

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM) // before it reports that it is there
	wd, _ := os.Getwd()
	data, err := os.ReadFile("greeting")
	fmt.Println(os.Args[1:], os.Getenv("FROM_IMAGE"), wd, string(data), err)
	entries, _ := os.ReadDir("data")
	fmt.Println(len(entries))
	select { case <-c: case <-time.After(time.Minute): }
	os.Exit(6)
}
`

func TestAnImageRuns(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(goProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	binary, err := os.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	base := archive(t, file{name: "app/greeting", content: "hello"}, file{name: "app/data/old", content: "x"},
		file{name: "bin/tool", content: string(binary), mode: 0o755})
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(base, types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Entrypoint, config.Config.Cmd = []string{"tool"}, []string{"by", "default"}
	config.Config.Env, config.Config.WorkingDir = []string{"PATH=/bin", "FROM_IMAGE=yes"}, "/app"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	m := newMachine(t, c)
	images, err := layout.Write(m.path("images/example.com/team/tool"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.AppendImage(img,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "v1"})); err != nil {
		t.Fatal(err)
	}
	m.run()
	p := sh("a", "")
	p.Spec.RestartPolicy = "Never"
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "v", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
	p.Spec.Containers[0] = &schedulingv1.Container{
		Name: "main", Image: "example.com/team/tool:v1", VolumeMounts: []*schedulingv1.VolumeMount{
			{Name: "v", MountPath: "/app/data"},
		},
	}
	c.add(p)
	st := c.await("a", "is ready", ready)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := st.GetContainerStatuses()[0]; got.GetImageId() != digest.String() || !strings.HasPrefix(got.GetContainerId(),
		"process://") {
		t.Errorf("container %v", got)
	}
	work := "/app"
	if process.CanMount() != nil {
		work = m.path("pods/uid-a/containers/main/root/app")
	}
	eventually(t, "it reports what it sees", func() bool {
		return c.log("a", &schedulingv1.GetPodLogRequest{}) == "[by default] yes "+work+" hello <nil>\n0\n"
	})
	pid := m.processes()["a.main"]
	if err := syscall.Kill(-pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	st = c.await("a", "failed", phase("Failed"))
	if e := st.GetContainerStatuses()[0].GetState().GetTerminated(); e.GetExitCode() != 6 {
		t.Errorf("ended %v", e)
	}
	other := sh("b", "")
	other.Spec.Containers[0] = &schedulingv1.Container{Name: "main", Image: "example.com/team/tool:v2"}
	c.add(other)
	c.await("b", "has no such tag", func(st *schedulingv1.PodStatus) bool {
		cs := st.GetContainerStatuses()
		return len(cs) == 1 && cs[0].GetState().GetWaiting().GetReason() == "ErrImagePull"
	})
}

func TestAPodLeavesANodeThatIsShortOfMemory(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.memory = 1 << 20
	s, _ := m.run()
	if got := s.Conditions()[0].GetStatus(); got != "False" {
		t.Errorf("MemoryPressure %s before anything runs", got)
	}
	critical := sh("critical", forever)
	critical.Spec.Priority = new(int32(2_000_000_000))
	c.add(critical)
	c.add(sh("a", `trap "" TERM; sleep 1000 & wait; wait`))
	c.await("a", "is ready", ready)
	c.await("critical", "is ready", ready)
	eventually(t, "the shortage is seen", func() bool {
		s.look(t.Context())
		return s.Conditions()[0].GetStatus() == "True"
	})
	st := c.await("a", "was evicted", phase("Failed"))
	if st.GetReason() != plan.Evicted || !strings.Contains(st.GetMessage(), "low on resource: memory") {
		t.Errorf("status %v", st)
	}
	eventually(t, "its processes were killed though they ignore SIGTERM", func() bool {
		return len(m.processes()) == 1
	})
	s.look(t.Context())
	if got := c.status("critical"); got.GetPhase() != "Running" {
		t.Errorf("the critical pod is %v", got)
	}
}

func TestAPodThatWritesTooMuchIsEvicted(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	s, _ := m.run()
	filled := sh("filled", `head -c 3000000 /dev/zero >"$WINDLASS_VOLUME_CACHE/file"; `+forever)
	filled.Spec.Volumes = []*schedulingv1.Volume{{
		Name: "cache", EmptyDir: &schedulingv1.EmptyDirVolumeSource{SizeLimit: structpb.NewStringValue("1Mi")},
	}}
	filled.Spec.Containers[0].VolumeMounts = []*schedulingv1.VolumeMount{{Name: "cache", MountPath: "/cache"}}
	bounded := sh("bounded", `head -c 3000000 /dev/zero >file; `+forever)
	modest := sh("modest", `head -c 1000000 /dev/zero >file; `+forever)
	for _, p := range []*schedulingv1.Pod{bounded, modest} {
		p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{
			Limits: map[string]*structpb.Value{"ephemeral-storage": structpb.NewStringValue("2Mi")},
		}
	}
	for _, p := range []*schedulingv1.Pod{filled, bounded, modest} {
		c.add(p)
		c.await(p.GetMetadata().GetName(), "is ready", ready)
	}
	eventually(t, "both have ended", func() bool {
		s.measureDisks(t.Context())
		s.look(t.Context())
		return c.status("filled").GetPhase() == "Failed" && c.status("bounded").GetPhase() == "Failed"
	})
	for name, message := range map[string]string{
		"filled":  `Usage of EmptyDir volume "cache" exceeds the limit "1Mi".`,
		"bounded": `Container main exceeded its local ephemeral storage limit "2Mi".`,
	} {
		if st := c.status(name); st.GetReason() != plan.Evicted || st.GetMessage() != message {
			t.Errorf("%s: %v", name, st)
		}
	}
	if st := c.status("modest"); st.GetPhase() != "Running" {
		t.Errorf("the modest pod is %v", st)
	}
}

func TestWhatPodsUseIsSaid(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	s, _ := m.run()
	c.add(sh("busy", `while :; do :; done`))
	c.add(sh("idle", forever))
	c.await("busy", "is ready", ready)
	c.await("idle", "is ready", ready)
	var got *schedulingv1.NodeMetrics
	eventually(t, "the busy one is seen to use a processor", func() bool {
		s.measureDisks(t.Context())
		s.look(t.Context())
		out, _ := c.request(&schedulingv1.AttendResponse{Metrics: true})
		for d := range out {
			if d.GetMetrics() != nil {
				got = d.GetMetrics()
			}
		}
		i := slices.IndexFunc(got.GetPods(), func(p *schedulingv1.PodMetrics) bool { return p.GetName() == "busy" })
		return i >= 0 && got.GetPods()[i].GetUse().GetMilliCpu() > 50
	})
	sum := int64(0)
	for _, p := range got.GetPods() {
		if u := p.GetUse(); u.GetMemoryBytes() <= 0 || u.GetProcesses() < 1 || u.GetDiskBytes() <= 0 {
			t.Errorf("pod %s uses %v", p.GetName(), u)
		}
		sum += p.GetUse().GetMemoryBytes()
	}
	if len(got.GetPods()) != 2 || got.GetUse().GetMemoryBytes() != sum || got.GetName() != "m-0" {
		t.Errorf("metrics %v", got)
	}
}
