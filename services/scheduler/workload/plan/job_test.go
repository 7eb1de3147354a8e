package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func job(changes ...func(*schedulingv1.Job)) *schedulingv1.Job {
	j := &schedulingv1.Job{
		Metadata: &metav1.ObjectMeta{Name: "sum", Namespace: "default", Uid: "j", Generation: 1},
		Spec: &schedulingv1.JobSpec{
			Parallelism: proto.Int32(2), Completions: proto.Int32(3), Selector: selector(),
			Template: template("v1"),
		},
		Status: &schedulingv1.JobStatus{StartTime: at(start.Add(-time.Minute))},
	}
	j.Spec.Template.Spec.RestartPolicy = "Never"
	for _, f := range changes {
		f(j)
	}
	return j
}

// ended has a pod end in a phase some time ago.
func ended(in string, ago time.Duration) change {
	return func(p *schedulingv1.Pod) {
		phase(in)(p)
		p.Status.ContainerStatuses = []*schedulingv1.ContainerStatus{{Name: "web", State: &schedulingv1.ContainerState{
			Terminated: &schedulingv1.ContainerStateTerminated{FinishedAt: at(start.Add(-ago))},
		}}}
	}
}

func restarted(n int) change {
	return func(p *schedulingv1.Pod) {
		p.Status.ContainerStatuses = []*schedulingv1.ContainerStatus{{Name: "web", RestartCount: proto.Int32(int32(n))}}
	}
}

func completed(typ string, ago time.Duration) func(*schedulingv1.Job) {
	return func(j *schedulingv1.Job) {
		j.Status.Conditions = []*metav1.Condition{{Type: typ, Status: "True", LastTransitionTime: at(start.Add(-ago))}}
	}
}

func TestJob(t *testing.T) {
	limit := func(n int32) func(*schedulingv1.Job) {
		return func(j *schedulingv1.Job) { j.Spec.BackoffLimit = proto.Int32(n) }
	}
	queue := func(j *schedulingv1.Job) { j.Spec.Completions = nil }
	suspend := func(j *schedulingv1.Job) { j.Spec.Suspend = proto.Bool(true) }
	ttl := func(j *schedulingv1.Job) { j.Spec.TtlSecondsAfterFinished = proto.Int32(60) }
	short := func(j *schedulingv1.Job) { j.Spec.ActiveDeadlineSeconds = proto.Int32(60) }
	again := func(j *schedulingv1.Job) { j.Spec.Template.Spec.RestartPolicy = "OnFailure" }
	for _, c := range []struct {
		name   string
		job    *schedulingv1.Job
		pods   func(j *schedulingv1.Job) []*schedulingv1.Pod
		create int
		remove []string
		end    string // condition and reason
		wake   time.Duration
		gone   bool
	}{
		{name: "as many pods run at once as may", job: job(), create: 2},
		{
			name: "no more run than are needed", job: job(), pods: some(ended("Succeeded", 0), ended("Succeeded", 0)),
			create: 1,
		},
		{name: "enough have succeeded", job: job(), pods: some(ended("Succeeded", 0), ended("Succeeded", 0),
			ended("Succeeded", 0)), end: "Complete CompletionsReached"},
		{
			name: "a failed pod is replaced after ten seconds", job: job(), pods: some(ended("Failed", 4*time.Second), unready),
			wake: 6 * time.Second,
		},
		{name: "and after that", job: job(), pods: some(ended("Failed", 10*time.Second), unready), create: 1},
		{
			name: "the third failure waits forty seconds", job: job(), wake: 40 * time.Second,
			pods: some(ended("Failed", 0), ended("Failed", 0), ended("Failed", 0)),
		},
		{
			name: "a success restarts the delay", job: job(), wake: 10 * time.Second,
			pods: some(ended("Failed", 3*time.Minute), ended("Failed", 2*time.Minute), ended("Succeeded", time.Minute),
				ended("Failed", 0)),
		},
		{
			name: "too many failures end it", job: job(limit(1)), pods: some(ended("Failed", 0), ended("Failed", 0), unready),
			remove: []string{"p2"},
			end:    "FailureTarget BackoffLimitExceeded",
		},
		{
			name: "starts inside pods count as well", job: job(limit(3), again), pods: some(restarted(1), restarted(2)),
			remove: []string{"p0", "p1"}, end: "FailureTarget BackoffLimitExceeded",
		},
		{name: "as long as they are fewer", job: job(limit(3), again), pods: some(restarted(1), restarted(1))},
		{
			name: "a limit of 0 bears none", job: job(limit(0), again), pods: some(restarted(1)), remove: []string{"p0"},
			end: "FailureTarget BackoffLimitExceeded",
		},
		{
			name: "without a start there is none", job: job(limit(0), again), pods: some(restarted(0), restarted(0)),
		},
		{
			name: "the deadline ends it", job: job(short), pods: some(unready), remove: []string{"p0"},
			end: "FailureTarget DeadlineExceeded",
		},
		{
			name: "it has failed once its pods are gone", job: job(short), pods: some(ended("Failed", 0)),
			end: "Failed DeadlineExceeded",
		},
		{name: "and not before", job: job(short), pods: some(leaving), end: "FailureTarget DeadlineExceeded"},
		{
			name: "nor is it complete before",
			job:  job(func(j *schedulingv1.Job) { j.Status.Succeeded = proto.Int32(3) }), pods: some(unready, leaving),
			remove: []string{"p0"}, end: "SuccessCriteriaMet CompletionsReached",
		},
		{
			name: "a suspended job runs nothing", job: job(suspend), pods: some(unready), remove: []string{"p0"},
			end: "Suspended JobSuspended",
		},
		{name: "a pod on its way out is replaced", job: job(), pods: some(leaving, unready), create: 1},
		{
			name: "less parallelism takes pods away",
			job:  job(func(j *schedulingv1.Job) { j.Spec.Parallelism = proto.Int32(1) }),
			pods: some(ready(start), unready), remove: []string{"p1"},
		},
		{name: "a queue makes no more pods after one succeeded", job: job(queue), pods: some(ended("Succeeded", 0), unready)},
		{
			name: "a queue is done when the last one ended", job: job(queue), pods: some(ended("Succeeded", 0)),
			end: "Complete CompletionsReached",
		},
		{name: "an ended job makes nothing", job: job(completed("Complete", time.Minute))},
		{name: "an ended job is kept", job: job(completed("Complete", 20*time.Second), ttl), wake: 40 * time.Second},
		{name: "and goes then", job: job(completed("Failed", 60*time.Second), ttl), gone: true},
		{
			name: "pods that succeeded and are gone still count",
			job:  job(func(j *schedulingv1.Job) { j.Status.Succeeded = proto.Int32(3) }), end: "Complete CompletionsReached",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := plan.JobView{Now: start, Job: c.job}
			if c.pods != nil {
				v.Pods = c.pods(c.job)
			}
			p := plan.Job(v)
			if len(p.Create) != c.create || p.Remove != c.gone {
				t.Errorf("creates %d, removes the job %t, want %d, %t", len(p.Create), p.Remove, c.create, c.gone)
			}
			if d := cmp.Diff(c.remove, names(p.Delete)); d != "" {
				t.Errorf("removes: %s", d)
			}
			if c.wake > 0 && !p.Wake.Equal(start.Add(c.wake)) {
				t.Errorf("wakes after %v, want %v", p.Wake.Sub(start), c.wake)
			}
			if got := lastReason(p.Status); c.end != "" && got != c.end {
				t.Errorf("condition %q, want %q", got, c.end)
			}
		})
	}
}

