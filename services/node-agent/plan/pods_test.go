package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// podOf returns a pod with so many containers.
func podOf(policy string, inits, containers int) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p"},
		Spec:     &schedulingv1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: new(int32(30))},
	}
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, &schedulingv1.Container{Name: "init-" + string(rune('a'+i))})
	}
	for i := range containers {
		p.Spec.Containers = append(p.Spec.Containers, &schedulingv1.Container{Name: "main-" + string(rune('a'+i))})
	}
	return p
}

func never() plan.ContainerView { return plan.ContainerView{} }

func runs() plan.ContainerView {
	return plan.ContainerView{Starts: 1, Since: noon.Add(-time.Minute), ID: "process://7"}
}

// ended returns a container that ended just now for the nth time in a row.
func ended(code, times int) plan.ContainerView {
	return plan.ContainerView{
		Starts: times, Since: noon.Add(-time.Minute), ID: "process://7", Crashes: times,
		Exit: &plan.Exit{Code: code, Started: noon.Add(-time.Minute), Finished: noon, ID: "process://7"}, Ended: noon,
	}
}

func TestWhatIsDoneForAPod(t *testing.T) {
	main := plan.ContainerRef{Index: 0}
	init := func(i int) plan.ContainerRef { return plan.ContainerRef{Init: true, Index: i} }
	asked := runs()
	asked.Asked = true
	blocked := never()
	blocked.Obstacle = &plan.Obstacle{Reason: plan.ErrImagePull, Tries: 2, Until: noon.Add(20 * time.Second)}
	list := func(l ...plan.ContainerView) []plan.ContainerView { return l }
	for _, tc := range []struct {
		name       string
		policy     string
		inits      []plan.ContainerView
		containers []plan.ContainerView
		ending     time.Duration // before now; -1: not
		deadline   int32
		verdict    plan.Verdict
		decided    time.Duration // before now
		want       plan.PodPlan
		phase      string
	}{
		{
			name: "a new pod is started", containers: list(never(), never()), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{{Index: 0}, {Index: 1}}}, phase: "Pending",
		},
		{name: "what runs is left alone", containers: list(runs()), ending: -1, phase: "Running"},
		{
			name: "a pod is pending until each container has run", ending: -1, phase: "Pending",
			containers: list(runs(), plan.ContainerView{Starts: 1, Since: noon}),
		},
		{
			name: "and runs while one is started again", ending: -1, phase: "Running",
			containers: list(runs(), plan.ContainerView{Starts: 2, Since: noon}),
		},
		{
			name: "the first init container goes first", inits: list(never(), never()), containers: list(never()), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{init(0)}}, phase: "Pending",
		},
		{
			name: "the second waits for the first", inits: list(runs(), never()), containers: list(never()), ending: -1,
			phase: "Pending",
		},
		{
			name: "the second follows the first", inits: list(ended(0, 1), never()), containers: list(never()), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{init(1)}}, phase: "Pending",
		},
		{
			name: "containers follow the last init container", inits: list(ended(0, 1)), containers: list(never()), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{main}}, phase: "Pending",
		},
		{
			name: "an init container that failed is tried again", inits: list(ended(1, 1)), containers: list(never()),
			ending: -1,
			want:   plan.PodPlan{Start: []plan.ContainerRef{init(0)}}, phase: "Pending",
		},
		{
			name: "an init container that failed fails a pod that is never restarted", policy: "Never", inits: list(ended(1, 1)),
			containers: list(never()), ending: -1,
			want: plan.PodPlan{
				Verdict: plan.Verdict{Phase: "Failed", Message: `init container "init-a" ended with exit code 1`},
			}, phase: "Failed",
		},
		{
			name: "the first end is followed by a start at once", containers: list(ended(1, 1)), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{main}}, phase: "Running",
		},
		{
			name: "the third end is followed by a rest", containers: list(ended(1, 3)), ending: -1,
			want: plan.PodPlan{Wake: noon.Add(20 * time.Second)}, phase: "Running",
		},
		{
			name: "a good end is restarted, too, if always", containers: list(ended(0, 1)), ending: -1,
			want: plan.PodPlan{Start: []plan.ContainerRef{main}}, phase: "Running",
		},
		{
			name: "a good end is final on failure", policy: "OnFailure", containers: list(ended(0, 1)), ending: -1,
			want: plan.PodPlan{Verdict: plan.Verdict{Phase: "Succeeded"}}, phase: "Succeeded",
		},
		{
			name: "one that runs keeps a pod running", policy: "Never", containers: list(ended(1, 1), runs()), ending: -1,
			phase: "Running",
		},
		{
			name: "one bad end fails a pod when all have ended", policy: "Never", containers: list(ended(1, 1), ended(0, 1)),
			ending: -1,
			want:   plan.PodPlan{Verdict: plan.Verdict{Phase: "Failed"}}, phase: "Failed",
		},
		{
			name: "an image that is not there is tried again later", containers: list(blocked), ending: -1,
			want: plan.PodPlan{Wake: noon.Add(20 * time.Second)}, phase: "Pending",
		},
		{
			name: "a pod that is to go is asked to end", containers: list(runs(), never()), ending: 0,
			want: plan.PodPlan{Ask: []plan.ContainerRef{main}, Wake: noon.Add(30 * time.Second)}, phase: "Pending",
		},
		{
			name: "it is asked once", containers: list(asked), ending: 29 * time.Second,
			want: plan.PodPlan{Wake: noon.Add(time.Second)}, phase: "Running",
		},
		{
			name: "it is killed when its grace is over", containers: list(asked), ending: 30 * time.Second,
			want: plan.PodPlan{Kill: []plan.ContainerRef{main}, Wake: noon.Add(time.Second)}, phase: "Running",
		},
		{
			name: "it is over when nothing runs", containers: list(ended(0, 1), never()), ending: time.Second,
			want: plan.PodPlan{Over: true}, phase: "Pending",
		},
		{
			name: "a deadline is waited for", containers: list(runs()), ending: -1, deadline: 100,
			want: plan.PodPlan{Wake: noon.Add(40 * time.Second)}, phase: "Running",
		},
		{
			name: "a deadline ends what runs", containers: list(runs()), ending: -1, deadline: 60,
			want: plan.PodPlan{
				Ask: []plan.ContainerRef{main}, Wake: noon.Add(30 * time.Second),
				Verdict: plan.Verdict{
					Phase: "Failed", Reason: "DeadlineExceeded",
					Message: "the pod was active for longer than its deadline of 60 s",
				},
			}, phase: "Failed",
		},
		{
			name: "a pod that another service ended is killed in the end", containers: list(asked), ending: -1,
			decided: time.Minute,
			verdict: plan.Verdict{Phase: "Failed", Reason: "Evicted"},
			want: plan.PodPlan{
				Kill: []plan.ContainerRef{main}, Wake: noon.Add(time.Second), Verdict: plan.Verdict{
					Phase: "Failed", Reason: "Evicted",
				},
			}, phase: "Failed",
		},
		{
			name: "what has ended does not fail later", policy: "Never", containers: list(ended(0, 1)), ending: -1, deadline: 1,
			verdict: plan.Verdict{Phase: "Succeeded"}, want: plan.PodPlan{Verdict: plan.Verdict{Phase: "Succeeded"}},
			phase: "Succeeded",
		},
		{
			name: "a refused pod is not started", containers: list(never()), ending: -1,
			verdict: plan.Verdict{Phase: "Failed", Reason: "OutOfcpu"},
			want:    plan.PodPlan{Verdict: plan.Verdict{Phase: "Failed", Reason: "OutOfcpu"}}, phase: "Failed",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.policy == "" {
				tc.policy = "Always"
			}
			v := plan.PodView{
				Now: noon, Pod: podOf(tc.policy, len(tc.inits), len(tc.containers)), HostAddress: "127.0.0.1",
				Address: "127.240.0.7",
				Started: noon.Add(-time.Minute),
				Verdict: tc.verdict, Decided: noon.Add(-tc.decided), Init: tc.inits, Containers: tc.containers,
			}
			if tc.ending >= 0 {
				v.Ending = noon.Add(-tc.ending)
			}
			if tc.deadline > 0 {
				v.Pod.Spec.ActiveDeadlineSeconds = &tc.deadline
			}
			got := plan.Pod(v)
			if got.Status.GetPhase() != tc.phase {
				t.Errorf("phase %s, want %s", got.Status.GetPhase(), tc.phase)
			}
			got.Status = nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheStatusOfAContainer(t *testing.T) {
	pull := never()
	pull.Obstacle = &plan.Obstacle{
		Reason: plan.ErrImagePull, Message: "no such image", Tries: 1,
		Until: noon.Add(time.Second),
	}
	again := pull
	again.Obstacle = &plan.Obstacle{
		Reason: plan.ErrImagePull, Message: "no such image", Tries: 2,
		Until: noon.Add(time.Second),
	}
	starting := plan.ContainerView{Starts: 1, Since: noon}
	for _, tc := range []struct {
		name, policy string
		inits        []plan.ContainerView
		view         plan.ContainerView
		want         string // reason of the state
		last         bool
		restarts     int32
		ready        bool
	}{
		{"one that is new is made", "Always", nil, never(), "ContainerCreating", false, 0, false},
		{"one that has no process yet is made", "Always", nil, starting, "ContainerCreating", false, 0, false},
		{
			"one behind init containers waits for them", "Always",
			[]plan.ContainerView{runs()},
			never(), "PodInitializing",
			false, 0, false,
		},
		{"one that runs is ready", "Always", nil, runs(), "", false, 0, true},
		{"one that keeps ending backs off", "Always", nil, ended(1, 3), "CrashLoopBackOff", true, 2, false},
		{"one that ended well is completed", "Never", nil, ended(0, 1), "Completed", false, 0, false},
		{"one that ended badly is in error", "Never", nil, ended(2, 1), "Error", false, 0, false},
		{"the first failure to get an image is reported", "Always", nil, pull, "ErrImagePull", false, 0, false},
		{"later ones back off", "Always", nil, again, "ImagePullBackOff", false, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := plan.Pod(plan.PodView{
				Now: noon, Pod: podOf(tc.policy, len(tc.inits), 1), Started: noon, Init: tc.inits, Containers: []plan.ContainerView{
					tc.view,
				},
			}).Status
			c := st.GetContainerStatuses()[0]
			got := c.GetState().GetWaiting().GetReason() + c.GetState().GetTerminated().GetReason()
			if got != tc.want || (c.GetLastState() != nil) != tc.last || c.GetRestartCount() != tc.restarts ||
				c.GetReady() != tc.ready {
				t.Errorf("container %v", c)
			}
			if is := st.GetConditions()[2]; is.GetType() != "Ready" || (is.GetStatus() == "True") != tc.ready {
				t.Errorf("condition %v", is)
			}
		})
	}
}

