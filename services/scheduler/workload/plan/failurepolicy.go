package plan

import (
	"fmt"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Actions of the rules of a podFailurePolicy.
const (
	failJob   = "FailJob"
	failIndex = "FailIndex"
	ignore    = "Ignore"
)

// verdict is what a podFailurePolicy says of a failed pod. The zero verdict is that of a pod that no rule matches: it
// counts as a failure.
type verdict struct {
	action  string // of the rule that matches
	message string // of the job, if that fails
}

// verdictOn returns what a failed pod means for its job: the first rule that matches it decides. Source: Kubernetes'
// job controller.
func (j *job) verdictOn(pod *schedulingv1.Pod) verdict {
	m := pod.GetMetadata()
	for i, r := range j.spec.GetPodFailurePolicy().GetRules() {
		what := ""
		if on := r.GetOnExitCodes(); on != nil {
			if c := exitOf(pod, on); c != nil {
				what = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching", c.GetName(), m.GetNamespace(),
					m.GetName(), c.GetState().GetTerminated().GetExitCode())
			}
		} else if c := conditionOf(pod, r.GetOnPodConditions()); c != nil {
			what = fmt.Sprintf("Pod %s/%s has condition %s matching", m.GetNamespace(), m.GetName(), c.GetType())
		}
		if what != "" {
			return verdict{r.GetAction(), fmt.Sprintf("%s %s rule at index %d", what, r.GetAction(), i)}
		}
	}
	return verdict{}
}

// exitOf returns the first container of a pod that failed with an exit code that a rule is for; nil if there is none. A
// container that has not ended has no exit code.
func exitOf(pod *schedulingv1.Pod,
	on *schedulingv1.PodFailurePolicyOnExitCodesRequirement,
) *schedulingv1.ContainerStatus {
	s := pod.GetStatus()
	for _, c := range slices.Concat(s.GetContainerStatuses(), s.GetInitContainerStatuses()) {
		code := c.GetState().GetTerminated().GetExitCode()
		if code == 0 || on.ContainerName != nil && on.GetContainerName() != c.GetName() {
			continue
		}
		if slices.Contains(on.GetValues(), code) == (on.GetOperator() == "In") {
			return c
		}
	}
	return nil
}

// conditionOf returns the first condition of a pod that one of some patterns is for; nil if there is none.
func conditionOf(pod *schedulingv1.Pod,
	patterns []*schedulingv1.PodFailurePolicyOnPodConditionsPattern,
) *schedulingv1.PodCondition {
	for _, p := range patterns {
		want := p.GetStatus()
		if want == "" {
			want = "True"
		}
		for _, c := range pod.GetStatus().GetConditions() {
			if c.GetType() == p.GetType() && c.GetStatus() == want {
				return c
			}
		}
	}
	return nil
}
