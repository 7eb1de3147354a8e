package plan_test

import (
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// exited has the containers of a pod end with exit codes; "-" is an init container.
func exited(codes map[string]int32) change {
	return func(p *schedulingv1.Pod) {
		ended("Failed", time.Hour)(p)
		p.Status.ContainerStatuses = nil
		for name, code := range codes {
			c := &schedulingv1.ContainerStatus{Name: name, State: &schedulingv1.ContainerState{
				Terminated: &schedulingv1.ContainerStateTerminated{
					ExitCode:   proto.Int32(code),
					FinishedAt: at(start.Add(-time.Hour)),
				},
			}}
			if code < 0 {
				c.State = &schedulingv1.ContainerState{Running: &schedulingv1.ContainerStateRunning{}}
			}
			if name == "-" {
				p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, c)
			} else {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, c)
			}
		}
	}
}

func goesFor(reason string) change {
	return func(p *schedulingv1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, &schedulingv1.PodCondition{
			Type: "DisruptionTarget", Status: "True", Reason: &reason,
		})
	}
}

func both(a, b change) change {
	return func(p *schedulingv1.Pod) { a(p); b(p) }
}

func TestWhatAFailedPodMeansForItsJob(t *testing.T) {
	codes := func(action, container, operator string, values ...int32) *schedulingv1.PodFailurePolicyRule {
		on := &schedulingv1.PodFailurePolicyOnExitCodesRequirement{Operator: operator, Values: values}
		if container != "" {
			on.ContainerName = &container
		}
		return &schedulingv1.PodFailurePolicyRule{Action: action, OnExitCodes: on}
	}
	disrupted := func(action string) *schedulingv1.PodFailurePolicyRule {
		return &schedulingv1.PodFailurePolicyRule{
			Action:          action,
			OnPodConditions: []*schedulingv1.PodFailurePolicyOnPodConditionsPattern{{Type: "DisruptionTarget", Status: "True"}},
		}
	}
	for _, tc := range []struct {
		name    string
		rules   []*schedulingv1.PodFailurePolicyRule
		pod     change
		counted int32
		message string // of the condition FailureTarget
	}{
		{
			name: "an exit code of the list fails the job", pod: exited(map[string]int32{"web": 42}), counted: 1,
			rules:   []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "", "In", 1, 42)},
			message: "Container web for pod default/p0 failed with exit code 42 matching FailJob rule at index 0",
		},
		{
			name: "another one counts", pod: exited(map[string]int32{"web": 2}), counted: 1,
			rules: []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "", "In", 1, 42)},
		},
		{
			name: "an exit code that is not of the list", pod: exited(map[string]int32{"web": 2}), counted: 1,
			rules:   []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "", "NotIn", 1, 42)},
			message: "Container web for pod default/p0 failed with exit code 2 matching FailJob rule at index 0",
		},
		{
			name: "0 is no failure, even if it is not of the list", pod: exited(map[string]int32{"web": 0}), counted: 1,
			rules: []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "", "NotIn", 1)},
		},
		{
			name: "a container that runs has no exit code", pod: exited(map[string]int32{"web": -1}), counted: 1,
			rules: []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "", "NotIn", 1)},
		},
		{
			name: "a rule for another container", pod: exited(map[string]int32{"web": 0, "side": 42}), counted: 1,
			rules: []*schedulingv1.PodFailurePolicyRule{codes("FailJob", "web", "In", 42)},
		},
		{
			name: "init containers have exit codes, too", pod: exited(map[string]int32{"-": 42}), counted: 0,
			rules: []*schedulingv1.PodFailurePolicyRule{codes("Ignore", "", "In", 42)},
		},
		{
			name: "a pod that was evicted is ignored", counted: 0,
			pod:   both(exited(map[string]int32{"web": 143}), goesFor("EvictionByEvictionAPI")),
			rules: []*schedulingv1.PodFailurePolicyRule{disrupted("Ignore"), codes("FailJob", "", "NotIn", 1)},
		},
		{
			name: "the first rule that matches decides", counted: 1,
			pod:     both(exited(map[string]int32{"web": 143}), goesFor("PreemptionByScheduler")),
			rules:   []*schedulingv1.PodFailurePolicyRule{codes("Count", "", "In", 143), disrupted("FailJob")},
			message: "",
		},
		{
			name: "a condition fails the job", counted: 1, rules: []*schedulingv1.PodFailurePolicyRule{disrupted("FailJob")},
			pod:     both(exited(map[string]int32{"web": 143}), goesFor("DeletionByTaintManager")),
			message: "Pod default/p0 has condition DisruptionTarget matching FailJob rule at index 0",
		},
	} {
		j := job(func(j *schedulingv1.Job) {
			j.Spec.PodFailurePolicy = &schedulingv1.PodFailurePolicy{Rules: tc.rules}
			j.Spec.BackoffLimit = proto.Int32(6)
		})
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: some(tc.pod)(j)})
		c := object.FindCondition(p.Status.GetConditions(), "FailureTarget")
		if c.GetMessage() != tc.message || p.Status.GetFailed() != tc.counted {
			t.Errorf("%s: %d failed, %v", tc.name, p.Status.GetFailed(), c)
		}
		if tc.message == "" && len(p.Create) != 2 || tc.message != "" && len(p.Create) != 0 {
			t.Errorf("%s: %d pods are created", tc.name, len(p.Create))
		}
		again := plan.Job(plan.JobView{Now: start, Job: plan.JobAfter(j, p), Pods: some(tc.pod)(j)})
		if again.Status.GetFailed() != tc.counted {
			t.Errorf("%s: decided again, %d failed", tc.name, again.Status.GetFailed())
		}
	}
}

func TestAnIndexFailsByTheFailurePolicy(t *testing.T) {
	j := indexed(3, 3, perIndex(5), func(j *schedulingv1.Job) {
		j.Spec.PodFailurePolicy = &schedulingv1.PodFailurePolicy{Rules: []*schedulingv1.PodFailurePolicyRule{{
			Action:      "FailIndex",
			OnExitCodes: &schedulingv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{42}},
		}}}
	})
	p := plan.Job(plan.JobView{Now: start, Job: j, Pods: some(both(exited(map[string]int32{"web": 42}), ofIndex(1)))(j)})
	if p.Status.GetFailedIndexes() != "1" || len(p.Create) != 2 {
		t.Errorf("failed are %q, created %v", p.Status.GetFailedIndexes(), p.Create)
	}
}

// TestWhenAPodOfAJobIsReplaced has a pod be deleted that has not ended.
func TestWhenAPodOfAJobIsReplaced(t *testing.T) {
	for _, tc := range []struct {
		policy string
		create int
		held   bool
	}{{"", 1, false}, {"TerminatingOrFailed", 1, false}, {"Failed", 0, true}} {
		j := job(func(j *schedulingv1.Job) {
			if tc.policy != "" {
				j.Spec.PodReplacementPolicy = &tc.policy
			}
		})
		p := plan.Job(plan.JobView{Now: start, Job: j, Pods: some(leaving, unready)(j)})
		if len(p.Create) != tc.create || (len(p.Held) == 1) != tc.held || p.Status.GetTerminating() != 1 {
			t.Errorf("%q: %d are created, held back are %v", tc.policy, len(p.Create), p.Held)
		}
		if tc.held && (p.Held[0].GetSinceTime() == nil || p.Held[0].GetUnblock() == "") {
			t.Errorf("%q: %v does not say since when and until when", tc.policy, p.Held[0])
		}
	}
}
