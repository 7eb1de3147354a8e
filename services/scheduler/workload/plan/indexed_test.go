package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// TestEachIndexOfAnIndexedJobSucceedsOnce plays a job of five indexes whose pods disappear as soon as they have ended,
// once what they did is counted, and whose index 1 fails first.
func TestEachIndexOfAnIndexedJobSucceedsOnce(t *testing.T) {
	j := job(func(j *schedulingv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism = proto.Int32(5), proto.Int32(2)
		j.Spec.CompletionMode = proto.String(plan.Indexed)
	})
	now, pods, made := start, []*schedulingv1.Pod(nil), 0
	var order []string
	for range 20 {
		p := plan.Job(plan.JobView{Now: now, Job: j, Pods: pods})
		j = plan.JobAfter(j, p)
		if len(p.Delete) > 0 {
			t.Fatalf("%d pods are deleted", len(p.Delete))
		}
		pods = slices.DeleteFunc(pods, placement.Terminated)
		for _, pod := range p.Create {
			made++
			index := pod.GetMetadata().GetAnnotations()[plan.IndexKey]
			pod.Metadata.Name, pod.Metadata.Uid = fmt.Sprint("p", made), fmt.Sprint("uid-", made)
			env := pod.GetSpec().GetContainers()[0].GetEnv()
			if last := env[len(env)-1]; last.GetName() != "JOB_COMPLETION_INDEX" || last.GetValue() != index ||
				pod.GetMetadata().GetLabels()[plan.IndexKey] != index || pod.GetSpec().GetHostname() != "sum-"+index ||
				pod.GetMetadata().GetGenerateName() != "sum-"+index+"-" {
				t.Fatalf("pod of index %s: %v", index, pod)
			}
			pod.Status = &schedulingv1.PodStatus{}
			order = append(order, index)
			pods = append(pods, pod)
		}
		if len(pods) == 0 {
			if p.Wake.IsZero() {
				break
			}
			now = p.Wake
			continue
		}
		in := "Succeeded"
		if made == 2 && len(pods) == 2 { // index 1, the first time
			pods[0], pods[1] = pods[1], pods[0]
			in = "Failed"
		}
		ended(in, 0)(pods[0])
		now = now.Add(time.Minute)
	}
	if got := fmt.Sprint(order); got != "[0 1 1 2 3 4]" {
		t.Errorf("pods were made for the indexes %s", got)
	}
	if done := j.GetStatus().GetCompletedIndexes(); done != "0-4" ||
		j.GetStatus().GetSucceeded() != 5 || j.GetStatus().GetFailed() != 1 || j.GetStatus().GetCompletionTime() == nil {
		t.Errorf("done are %q: %v", done, j.GetStatus())
	}
}

func TestOnePodRunsForAnIndex(t *testing.T) {
	j := job(func(j *schedulingv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism = proto.Int32(5), proto.Int32(4)
		j.Spec.CompletionMode = proto.String(plan.Indexed)
		j.Status.CompletedIndexes = "1-2"
	})
	of := func(index string) change {
		return func(p *schedulingv1.Pod) { p.Metadata.Annotations = map[string]string{plan.IndexKey: index} }
	}
	pods := some(of("0"), of("0"), of("2"), of("9"), func(*schedulingv1.Pod) {})(j)
	p := plan.Job(plan.JobView{Now: start, Job: j, Pods: pods})
	if len(p.Delete) != 4 || slices.Contains(p.Delete, pods[0]) || len(p.Create) != 0 {
		t.Errorf("%d are deleted and %d made; want all deleted but the first of index 0", len(p.Delete), len(p.Create))
	}
	p = plan.Job(plan.JobView{Now: start, Job: j, Pods: pods[:1]})
	if len(p.Create) != 2 || p.Create[0].GetMetadata().GetAnnotations()[plan.IndexKey] != "3" {
		t.Errorf("made are %v, want 3 and 4", p.Create)
	}
}

// ofIndex has a pod be of an index of an indexed job.
func ofIndex(n int) change {
	return func(p *schedulingv1.Pod) { p.Metadata.Annotations = map[string]string{plan.IndexKey: fmt.Sprint(n)} }
}

