package pods

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/critest"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// luck is a machine with a container runtime that fails.
type luck struct {
	bench
	containerd *critest.Containerd
}

func unlucky(t *testing.T, scenarios map[string]func(*testing.T, luck)) {
	t.Helper()
	needIsolation(t)
	containerd, h := critest.Start(t), distributionHub(t)
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) { scenario(t, luck{newBench(t, h, containerd.Endpoint), containerd}) })
	}
}

func TestUnluckyOperator(t *testing.T) {
	unlucky(t, map[string]func(*testing.T, luck){
		"agents and the runtime end at any moment":           endsAtAnyMoment,
		"a container is removed behind its back":             containerRemoved,
		"a sandbox is removed behind its back":               sandboxRemoved,
		"an image is removed behind its back":                imageRemoved,
		"a reboot with containers still there":               rebootWithContainers,
		"from processes to the runtime":                      fromProcesses,
		"the disk is full":                                   diskFull,
		"the runtime is down as an ended pod's sandbox goes": sandboxOfEndedPod,
		"a pod is deleted while its image is pulled":         deletedWhilePulled,
		"the runtime is frozen as a pod ends":                frozenAtEnd,
		"a stop of the cluster":                              stopOfCluster,
		"from an ended runtime to processes":                 toProcesses,
		"a command whose name is an error":                   commandLikeError,
	})
}

// once returns a pod that never restarts and notes each run in its volume.
func (b bench) once(name, script string) *schedulingv1.Pod {
	p := withEmptyDir(b.pod(name, "echo run >>/v/runs; "+script), "/v")
	p.Spec.RestartPolicy = "Never"
	p.Spec.TerminationGracePeriodSeconds = new(int32(0))
	return p
}

func (b bench) runs(name string) int {
	text, _ := os.ReadFile(b.machine.path("pods/uid-" + name + "/volumes/v/runs"))
	return strings.Count(string(text), "run")
}

func over(st *schedulingv1.PodStatus) bool {
	return st.GetPhase() == "Failed" || st.GetPhase() == "Succeeded"
}

func endsAtAnyMoment(t *testing.T, l luck) {
	for i := range 12 {
		name := fmt.Sprintf("a%d", i)
		a := l.machine.start()
		l.cluster.add(l.once(name, "sleep 0.3; exit 0"))
		for range 3 {
			time.Sleep(rand.N(400 * time.Millisecond))
			a.stop()
			if i%2 == 1 {
				l.containerd.Kill()
				l.containerd.Restart()
			}
			a = l.machine.start()
		}
		st := l.cluster.await(name, "is over", over)
		got := st.GetContainerStatuses()[0]
		if n := l.runs(name); n > 1 || n == 0 && st.GetPhase() == "Succeeded" || got.GetRestartCount() > 0 {
			t.Errorf("%s ran %d times: %v", name, n, st)
		} else {
			t.Log(name, n, st.GetPhase(), got.GetState())
		}
		l.cluster.remove(name, 0)
		l.cluster.awaitGone(name)
		l.nothingIsLeftOf(name)
		a.stop()
	}
}

func (l luck) nothingIsLeftOf(name string) {
	l.t.Helper()
	eventually(l.t, "nothing is left of "+name, func() bool {
		_, err := os.Stat(l.machine.path("pods/uid-" + name))
		_, held := os.Stat(heldDir(l.machine.path("pods")) + "/uid-" + name)
		return errors.Is(err, os.ErrNotExist) && errors.Is(held, os.ErrNotExist) && len(l.machine.containers()) == 0
	})
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, l.machine.path("pods/uid-"+name)) ||
			strings.Contains(line, heldDir(l.machine.path("pods"))) {
			l.t.Errorf("mounted: %s", line)
		}
	}
}

func containerRemoved(t *testing.T, l luck) {
	l.machine.run()
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.add(l.pod("always", "exec sleep 1000"))
	l.cluster.await("never", "runs", ready)
	l.cluster.await("always", "runs", ready)
	list, err := l.containerd.CRI().ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetContainers() {
		if _, err := l.containerd.CRI().RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{
			ContainerId: c.GetId(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	st := l.cluster.await("never", "is over", over)
	t.Log(st)
	if n := l.runs("never"); n != 1 {
		t.Errorf("ran %d times", n)
	}
	st = l.cluster.await("always", "runs again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
	})
	t.Log(st.GetContainerStatuses())
}

func sandboxRemoved(t *testing.T, l luck) {
	l.machine.run()
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.add(l.pod("always", "exec sleep 1000"))
	l.cluster.await("never", "runs", ready)
	l.cluster.await("always", "runs", ready)
	list, err := l.containerd.CRI().ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetItems() {
		// The agent may start the container again in the sandbox that is being removed.
		eventually(t, "the sandbox is removed", func() bool {
			_, err := l.containerd.CRI().RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{
				PodSandboxId: c.GetId(),
			})
			return err == nil
		})
	}
	t.Log(l.cluster.await("never", "is over", over).GetContainerStatuses())
	if n := l.runs("never"); n != 1 {
		t.Errorf("ran %d times", n)
	}
	st := l.cluster.await("always", "runs again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() >= 1
	})
	t.Log(st.GetContainerStatuses())
	l.cluster.remove("never", 0)
	l.cluster.remove("always", 0)
	l.cluster.awaitGone("never")
	l.cluster.awaitGone("always")
	l.nothingIsLeft()
}