func TestAConditionThatStaysKeepsItsTime(t *testing.T) {
	v := plan.PodView{Now: noon, Pod: podOf("Always", 0, 1), Started: noon, Containers: []plan.ContainerView{runs()}}
	v.Pod.Status = plan.Pod(v).Status
	v.Now = noon.Add(time.Hour)
	if diff := cmp.Diff(noon, plan.Pod(v).Status.GetConditions()[2].GetLastTransitionTime().AsTime()); diff != "" {
		t.Error(diff)
	}
	v.Containers = []plan.ContainerView{ended(1, 3)}
	if got := plan.Pod(v).Status.GetConditions()[2].GetLastTransitionTime().AsTime(); !got.Equal(v.Now) {
		t.Errorf("changed at %v", got)
	}
}

// TestACrashLoop plays a container that ends as soon as it is started, with the clock that the plan asks for.
func TestACrashLoop(t *testing.T) {
	now := noon
	c := never()
	var pauses []time.Duration
	for len(pauses) < 9 {
		p := plan.Pod(plan.PodView{Now: now, Pod: podOf("Always", 0, 1), Started: noon, Containers: []plan.ContainerView{c}})
		if len(p.Start) == 0 {
			now = p.Wake
			continue
		}
		if c.Exit != nil {
			pauses = append(pauses, now.Sub(c.Ended))
		}
		c.Starts, c.Since, c.Crashes = c.Starts+1, now, plan.Crashes(c.Crashes, 0)
		// the wall clock was set back by an hour since, which delays nothing
		c.Exit, c.Ended = &plan.Exit{Code: 1, Started: now.Add(time.Hour), Finished: now.Add(time.Hour)}, now
	}
	s := time.Second
	if want := []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s, 300 * s}; !slices.Equal(
		pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
	if n := plan.Crashes(8, 10*time.Minute); plan.BackOff(n) != 0 {
		t.Errorf("after a calm life it rests for %v", plan.BackOff(n))
	}
}

func TestNothingIsStartedThatRunsOrMustEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) plan.ContainerView {
			return rapid.SampledFrom([]plan.ContainerView{never(), runs(), ended(0, 1), ended(1, 1), ended(1, 5)}).Draw(t,
				"container")
		})
		v := plan.PodView{
			Now: noon, Started: noon.Add(-time.Hour), Init: rapid.SliceOfN(draw, 0, 3).Draw(t, "init"),
			Containers: rapid.SliceOfN(draw, 1, 3).Draw(t, "containers"),
		}
		v.Pod = podOf(rapid.SampledFrom([]string{"Always", "OnFailure", "Never"}).Draw(t, "policy"), len(v.Init),
			len(v.Containers))
		if rapid.Bool().Draw(t, "ending") {
			v.Ending = noon.Add(-time.Duration(rapid.IntRange(0, 60).Draw(t, "since")) * time.Second)
		}
		p := plan.Pod(v)
		of := func(r plan.ContainerRef) plan.ContainerView {
			if r.Init {
				return v.Init[r.Index]
			}
			return v.Containers[r.Index]
		}
		for _, r := range p.Start {
			if c := of(r); c.Starts > 0 && c.Exit == nil || !v.Ending.IsZero() || p.Verdict.Phase != "" {
				t.Fatalf("%v is started", r)
			}
		}
		for _, r := range slices.Concat(p.Ask, p.Kill) {
			if c := of(r); c.Starts == 0 || c.Exit != nil {
				t.Fatalf("%v is ended", r)
			}
		}
		if p.Over && (v.Ending.IsZero() || len(p.Ask)+len(p.Kill) > 0) {
			t.Fatalf("over: %v", p)
		}
	})
}