func indexed(completions, parallelism int32, changes ...func(*schedulingv1.Job)) *schedulingv1.Job {
	return job(append([]func(*schedulingv1.Job){func(j *schedulingv1.Job) {
		j.Spec.Completions, j.Spec.Parallelism = &completions, &parallelism
		j.Spec.CompletionMode = proto.String(plan.Indexed)
	}}, changes...)...)
}

func perIndex(limit int32) func(*schedulingv1.Job) {
	return func(j *schedulingv1.Job) { j.Spec.BackoffLimitPerIndex = &limit }
}

// TestEachIndexBearsItsOwnFailures plays an indexed job whose index 1 always fails, and whose failed pods disappear as
// soon as they are counted: the index fails after two failures, the others succeed, and the job fails at the end.
func TestEachIndexBearsItsOwnFailures(t *testing.T) {
	for _, most := range []*int32{nil, proto.Int32(0), proto.Int32(1)} {
		j := indexed(4, 2, perIndex(1), func(j *schedulingv1.Job) { j.Spec.MaxFailedIndexes = most })
		now, pods, made := start, []*schedulingv1.Pod(nil), 0
		var order []string
		for range 40 {
			p := plan.Job(plan.JobView{Now: now, Job: j, Pods: pods})
			j = plan.JobAfter(j, p)
			pods = slices.DeleteFunc(pods, func(pod *schedulingv1.Pod) bool {
				return placement.Terminated(pod) || slices.Contains(p.Delete, pod)
			})
			for _, pod := range p.Create {
				made++
				a := pod.GetMetadata().GetAnnotations()
				pod.Metadata.Name, pod.Metadata.Uid = fmt.Sprint("p", made), fmt.Sprint("uid-", made)
				pod.Status = &schedulingv1.PodStatus{}
				order = append(order, a[plan.IndexKey]+"/"+a["batch.kubernetes.io/job-index-failure-count"])
				pods = append(pods, pod)
			}
			if len(pods) > 0 {
				if pods[0].GetMetadata().GetAnnotations()[plan.IndexKey] == "1" {
					ended("Failed", 0)(pods[0])
				} else {
					ended("Succeeded", 0)(pods[0])
				}
			}
			now = now.Add(time.Minute)
		}
		s := j.GetStatus()
		got := fmt.Sprint(order, " done ", s.GetCompletedIndexes(), " failed ", s.GetFailedIndexes(), " ", lastReason(s))
		want := "[0/0 1/0 2/0 1/1 3/0] done 0,2-3 failed 1 Failed FailedIndexes"
		if most != nil && *most == 0 {
			want = "[0/0 1/0 2/0 1/1 3/0] done 0,2 failed 1 Failed MaxFailedIndexesExceeded"
		}
		if got != want {
			t.Errorf("maxFailedIndexes %v: %s\nwant %s", most, got, want)
		}
		if a := j.GetMetadata().GetAnnotations()["windlass.dev/index-failures"]; a != "" {
			t.Errorf("failures of indexes that are over are kept: %q", a)
		}
	}
}

func TestAnIndexThatFailedWaitsAlone(t *testing.T) {
	j := indexed(4, 3, perIndex(5))
	failed := func(ago time.Duration, n int) change {
		return func(p *schedulingv1.Pod) { ended("Failed", ago)(p); ofIndex(n)(p) }
	}
	p := plan.Job(plan.JobView{Now: start, Job: j, Pods: some(failed(4*time.Second, 0), failed(20*time.Second, 1))(j)})
	var got []string
	for _, pod := range p.Create {
		got = append(got, pod.GetMetadata().GetAnnotations()[plan.IndexKey])
	}
	if fmt.Sprint(got) != "[1 2]" || len(p.Held) != 1 || !p.Wake.Equal(start.Add(6*time.Second)) {
		t.Errorf("pods are made for %v, held back are %v until %v", got, p.Held, p.Wake)
	}
}