func lastReason(s *schedulingv1.JobStatus) string {
	if n := len(s.GetConditions()); n > 0 {
		return s.GetConditions()[n-1].GetType() + " " + s.GetConditions()[n-1].GetReason()
	}
	return ""
}

func some(states ...change) func(*schedulingv1.Job) []*schedulingv1.Pod {
	return func(j *schedulingv1.Job) (out []*schedulingv1.Pod) {
		for i, s := range states {
			out = append(out, pod("p"+string(rune('0'+i)), j, s))
		}
		return out
	}
}

func TestJobPodsCarryItsName(t *testing.T) {
	j := job(func(j *schedulingv1.Job) { j.Spec.Selector = nil })
	got := plan.Job(plan.JobView{Now: start, Job: j}).Create[0]
	if l := got.GetMetadata().GetLabels(); l["job-name"] != "sum" || l["batch.kubernetes.io/controller-uid"] != "j" ||
		l["app"] != "web" {
		t.Errorf("labels %v", l)
	}
	if p := plan.Job(plan.JobView{Now: start, Job: j, Pods: []*schedulingv1.Pod{got}}); len(p.Release) > 0 {
		t.Error("a job without a selector releases its own pods")
	}
}

func TestJobNeverRunsMoreThanItMay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := job()
		j.Spec.Parallelism, j.Spec.Completions = proto.Int32(int32(rapid.IntRange(0, 4).Draw(t, "parallelism"))),
			proto.Int32(int32(rapid.IntRange(0, 5).Draw(t, "completions")))
		var pods []*schedulingv1.Pod
		active, succeeded := 0, 0
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			p := drawPod(t, i, j)
			pods = append(pods, p)
			switch ph := p.GetStatus().GetPhase(); {
			case ph == "Succeeded":
				succeeded++
			case ph != "Failed" && !object.Deleting(p):
				active++
			}
		}
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: pods})
		after := active + len(p.Create) - len(p.Delete)
		if most := max(0, min(int(j.Spec.GetParallelism()), int(j.Spec.GetCompletions())-succeeded)); after > most {
			t.Fatalf("%d pods run, want %d at most", after, most)
		}
		if len(p.Create) > 0 && len(p.Delete) > 0 {
			t.Fatal("makes and removes pods at once")
		}
	})
}