func imageRemoved(t *testing.T, l luck) {
	l.machine.run()
	p := withEmptyDir(
		l.pod("a",
			"while ! test -e /v/go; do sleep 0.05; done; test -e /v/done || { echo >/v/done; exit 1; }; exec sleep 1000"), "/v")
	l.cluster.add(p)
	st := l.cluster.await("a", "runs", ready)
	images := runtimeapi.NewImageServiceClient(l.containerd.Conn())
	if _, err := images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{
		Image: &runtimeapi.ImageSpec{Image: st.GetContainerStatuses()[0].GetImageId()},
	}); err != nil {
		t.Log(err)
	}
	list, err := images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.GetImages() {
		t.Log(i.GetId(), i.GetRepoDigests(), i.GetRepoTags())
		if len(i.GetRepoDigests()) > 0 && strings.Contains(i.GetRepoDigests()[0], "distribution") {
			if _, err := images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{
				Image: &runtimeapi.ImageSpec{Image: i.GetId()},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(l.machine.path("pods/uid-a/volumes/v/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	st = l.cluster.await("a", "runs again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() > 0
	})
	t.Log(st.GetContainerStatuses())
	if n := st.GetContainerStatuses()[0].GetRestartCount(); n != 1 {
		t.Errorf("%d restarts: %v", n, st.GetContainerStatuses())
	}
}

func rebootWithContainers(t *testing.T, l luck) {
	a := l.machine.start()
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.add(withEmptyDir(l.pod("always", "echo run >>/v/runs; exec sleep 1000"), "/v"))
	l.cluster.await("never", "runs", ready)
	l.cluster.await("always", "runs", ready)
	a.stop()
	l.machine.boot = "boot-2"
	l.machine.run()
	t.Log(l.cluster.await("never", "is over", over).GetContainerStatuses())
	st := l.cluster.await("always", "runs again", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && st.GetContainerStatuses()[0].GetRestartCount() == 1
	})
	t.Log(st.GetContainerStatuses())
	if l.runs("never") != 1 || l.runs("always") != 2 {
		t.Errorf("never ran %d times, always %d", l.runs("never"), l.runs("always"))
	}
	eventually(t, "one container is there", func() bool { return len(l.machine.containers()) == 1 })
}

func fromProcesses(t *testing.T, l luck) {
	endpoint := l.machine.runtime
	l.machine.runtime = ""
	a := l.machine.start()
	p := withEmptyDir(l.pod("a", "echo run >>/v/runs; while ! test -e /v/go; do sleep 0.05; done; rm /v/go; exit 1"), "/v")
	l.cluster.add(p)
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.await("a", "runs", ready)
	l.cluster.await("never", "runs", ready)
	a.stop()
	l.machine.runtime = endpoint
	a = l.machine.start()
	go1 := l.machine.path("pods/uid-a/volumes/v/go")
	if err := os.WriteFile(go1, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	st := l.cluster.await("a", "runs in the runtime", func(st *schedulingv1.PodStatus) bool {
		return len(st.GetContainerStatuses()) == 1 && strings.HasPrefix(st.GetContainerStatuses()[0].GetContainerId(),
			"containerd://")
	})
	t.Log(st.GetContainerStatuses())
	if l.runs("never") != 1 {
		t.Errorf("never ran %d times", l.runs("never"))
	}
	if prev := l.cluster.log("a", &schedulingv1.GetPodLogRequest{Previous: true}); prev != "" {
		t.Logf("previous: %q", prev)
	}
	for _, n := range []string{"a", "never"} {
		l.cluster.remove(n, 0)
		l.cluster.awaitGone(n)
	}
	l.nothingIsLeft()
	a.stop()
	l.machine.runtime = ""
	l.machine.run() // nothing is in the runtime any more
	l.machine.runtime = endpoint
}

func diskFull(t *testing.T, l luck) {
	dir := l.machine.path("pods")
	if err := errors.Join(os.MkdirAll(dir, 0o711), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0711")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	a := l.machine.start()
	l.cluster.add(withEmptyDir(l.pod("crash", "while ! test -e /v/go; do sleep 0.05; done; echo run >>/v/runs; exit 1"),
		"/v"))
	l.cluster.await("crash", "runs", ready)
	if err := os.WriteFile(filepath.Join(dir, "uid-crash/volumes/v/go"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	fill, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := fill.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	fill.Close()
	l.cluster.add(l.once("never", "exit 0"))
	time.Sleep(4 * time.Second)
	for _, n := range []string{"crash", "never"} {
		t.Log(n, l.cluster.status(n).GetPhase(), l.cluster.status(n).GetContainerStatuses())
	}
	t.Log(l.machine.containers())
	a.stop()
	a = l.machine.start()
	time.Sleep(2 * time.Second)
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	st := l.cluster.await("never", "is over", over)
	t.Log(st)
	if st.GetPhase() != "Succeeded" {
		t.Errorf("never: %v", st)
	}
	for _, n := range []string{"crash", "never"} {
		l.cluster.remove(n, 0)
		l.cluster.awaitGone(n)
	}
	l.nothingIsLeft()
	a.stop()
}

func sandboxOfEndedPod(t *testing.T, l luck) {
	s, _ := l.machine.run()
	l.cluster.add(l.once("a", "exec sleep 1000"))
	l.cluster.await("a", "runs", ready)
	// as when the runtime ends between the end of the pod's last container and that of its sandbox
	p := s.lookup("uid-a")
	l.containerd.Kill()
	empty := &pod{uid: "uid-a", record: record{Containers: map[string]*container{}}}
	s.reclaim(empty)
	time.Sleep(time.Second)
	l.containerd.Restart()
	_ = p
	eventually(t, "the sandbox has gone", func() bool { return len(l.machine.containers()) == 0 })
}

func commandLikeError(t *testing.T, l luck) {
	l.machine.run()
	p := l.pod("a", "")
	p.Spec.RestartPolicy = "Never"
	p.Spec.Containers[0].Command = []string{"context canceled"}
	l.cluster.add(p)
	st := l.cluster.await("a", "has failed", phase("Failed"))
	t.Log(st.GetContainerStatuses())
}

// stopOfCluster ends the agent and then its containers, as windlass stop does, and starts it again in the same boot.
func stopOfCluster(t *testing.T, l luck) {
	a := l.machine.start()
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.await("never", "runs", ready)
	a.stop()
	l.machine.endContainers()
	s, _ := l.machine.run()
	eventually(t, "the start is known", func() bool {
		st, known := s.runtime.Lookup(processName("uid-never", "main"))
		return over(l.cluster.status("never")) || known && st.Running
	})
	if st := l.cluster.status("never"); !over(st) || l.runs("never") != 1 {
		t.Errorf("it ran again: %v", st)
	} else {
		t.Log(st.GetContainerStatuses())
	}
}

// toProcesses ends the containers of a runtime and goes on without it.
func toProcesses(t *testing.T, l luck) {
	a := l.machine.start()
	l.cluster.add(l.once("never", "exec sleep 1000"))
	l.cluster.add(l.pod("always", "exec sleep 1000"))
	l.cluster.await("never", "runs", ready)
	l.cluster.await("always", "runs", ready)
	a.stop()
	l.machine.endContainers()
	l.machine.runtime = ""
	l.machine.run()
	l.cluster.await("always", "is a process", func(st *schedulingv1.PodStatus) bool {
		return ready(st) && strings.HasPrefix(st.GetContainerStatuses()[0].GetContainerId(), "process://")
	})
	st := l.cluster.await("never", "has ended", over)
	if e := st.GetContainerStatuses()[0].GetState().GetTerminated(); e.GetReason() != plan.StatusUnknown ||
		l.runs("never") != 1 {
		t.Errorf("a container whose runtime was ended: %v", st)
	}
}

func deletedWhilePulled(t *testing.T, l luck) {
	far := newHub(t, &hub{})
	far.push("far:v1", distribution(t, ""))
	far.hold = make(chan struct{})
	a := l.machine.start()
	p := l.pod("a", "exec sleep 1000")
	p.Spec.Containers[0].Image = far.host + "/far:v1"
	l.cluster.add(p)
	eventually(t, "it is pulled", func() bool { return far.blobs.Load() > 0 })
	l.cluster.remove("a", 0)
	l.cluster.awaitGone("a")
	close(far.hold)
	l.nothingIsLeftOf("a")
	a.stop()
}

func frozenAtEnd(t *testing.T, l luck) {
	a := l.machine.start()
	l.cluster.add(withEmptyDir(l.pod("a", "exec sleep 1000"), "/v"))
	l.cluster.await("a", "runs", ready)
	l.containerd.Freeze()
	l.cluster.remove("a", 0)
	eventually(t, "the node is not ready", func() bool { return a.pods.NotReady() != "" })
	t.Log(a.pods.NotReady())
	a.stop()
	a = l.machine.start()
	l.containerd.Thaw()
	l.cluster.awaitGone("a")
	l.nothingIsLeftOf("a")
}
