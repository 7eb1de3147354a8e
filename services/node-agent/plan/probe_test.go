package plan_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// probed returns a container that runs since noon, with probes each second.
func probed(kinds ...string) plan.ContainerView {
	c := runs()
	c.Began = noon
	for _, k := range kinds {
		p := &lifecycle.Probe{Period: time.Second, Timeout: time.Second, Success: 1, Failures: 3}
		switch k {
		case plan.Startup:
			c.Life.Startup = p
		case plan.Liveness:
			c.Life.Liveness = p
		default:
			c.Life.Readiness = p
		}
	}
	return c
}

func TestWhatProbesMakeOfAContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		c              plan.ContainerView
		checks         plan.Checks
		started, ready bool
		stops          string
	}{
		"without probes": {probed(), plan.Checks{}, true, true, ""},
		"never probed":   {probed(plan.Readiness), plan.Checks{}, true, false, ""},
		"ready":          {probed(plan.Readiness), plan.Checks{Readiness: plan.Success}, true, true, ""},
		"not ready":      {probed(plan.Readiness), plan.Checks{Readiness: plan.Failure}, true, false, ""},
		"alive":          {probed(plan.Liveness), plan.Checks{}, true, true, ""},
		"not started":    {probed(plan.Startup), plan.Checks{}, false, false, ""},
		"ready of an earlier agent only": {
			probed(plan.Startup, plan.Readiness),
			plan.Checks{Readiness: plan.Success},
			false,
			false, "",
		},
		"not alive": {
			probed(plan.Liveness),
			plan.Checks{Liveness: plan.Failure},
			true, true,
			"Container c failed liveness probe, will be restarted",
		},
		"did not start": {
			probed(plan.Startup),
			plan.Checks{Startup: plan.Failure},
			false, false,
			"Container c failed startup probe, will be restarted",
		},
	} {
		tc.c.Checks = tc.checks
		pod := podOf("Always", 0, 1)
		pod.Spec.Containers[0].Name = "c"
		d := plan.Pod(plan.PodView{Now: noon.Add(time.Minute), Pod: pod, Started: noon, Containers: []plan.ContainerView{
			tc.c,
		}})
		st := d.Status.GetContainerStatuses()[0]
		if st.GetStarted() != tc.started || st.GetReady() != tc.ready {
			t.Errorf("%s: started %v, ready %v", name, st.GetStarted(), st.GetReady())
		}
		switch {
		case tc.stops == "" && len(d.Stop)+len(d.Ask) > 0:
			t.Errorf("%s: it is ended: %v", name, d.Stop)
		case tc.stops != "" && (len(d.Stop) != 1 || d.Stop[0].Message != tc.stops || len(d.Ask) != 1):
			t.Errorf("%s: %v, %v", name, d.Stop, d.Ask)
		}
	}
}

func TestThresholdsCountResultsInARow(t *testing.T) {
	of := &lifecycle.Probe{Success: 2, Failures: 3}
	p := plan.Probing{}
	for i, step := range []struct{ result, counts plan.Outcome }{
		{plan.Success, ""},
		{plan.Failure, ""},
		{plan.Success, ""},
		{plan.Success, plan.Success},
		{plan.Failure, plan.Success},
		{plan.Failure, plan.Success},
		{plan.Failure, plan.Failure},
		{plan.Success, plan.Failure},
		{plan.Success, plan.Success},
	} {
		if p = p.After(of, step.result); p.Outcome != step.counts {
			t.Errorf("step %d: %q, want %q", i, p.Outcome, step.counts)
		}
	}
}

func TestReadinessGatesHoldThePodBack(t *testing.T) {
	pod := podOf("Always", 0, 1)
	pod.Spec.ReadinessGates = gate("example.com/in-service")
	v := plan.PodView{Now: noon, Pod: pod, Started: noon, Containers: []plan.ContainerView{probed()}}
	status := func() string { return plan.Pod(v).Status.GetConditions()[2].GetStatus() }
	if status() != "False" {
		t.Error("ready without the condition")
	}
	v.Conditions = []*schedulingv1.PodCondition{{Type: "example.com/in-service", Status: "True"}}
	if status() != "True" {
		t.Error("not ready with the condition")
	}
}

