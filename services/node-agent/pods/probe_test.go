package pods

import (
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
)

// with returns a pod that runs a script, with further fields of its container.
func with(t *testing.T, name, script, fields string) *schedulingv1.Pod {
	t.Helper()
	p := sh(name, script)
	more := &schedulingv1.Container{}
	if err := manifest.Decode([]byte(fields), more); err != nil {
		t.Fatal(err)
	}
	c := p.GetSpec().GetContainers()[0]
	c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = more.GetLivenessProbe(), more.GetReadinessProbe(),
		more.GetStartupProbe()
	c.Lifecycle, c.Ports = more.GetLifecycle(), more.GetPorts()
	return p
}

func isRunning(st *schedulingv1.PodStatus) bool {
	return len(st.GetContainerStatuses()) == 1 && st.GetContainerStatuses()[0].GetState().GetRunning() != nil
}

func isReady(st *schedulingv1.PodStatus) bool {
	return isRunning(st) && st.GetContainerStatuses()[0].GetReady()
}

func restarts(n int32) func(*schedulingv1.PodStatus) bool {
	return func(st *schedulingv1.PodStatus) bool {
		return isRunning(st) && st.GetContainerStatuses()[0].GetRestartCount() == n
	}
}

func TestAContainerIsReadyAsItsProbeSays(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(with(t, "a", forever, `{"readinessProbe": {"exec": {"command": ["test", "-e", "ok"]}, "periodSeconds": 1,
		"failureThreshold": 1}}`))
	c.await("a", "runs and is not ready", func(st *schedulingv1.PodStatus) bool { return isRunning(st) && !isReady(st) })
	eventually(t, "the failure is said",
		func() bool { return c.said("a", "Unhealthy", "Readiness probe failed: command") })
	ok := m.path("pods/uid-a/containers/main/work/ok")
	if err := os.WriteFile(ok, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.await("a", "is ready", isReady)
	stop()
	c.mu.Lock()
	c.history = nil
	c.mu.Unlock()
	m.run()
	// The next agent takes a ready container over as ready, and probes it then.
	if err := os.Remove(ok); err != nil {
		t.Fatal(err)
	}
	c.await("a", "is not ready any more", func(st *schedulingv1.PodStatus) bool { return isRunning(st) && !isReady(st) })
	if got := c.status("a").GetContainerStatuses()[0].GetRestartCount(); got != 0 {
		t.Errorf("%d restarts", got)
	}
}

func TestAnAdoptedContainerStaysReady(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(with(t, "a", forever, `{"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}`))
	c.await("a", "is ready", isReady)
	for range 3 {
		stop()
		c.mu.Lock()
		c.history = nil
		c.mu.Unlock()
		var s *Pods
		s, stop = m.run()
		eventually(t, "it is probed again", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			p := s.pods["uid-a"]
			return p != nil && !p.courseOf("main", "Readiness").Begun.IsZero() && !p.courseOf("main", "Readiness").Runs
		})
		c.mu.Lock()
		for _, st := range c.history {
			if !isReady(st) {
				t.Errorf("reported %v", st)
			}
		}
		c.mu.Unlock()
	}
}

func TestAContainerThatIsNotAliveIsRestarted(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(with(t, "a", `touch alive; `+forever, `{"livenessProbe": {"exec": {"command": ["test", "-e", "alive"]},
		"initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 1}}`))
	c.await("a", "is ready", isReady)
	eventually(t, "it is up", func() bool { return c.log("a", &schedulingv1.GetPodLogRequest{}) == "up\n" })
	if err := os.Remove(m.path("pods/uid-a/containers/main/work/alive")); err != nil {
		t.Fatal(err)
	}
	c.await("a", "runs again", restarts(1))
	for reason, text := range map[string]string{
		"Unhealthy": "Liveness probe failed", "Killing": "Container main failed liveness probe, will be restarted",
	} {
		eventually(t, reason+" is said", func() bool { return c.said("a", reason, text) })
	}
}