func TestAdmission(t *testing.T) {
	node := &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "fast"}},
		Status: &nodev1.NodeStatus{Allocatable: map[string]*structpb.Value{
			"cpu": structpb.NewNumberValue(2), "memory": structpb.NewStringValue("1Gi"), "pods": structpb.NewStringValue("2"),
			"example.com/gpu": structpb.NewNumberValue(1), "example.com/broken": structpb.NewNumberValue(0),
		}},
	}
	needs := func(resource, amount string) *schedulingv1.Pod {
		p := podOf("Always", 0, 1)
		p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{
			Requests: map[string]*structpb.Value{resource: structpb.NewStringValue(amount)},
		}
		return p
	}
	port := func(n int32) *schedulingv1.Pod {
		p := podOf("Always", 0, 1)
		p.Spec.Containers[0].Ports = []*schedulingv1.ContainerPort{{ContainerPort: n, HostPort: n}}
		return p
	}
	selects := func(value string) *schedulingv1.Pod {
		p := podOf("Always", 0, 1)
		p.Spec.NodeSelector = map[string]string{"disk": value}
		return p
	}
	for _, tc := range []struct {
		name   string
		pod    *schedulingv1.Pod
		others []*schedulingv1.Pod
		want   string
	}{
		{"what fits exactly is admitted", needs("cpu", "500m"), []*schedulingv1.Pod{needs("cpu", "1500m")}, ""},
		{"a little too much cpu is refused", needs("cpu", "501m"), []*schedulingv1.Pod{needs("cpu", "1500m")}, "OutOfcpu"},
		{"too much memory is refused", needs("memory", "2Gi"), nil, "OutOfmemory"},
		{"one device is admitted", needs("example.com/gpu", "1"), nil, ""},
		{
			"a second one is refused", needs("example.com/gpu", "1"),
			[]*schedulingv1.Pod{needs("example.com/gpu", "1")},
			"OutOfexample.com/gpu",
		},
		{"a device of which none is left is refused", needs("example.com/broken", "1"), nil, "OutOfexample.com/broken"},
		{"a resource of the cluster is admitted", needs("example.com/license", "1"), nil, ""},
		{"huge pages that the node does not have are refused", needs("hugepages-2Mi", "2Mi"), nil, "OutOfhugepages-2Mi"},
		{"too many pods are refused", podOf("Always", 0, 1), []*schedulingv1.Pod{
			podOf("Always", 0, 1),
			podOf("Always", 0, 1),
		}, "OutOfpods"},
		{"a free port is admitted", port(80), []*schedulingv1.Pod{port(81)}, ""},
		{"a taken port is refused", port(80), []*schedulingv1.Pod{port(80)}, "HostPort"},
		{"a label that is there is admitted", selects("fast"), nil, ""},
		{"a label that is another is refused", selects("slow"), nil, "NodeAffinity"},
		{"a pod that asks for nothing is admitted by a full node", podOf("Always", 0, 1), []*schedulingv1.Pod{
			needs("cpu", "2"),
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plan.Admit(tc.pod, node, tc.others)
			if got.Reason != tc.want || (got.Phase == "Failed") != (tc.want != "") || (got.Message != "") != (tc.want != "") {
				t.Errorf("Admit = %+v, want %q", got, tc.want)
			}
		})
	}
}