// Whatever was found before, until the startup probe succeeds there is no other, no probe runs twice at once, and never
// more than eight of a pod.
func TestWhichProbesRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := plan.PodView{Now: noon.Add(time.Hour), Pod: podOf("Always", 0, 6), Started: noon}
		outcomes := rapid.SampledFrom([]plan.Outcome{"", plan.Success, plan.Failure})
		for range 6 {
			c := probed(plan.Startup, plan.Liveness, plan.Readiness)
			c.Checks = plan.Checks{Startup: outcomes.Draw(t, "startup"), Liveness: outcomes.Draw(t, "liveness")}
			v.Containers = append(v.Containers, c)
		}
		courses := map[plan.ProbeRef]plan.Probing{}
		under := 0
		for i := range 6 {
			for _, kind := range []string{plan.Startup, plan.Liveness, plan.Readiness} {
				r := plan.ProbeRef{ContainerRef: plan.ContainerRef{Index: i}, Kind: kind}
				courses[r] = plan.Probing{Runs: rapid.Bool().Draw(t, "runs")}
				if courses[r].Runs {
					under++
				}
			}
		}
		d := plan.Probes(v, func(r plan.ProbeRef) plan.Probing { return courses[r] })
		if len(d.Run) > max(0, 8-under) {
			t.Errorf("%d probes run beside %d", len(d.Run), under)
		}
		for _, r := range d.Run {
			started := v.Containers[r.Index].Checks.Startup == plan.Success
			if courses[r].Runs || (r.Kind == plan.Startup) == started {
				t.Errorf("%v runs; started %v", r, started)
			}
		}
	})
}

func TestSidecarsEndAfterTheContainers(t *testing.T) {
	pod := podOf("Never", 2, 1)
	side := func() plan.ContainerView { c := probed(); c.Life.Sidecar = true; return c }
	v := plan.PodView{
		Now: noon.Add(time.Second), Pod: pod, Started: noon, Ending: noon,
		Init: []plan.ContainerView{side(), side()}, Containers: []plan.ContainerView{probed()},
	}
	asked := func(want plan.ContainerRef) {
		t.Helper()
		if d := plan.Pod(v); len(d.Ask) != 1 || d.Ask[0] != want {
			t.Errorf("asked %v, want %v", d.Ask, want)
		}
	}
	asked(plan.ContainerRef{})
	v.Containers[0] = ended(0, 1)
	asked(plan.ContainerRef{Init: true, Index: 1})
	v.Init[1] = ended(0, 1)
	v.Init[1].Life.Sidecar = true
	asked(plan.ContainerRef{Init: true, Index: 0})
	// Without being deleted: the pod succeeds when its container has, whatever its sidecars do.
	v.Ending, v.Init[1] = time.Time{}, side()
	if d := plan.Pod(v); d.Verdict.Phase != "Succeeded" || len(d.Ask) != 1 {
		t.Errorf("verdict %v, asked %v", d.Verdict, d.Ask)
	}
}

func TestASidecarStartsBeforeWhatFollows(t *testing.T) {
	side := probed(plan.Startup)
	side.Life.Sidecar = true
	v := plan.PodView{
		Now: noon, Pod: podOf("Always", 1, 1), Started: noon, Init: []plan.ContainerView{side},
		Containers: []plan.ContainerView{never()},
	}
	if d := plan.Pod(v); len(d.Start) > 0 || d.Status.GetPhase() != "Pending" {
		t.Errorf("%v is started beside a sidecar that has not", d.Start)
	}
	v.Init[0].Checks.Startup = plan.Success
	if d := plan.Pod(v); len(d.Start) != 1 || d.Start[0].Init {
		t.Errorf("%v is started", d.Start)
	}
}

func gate(typ string) []*structpb.Struct {
	return []*structpb.Struct{{Fields: map[string]*structpb.Value{"conditionType": structpb.NewStringValue(typ)}}}
}