func TestProbesOverTheNetwork(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, state)
	go server.Serve(l) //nolint:errcheck
	defer server.Stop()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, dumb, _ := net.SplitHostPort(silent.Addr().String())
	c.add(with(t, "hangs", forever, `{"readinessProbe": {"httpGet": {"port": `+dumb+`}, "periodSeconds": 1,
		"timeoutSeconds": 3600}}`))
	c.await("hangs", "runs", isRunning)
	c.add(with(t, "tcp", forever, `{"readinessProbe": {"tcpSocket": {"port": `+port+`}, "periodSeconds": 1}}`))
	c.await("tcp", "is ready beside one whose probe hangs", isReady)
	c.add(with(t, "grpc", forever, `{"readinessProbe": {"grpc": {"port": `+port+`}, "periodSeconds": 1}}`))
	c.await("grpc", "is ready", isReady)
	state.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	c.await("grpc", "is not ready", func(st *schedulingv1.PodStatus) bool { return isRunning(st) && !isReady(st) })
	if isReady(c.status("hangs")) {
		t.Error("a container that was never probed with success is ready")
	}
	c.remove("hangs", 1)
	c.awaitGone("hangs")
}

// What a pod answers is in the message of an event. One that cannot be part of a report would keep the pod's status
// from being reported: it would count as ready although its probe fails.
func TestAPodIsReportedWhateverItAnswers(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(with(t, "a", `touch ok; `+forever, `{"readinessProbe": {"periodSeconds": 1, "failureThreshold": 1, "exec":
		{"command": ["sh", "-c", "test -e ok || { printf '\\377\\376\\001'; head -c 1000000 /dev/urandom; exit 1; }"]}}}`))
	c.await("a", "is ready", isReady)
	if err := os.Remove(m.path("pods/uid-a/containers/main/work/ok")); err != nil {
		t.Fatal(err)
	}
	c.await("a", "is not ready any more", func(st *schedulingv1.PodStatus) bool { return isRunning(st) && !isReady(st) })
	eventually(t, "the failure is said", func() bool { return c.said("a", "Unhealthy", "exited with 1") })
}

func TestHooksRunAtTheStartAndBeforeTheEnd(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	c.add(with(t, "a", `while ! test -e began; do sleep 0.02; done; trap 'test -e ends && echo in order; exit 0' TERM; `+
		`echo up; while :; do sleep 0.02; done`,
		`{"lifecycle": {"postStart": {"exec": {"command": ["touch", "began"]}},
			"preStop": {"exec": {"command": ["touch", "ends"]}}}}`))
	c.await("a", "is ready", isReady)
	eventually(t, "it is up", func() bool { return c.log("a", &schedulingv1.GetPodLogRequest{}) == "up\n" })
	out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Log: &schedulingv1.GetPodLogRequest{Follow: true}})
	c.remove("a", 30)
	if text, _, _ := whole(t, out); text != "up\nin order\n" {
		t.Errorf("log %q", text)
	}
	c.awaitGone("a")
	failing := with(t, "b", forever, `{"lifecycle": {"postStart": {"exec": {"command": ["false"]}}}}`)
	c.add(failing)
	eventually(t, "the failed hook is said", func() bool { return c.said("b", "FailedPostStartHook", "exited with 1") })
	c.await("b", "was restarted", func(st *schedulingv1.PodStatus) bool {
		return len(st.GetContainerStatuses()) == 1 && st.GetContainerStatuses()[0].GetRestartCount() >= 1
	})
}

// Kubernetes sends SIGTERM to the main process alone: a server may need its children until it has answered.
func TestOnlyTheMainProcessIsAskedToEnd(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		m.run()
		c.add(sh("a", `(trap 'echo child' TERM; while ! test -e done; do sleep 0.02; done) & `+
			`trap 'echo main; touch done; wait; exit 0' TERM; echo up; while :; do sleep 0.02; done`))
		c.await("a", "is ready", ready)
		eventually(t, "it is up", func() bool { return c.log("a", &schedulingv1.GetPodLogRequest{}) == "up\n" })
		out, _ := c.request(&schedulingv1.AttendResponse{Name: "a", Log: &schedulingv1.GetPodLogRequest{Follow: true}})
		c.remove("a", 30)
		if text, _, _ := whole(t, out); text != "up\nmain\n" {
			t.Errorf("log %q", text)
		}
		c.awaitGone("a")
	})
}

