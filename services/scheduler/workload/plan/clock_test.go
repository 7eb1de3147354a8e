package plan_test

import (
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// waits are decisions that wait for 40 s from start, each at a time by the wall clock and by a clock of what was seen.
// They report whether the wait is over.
var waits = map[string]func(now time.Time, c spans.Clock) (over bool, wake time.Time, states spans.Seen){
	"a pod of a replica set becomes available": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		s := replicaSet(1)
		s.Spec.MinReadySeconds = proto.Int32(40)
		v := plan.ReplicaSetView(s, now)
		v.Clock, v.Pods = c, []*schedulingv1.Pod{pod("p", s, ready(start))}
		p := plan.Replicas(v)
		return p.Status.GetAvailableReplicas() == 1, p.Wake, p.States
	},
	"a pod of a daemon set becomes available": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		s := daemonSet()
		s.Spec.MinReadySeconds = proto.Int32(40)
		p := plan.DaemonSet(plan.DaemonSetView{
			Now: now, Clock: c, Set: s, Nodes: []*nodev1.Node{node("a")}, Pods: []*schedulingv1.Pod{pod("p", s, ready(start))},
		})
		return p.Status.GetNumberAvailable() == 1, p.Wake, p.States
	},
	"a pod of a stateful set becomes available": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		s := statefulSet(1, "v1")
		s.Spec.MinReadySeconds = proto.Int32(40)
		s.Spec.MinReadySeconds = proto.Int32(40)
		p := plan.StatefulSet(plan.StatefulSetView{
			Now: now, Clock: c, Set: s, Pods: []*schedulingv1.Pod{pod("web-0", s, ready(start))},
		})
		return p.Status.GetAvailableReplicas() == 1, p.Wake, p.States
	},
	"the next pod after two rejected ones": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		s := replicaSet(1)
		v := plan.ReplicaSetView(s, now)
		v.Clock = c
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} { // the pause is 32 s
			v.Pods = append(v.Pods, pod(name, s, phase("Failed"), born(start.Add(8*time.Second))))
		}
		p := plan.Replicas(v)
		return len(p.Create) > 0, p.Wake, p.States
	},
	"a job fails for its deadline": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		j := job(func(j *schedulingv1.Job) {
			j.Spec.ActiveDeadlineSeconds, j.Status.StartTime = proto.Int32(40), at(start)
		})
		p := plan.Job(plan.JobView{Now: now, Clock: c, Job: j})
		return object.IsTrue(p.Status.GetConditions(), "Failed"), p.Wake, p.States
	},
	"a job is deleted after its end": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		j := job(completed("Complete", 0), func(j *schedulingv1.Job) { j.Spec.TtlSecondsAfterFinished = proto.Int32(40) })
		p := plan.Job(plan.JobView{Now: now, Clock: c, Job: j})
		return p.Remove, p.Wake, p.States
	},
	"the next pod of a job after three failed ones": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		j := job()
		p := plan.Job(plan.JobView{
			Now: now, Clock: c, Job: j, Pods: some(ended("Failed", 0), ended("Failed", 0), ended("Failed", 0))(j),
		})
		return len(p.Create) > 0, p.Wake, p.States
	},
	"the next pod of an index after three failed ones": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		j := indexed(1, 1, perIndex(9))
		failed := both(ended("Failed", 0), ofIndex(0))
		p := plan.Job(plan.JobView{Now: now, Clock: c, Job: j, Pods: some(failed, failed, failed)(j)})
		return len(p.Create) > 0, p.Wake, p.States
	},
	"a deployment fails for its deadline": func(now time.Time, c spans.Clock) (bool, time.Time, spans.Seen) {
		d := deployment(2, "v1", 1, 0)
		d.Spec.ProgressDeadlineSeconds = proto.Int32(40)
		first := plan.Deployment(plan.DeploymentView{Now: start, Deployment: d})
		set := first.Create.Set
		set.Metadata.Uid, set.Metadata.Generation = "rs", 1
		set.Status = &schedulingv1.ReplicaSetStatus{ObservedGeneration: proto.Int32(1)}
		p := plan.Deployment(plan.DeploymentView{
			Now: now, Clock: c, Deployment: plan.DeploymentAfter(d, first), Sets: []*schedulingv1.ReplicaSet{set},
		})
		cond := object.FindCondition(p.Status.GetConditions(), "Progressing")
		return cond.GetReason() == "ProgressDeadlineExceeded", p.Wake, p.States
	},
}