// TestARefusalIsTheSameEachTime has a pod ask for several things of which the node has none left: the first by
// name is reported.
func TestARefusalIsTheSameEachTime(t *testing.T) {
	p := podOf("Always", 0, 1)
	p.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{Requests: map[string]*structpb.Value{}}
	has := map[string]*structpb.Value{"pods": structpb.NewNumberValue(9)}
	for _, r := range []string{"d", "b", "e", "a", "c"} {
		p.Spec.Containers[0].Resources.Requests["example.com/"+r] = structpb.NewNumberValue(1)
		has["example.com/"+r] = structpb.NewNumberValue(0)
	}
	for range 50 {
		if got := plan.Admit(p, &nodev1.Node{Status: &nodev1.NodeStatus{Allocatable: has}},
			nil); got.Reason != "OutOfexample.com/a" {
			t.Fatalf("refused with %s", got.Reason)
		}
	}
}

func TestExpansion(t *testing.T) {
	known := func(name string) (string, bool) { return "v", name == "X" }
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(X)": "v", "a$(X)b$(X)": "avbv", "$(Y)": "$(Y)", "$$(X)": "$(X)", "$$$(X)": "$v",
		"$X": "$X", "$(X": "$(X", "$": "$", "$$": "$",
	} {
		if got := plan.Expand(in, known); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestCommandsAndEnvironments(t *testing.T) {
	entrypoint, cmd := []string{"/entry"}, []string{"default"}
	for _, tc := range []struct {
		name          string
		command, args []string
		want          string
	}{
		{"the image's own", nil, nil, "/entry default"},
		{"arguments replace those of the image", nil, []string{"$(WHO)"}, "/entry me"},
		{"a command replaces all of the image", []string{"/mine"}, nil, "/mine"},
		{"command and arguments", []string{"/mine"}, []string{"x"}, "/mine x"},
	} {
		got, err := plan.Command(&schedulingv1.Container{Command: tc.command, Args: tc.args}, entrypoint, cmd,
			[]string{"WHO=you", "WHO=me"})
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
	}
	if _, err := plan.Command(&schedulingv1.Container{}, nil, nil, nil); !errors.Is(err, plan.ErrNoCommand) {
		t.Errorf("nothing to run: %v", err)
	}
	from := func(name, path string) *schedulingv1.EnvVar {
		return &schedulingv1.EnvVar{Name: name, ValueFrom: &schedulingv1.EnvVarSource{
			FieldRef: &schedulingv1.ObjectFieldSelector{FieldPath: path},
		}}
	}
	pod := podOf("Always", 0, 1)
	pod.Metadata.Labels = map[string]string{"app": "web"}
	pod.Spec.NodeName = "n"
	c := &schedulingv1.Container{Env: []*schedulingv1.EnvVar{
		from("NODE", "spec.nodeName"), from("APP", "metadata.labels['app']"), from("IP", "status.podIP"),
		from("HOST", "status.hostIP"),
		{Name: "ALL", Value: new("$(BASE) $(NODE) $(LATER)")},
		{Name: "LATER", Value: new("x")},
	}}
	got, err := plan.Environment(pod, c, "1.2.3.5", "1.2.3.4", []string{"BASE=b"}, plan.Objects{})
	if want := []string{
		"BASE=b", "NODE=n", "APP=web", "IP=1.2.3.4", "HOST=1.2.3.5", "ALL=b n $(LATER)",
		"LATER=x",
	}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("environment %v, %v, want %v", got, err, want)
	}
	if _, err := plan.Environment(pod, &schedulingv1.Container{Env: []*schedulingv1.EnvVar{from("X", "spec.nothing")}}, "",
		"", nil, plan.Objects{}); err == nil {
		t.Error("a field that is not there is no error")
	}
}

func TestSubPath(t *testing.T) {
	env := []string{"A=x", "B=y"}
	for what, c := range map[string]struct {
		mount *schedulingv1.VolumeMount
		want  string
		ok    bool
	}{
		"all of it":          {&schedulingv1.VolumeMount{}, "", true},
		"a path":             {&schedulingv1.VolumeMount{SubPath: "$(A)"}, "$(A)", true},
		"variables":          {&schedulingv1.VolumeMount{SubPathExpr: "$(A)/$$(A)/$(B)"}, "x/$(A)/y", true},
		"a missing variable": {&schedulingv1.VolumeMount{SubPathExpr: "$(A)/$(C)"}, "", false},
	} {
		if got, err := plan.SubPath(c.mount, env); got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}