func TestASidecarOutlivesTheContainers(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	m.run()
	p := sh("a", `test -e "$WINDLASS_VOLUME_SHARED/sidecar" && echo found`)
	p.Spec.RestartPolicy = "Never"
	shared := []*schedulingv1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	p.Spec.Volumes = []*schedulingv1.Volume{{Name: "shared", EmptyDir: &schedulingv1.EmptyDirVolumeSource{}}}
	p.Spec.Containers[0].VolumeMounts = shared
	side := sh("x", `touch "$WINDLASS_VOLUME_SHARED/sidecar"; `+forever).GetSpec().GetContainers()[0]
	side.Name, side.RestartPolicy, side.VolumeMounts = "side", new("Always"), shared
	probe := &schedulingv1.Container{}
	if err := manifest.Decode([]byte(`{"startupProbe": {"exec": {"command": ["sh", "-c",
		"test -e $WINDLASS_VOLUME_SHARED/sidecar"]}, "periodSeconds": 1}}`), probe); err != nil {
		t.Fatal(err)
	}
	side.StartupProbe = probe.GetStartupProbe()
	p.Spec.InitContainers = []*schedulingv1.Container{side}
	c.add(p)
	st := c.await("a", "succeeded", phase("Succeeded"))
	if e := st.GetInitContainerStatuses()[0].GetState().GetTerminated(); e == nil || e.GetExitCode() != 0 {
		t.Errorf("the sidecar: %v", st.GetInitContainerStatuses()[0])
	}
	if text := c.log("a", &schedulingv1.GetPodLogRequest{Container: "main"}); text != "found\n" {
		t.Errorf("log %q", text)
	}
}

// A container that is killed while its preStop hook runs, with its agent, ends all the same.
func TestTheNextAgentEndsWhatWaitsForItsHook(t *testing.T) {
	c := newCluster(t)
	m := newMachine(t, c)
	_, stop := m.run()
	c.add(with(t, "a", forever, `{"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c",
		"echo x >>hooks; while ! test -e go; do sleep 0.02; done"]}}}}`))
	c.await("a", "is ready", isReady)
	c.remove("a", 60)
	hooks := m.path("pods/uid-a/containers/main/work/hooks")
	eventually(t, "the hook runs", func() bool { data, _ := os.ReadFile(hooks); return len(data) > 0 })
	stop()
	m.run()
	eventually(t, "the hook runs again", func() bool {
		data, _ := os.ReadFile(hooks)
		if n := strings.Count(string(data), "x"); n > 2 {
			t.Fatalf("%d hooks", n)
		}
		return strings.Count(string(data), "x") == 2
	})
	if err := os.WriteFile(m.path("pods/uid-a/containers/main/work/go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.awaitGone("a")
}

// A container that does not end when its liveness probe failed is killed after the probe's grace period, whichever
// agent sees to it, and so is all that a probe left behind.
func TestAStubbornContainerIsKilledAfterTheGraceOfItsProbe(t *testing.T) {
	inBothWays(t, func(t *testing.T, c *cluster, m *machine) {
		_, stop := m.run()
		p := with(t, "a", `if test -e once; then `+forever+`; fi; trap "" TERM; touch once; while :; do sleep 0.05; done`,
			`{"livenessProbe": {"exec": {"command": ["sh", "-c",
				"test -e pids && exec true; setsid sleep 1000 & echo $! $$ >pids; exec sleep 1000"]},
				"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 2}}`)
		p.Spec.TerminationGracePeriodSeconds = new(int32(aLongTime))
		c.add(p)
		pids := m.written("a", 2)
		eventually(t, "the end is said",
			func() bool { return c.said("a", "Killing", "failed liveness probe, will be restarted") })
		if !c.said("a", "Unhealthy", "Liveness probe failed: command timed out") {
			t.Error("the failure is not said")
		}
		stop()
		m.run()
		st := c.await("a", "runs again", restarts(1))
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("process %d of a probe outlives its container", pid)
			}
		}
		if e := st.GetContainerStatuses()[0].GetLastState().GetTerminated(); e.GetExitCode() != codeKilled {
			t.Errorf("ended %v", e)
		}
	})
}