// TestAStepOfTheClockEndsNoWait has the wall clock be set forward or back by any span after a wait has begun: it ends
// once this process has seen it for its time.
func TestAStepOfTheClockEndsNoWait(t *testing.T) {
	for name, decide := range waits {
		t.Run(name, func(t *testing.T) {
			for _, step := range []time.Duration{0, time.Minute, 24 * time.Hour, -time.Minute, -24 * time.Hour} {
				_, _, states := decide(start, spans.Clock{Steady: start, Seen: spans.Seen{}})
				if len(states) == 0 {
					t.Fatal("it waits for nothing")
				}
				after := func(d time.Duration) (bool, time.Duration) {
					seen := spans.Seen{}
					for k := range states {
						seen[k] = d
					}
					now := start.Add(d + step)
					over, wake, _ := decide(now, spans.Clock{Steady: start.Add(d), Seen: seen})
					return over, wake.Sub(now)
				}
				if over, left := after(15 * time.Second); over || left > 25*time.Second {
					t.Errorf("after 15 s and a step of %v it is over: %t, and decided again after %v", step, over, left)
				}
				if over, _ := after(40 * time.Second); !over {
					t.Errorf("after 40 s and a step of %v it is not over", step)
				}
			}
		})
	}
}

// TestANewLeaderWaitsAgainButNotWithoutEnd has a process begin to lead whose clock is ahead, and another that begins
// long after the wait has ended by any clock.
func TestANewLeaderWaitsAgainButNotWithoutEnd(t *testing.T) {
	for name, decide := range waits {
		ahead := start.Add(time.Hour)
		if over, wake, _ := decide(ahead, spans.Clock{Steady: ahead}); over || wake.Sub(ahead) > 40*time.Second {
			t.Errorf("%s: by a clock that is ahead it is over: %t, and decided again after %v", name, over, wake.Sub(ahead))
		}
		late := start.Add(3 * time.Hour)
		if over, _, _ := decide(late, spans.Clock{Steady: late}); !over {
			t.Errorf("%s: after three hours it is not over", name)
		}
	}
}

// TestANewLeaderKeepsPodsAvailable has a process begin to lead when the last status says how many pods are available:
// these stay, and no others count before their time.
func TestANewLeaderKeepsPodsAvailable(t *testing.T) {
	s := replicaSet(4)
	s.Spec.MinReadySeconds = proto.Int32(60)
	s.Status = &schedulingv1.ReplicaSetStatus{AvailableReplicas: proto.Int32(2)}
	v := plan.ReplicaSetView(s, start)
	v.Pods = []*schedulingv1.Pod{
		pod("new", s, ready(start.Add(-61*time.Second))), pod("a", s, ready(start.Add(-10*time.Minute))),
		pod("b", s, ready(start.Add(-9*time.Minute))), pod("c", s, unready),
	}
	v.Clock = spans.Clock{Steady: start}
	p := plan.Replicas(v)
	if n := p.Status.GetAvailableReplicas(); n != 2 {
		t.Errorf("%d pods are available, want the 2 that were", n)
	}
	v.Clock.Seen = p.States
	ready(start.Add(-time.Hour))(v.Pods[3])
	if n := plan.Replicas(v).Status.GetAvailableReplicas(); n != 2 {
		t.Errorf("decided again, %d pods are available, want 2", n)
	}
}