func TestAnIndexedJobSucceedsByItsPolicy(t *testing.T) {
	rule := func(indexes string, count int32) *schedulingv1.SuccessPolicyRule {
		r := &schedulingv1.SuccessPolicyRule{}
		if indexes != "" {
			r.SucceededIndexes = &indexes
		}
		if count > 0 {
			r.SucceededCount = &count
		}
		return r
	}
	for _, tc := range []struct {
		name  string
		rules []*schedulingv1.SuccessPolicyRule
		done  string
		want  string
	}{
		{"all of some indexes", []*schedulingv1.SuccessPolicyRule{rule("0,2-3", 0)}, "0,2-3", "Matched rules at index 0"},
		{"not all of them", []*schedulingv1.SuccessPolicyRule{rule("0,2-3", 0)}, "0-2,4,6-9", ""},
		{"as many of some as are needed", []*schedulingv1.SuccessPolicyRule{rule("0,2-3", 2)}, "1-2", ""},
		{"of some", []*schedulingv1.SuccessPolicyRule{rule("0,2-3", 2)}, "0-2", "Matched rules at index 0"},
		{"a number of any", []*schedulingv1.SuccessPolicyRule{rule("9", 0), rule("", 2)}, "4,7", "Matched rules at index 1"},
		{"fewer", []*schedulingv1.SuccessPolicyRule{rule("9", 0), rule("", 3)}, "4,7", ""},
		{"none has succeeded", []*schedulingv1.SuccessPolicyRule{rule("", 1)}, "", ""},
	} {
		j := indexed(10, 3, func(j *schedulingv1.Job) {
			j.Spec.SuccessPolicy = &schedulingv1.SuccessPolicy{Rules: tc.rules}
			j.Status.CompletedIndexes = tc.done
		})
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: some(ofIndex(5))(j)})
		c := object.FindCondition(p.Status.GetConditions(), "SuccessCriteriaMet")
		if c.GetMessage() != tc.want || (len(p.Delete) == 1) != (tc.want != "") || c != nil &&
			c.GetReason() != "SuccessPolicy" {
			t.Errorf("%s: %v, deleted are %v", tc.name, c, names(p.Delete))
			continue
		}
		if tc.want == "" {
			continue
		}
		if len(p.Held) != 1 || p.Held[0].GetAction() != "CompleteJob" || p.Held[0].GetSinceTime() == nil {
			t.Errorf("%s: while a pod is there, held back are %v", tc.name, p.Held)
		}
		p = plan.Job(plan.JobView{Now: start, Job: plan.JobAfter(j, p)})
		if got := lastReason(p.Status); got != "Complete SuccessPolicy" || p.Status.GetCompletionTime() == nil {
			t.Errorf("%s: once its pods are gone, it is %s", tc.name, got)
		}
	}
}

// TestIndexSets compares sets of indexes with plain ones.
func TestIndexSets(t *testing.T) {
	for _, text := range []string{"0-2,5", "7", "0,2,4-6"} {
		if n, err := plan.CountIndexes(text, 10); err != nil || n == 0 {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{
		"", "a", "1-", "-1", "3-2", "2-2", "1,1", "5,3", "0-3,2", "10", "0-10", "+1", "1,,2",
		" 1",
	} {
		if n, err := plan.CountIndexes(text, 10); err == nil {
			t.Errorf("%q is accepted as %d indexes", text, n)
		}
	}
	if n, err := plan.CountIndexes("0-1999999999", 2_000_000_000); n != 2_000_000_000 || err != nil {
		t.Errorf("a large range has %d, %v", n, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		j := indexed(30, 30)
		want := map[int]bool{}
		var pods []*schedulingv1.Pod
		for i := range rapid.IntRange(0, 40).Draw(t, "pods") {
			n := rapid.IntRange(0, 29).Draw(t, "index")
			want[n] = true
			pods = append(pods, pod(fmt.Sprint("p", i), j, ended("Succeeded", 0), ofIndex(n)))
		}
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: pods})
		text := p.Status.GetCompletedIndexes()
		n, err := plan.CountIndexes(text, 30)
		if len(want) > 0 && (err != nil || n != len(want)) || int(p.Status.GetSucceeded()) != len(want) {
			t.Fatalf("%d indexes are %q: %d, %v", len(want), text, n, err)
		}
		if len(want) < 30 && len(p.Create) != 30-len(want) {
			t.Fatalf("%d pods are created beside %q", len(p.Create), text)
		}
		for _, pod := range p.Create {
			var n int
			if _, err := fmt.Sscan(pod.GetMetadata().GetAnnotations()[plan.IndexKey], &n); err != nil || want[n] {
				t.Fatalf("a pod is created for index %d, done are %q", n, text)
			}
		}
	})
}