// TestJobCountsEveryEndOnce has pods end and go in any order, as when their nodes go: what ended before counts on, and
// nothing counts twice.
func TestJobCountsEveryEndOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := job(func(j *schedulingv1.Job) {
			j.Spec.Completions, j.Spec.Parallelism, j.Spec.BackoffLimit = proto.Int32(1000), proto.Int32(5), proto.Int32(1000)
		})
		var pods []*schedulingv1.Pod
		made, succeeded, failed := 0, int32(0), int32(0)
		for range rapid.IntRange(1, 12).Draw(t, "looks") {
			for range rapid.IntRange(0, 3).Draw(t, "ends") {
				made++
				if rapid.Bool().Draw(t, "well") {
					succeeded++
					pods = append(pods, pod(fmt.Sprintf("p%d", made), j, ended("Succeeded", 0)))
				} else {
					failed++
					pods = append(pods, pod(fmt.Sprintf("p%d", made), j, ended("Failed", 0)))
				}
			}
			p := plan.Job(plan.JobView{Now: start, Job: j, Pods: pods})
			if p.Status.GetSucceeded() != succeeded || p.Status.GetFailed() != failed {
				t.Fatalf("%d succeeded and %d failed, counted are %d and %d", succeeded, failed, p.Status.GetSucceeded(),
					p.Status.GetFailed())
			}
			if rapid.IntRange(0, 3).Draw(t, "written") > 0 { // else it is reconciled once more before that
				j = plan.JobAfter(j, p)
				pods = slices.DeleteFunc(slices.Clone(pods), func(*schedulingv1.Pod) bool { return rapid.Bool().Draw(t, "goes") })
			}
		}
	})
}

func TestJobWhosePodsNobodyCountedByNameTakesTheLargerNumber(t *testing.T) {
	j := job(func(j *schedulingv1.Job) { j.Status.Succeeded = proto.Int32(2) })
	if got := plan.Job(plan.JobView{
		Now: start, Job: j, Pods: some(ended("Succeeded", 0))(j),
	}).Status.GetSucceeded(); got != 2 {
		t.Errorf("counted are %d, want 2", got)
	}
}

// TestPodsThatEndTogetherAreCountedInParts has more pods end at once, as while no scheduler leads, than the annotations
// of a job have room for. The oldest that are counted are deleted, as the collector does.
func TestPodsThatEndTogetherAreCountedInParts(t *testing.T) {
	const many, most, kept = 10_000, 128 << 10, 1000
	j := job(func(j *schedulingv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism = proto.Int32(many), proto.Int32(many)
	})
	var pods []*schedulingv1.Pod
	for i := range many {
		p := pod(fmt.Sprintf("p%d", i), j, ended("Succeeded", 0))
		p.Metadata.Uid = fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
		pods = append(pods, p)
	}
	seen := map[*schedulingv1.Pod]bool{}
	for round := 0; j.GetStatus().GetSucceeded() < many; round++ {
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: pods})
		if len(p.Create)+len(p.Delete) > 0 || round > 0 && p.Status.GetSucceeded() <= j.GetStatus().GetSucceeded() {
			t.Fatalf("in round %d, %d pods are made and %d removed, and %d count", round, len(p.Create), len(p.Delete),
				p.Status.GetSucceeded())
		}
		for _, pod := range p.Counted {
			seen[pod] = true
		}
		if len(seen) != int(p.Status.GetSucceeded()) {
			t.Fatalf("%d are named and %d count", len(seen), p.Status.GetSucceeded())
		}
		j = plan.JobAfter(j, p)
		for key, value := range j.GetMetadata().GetAnnotations() {
			if len(value) > most {
				t.Fatalf("annotation %s has %d bytes, may have %d", key, len(value), most)
			}
		}
		gone := map[*schedulingv1.Pod]bool{}
		for _, pod := range plan.Ended(plan.EndedView{
			Now: start, Pods: pods, JobOf: func(*schedulingv1.Pod) *schedulingv1.Job { return j },
		}).Delete {
			gone[pod] = true
		}
		pods = slices.DeleteFunc(pods, func(p *schedulingv1.Pod) bool { return gone[p] })
	}
	if len(pods) != kept || j.GetStatus().GetSucceeded() != many {
		t.Errorf("%d pods are left and %d count, want %d and %d", len(pods), j.GetStatus().GetSucceeded(), kept, many)
	}
	if c := object.FindCondition(j.GetStatus().GetConditions(), "Complete"); c.GetStatus() != "True" {
		t.Errorf("the job has the conditions %v", j.GetStatus().GetConditions())
	}
}
