package kinds

import (
	"fmt"
	"maps"
	"math"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"

	workload "github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// defaultJob makes the selector by which a job knows its pods: no other pods carry its uid.
func defaultJob(j *schedulingv1.Job) {
	if j.Spec == nil {
		j.Spec = &schedulingv1.JobSpec{}
	}
	s := j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = proto.Int32(1)
	}
	numberOr(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex == nil {
		numberOr(&s.BackoffLimit, 6)
	}
	numberOr(&s.BackoffLimit, math.MaxInt32) // the indexes have limits of their own
	if s.PodReplacementPolicy == nil {
		s.PodReplacementPolicy = proto.String("TerminatingOrFailed")
		if s.PodFailurePolicy != nil {
			s.PodReplacementPolicy = proto.String("Failed")
		}
	}
	for _, r := range s.GetPodFailurePolicy().GetRules() {
		for _, c := range r.GetOnPodConditions() {
			orElse(&c.Status, "True")
		}
	}
	if s.CompletionMode == nil {
		s.CompletionMode = proto.String("NonIndexed")
	}
	if s.Suspend == nil {
		s.Suspend = proto.Bool(false)
	}
	if t := s.Template; t != nil && !s.GetManualSelector() {
		if t.Metadata == nil {
			t.Metadata = &metav1.ObjectMeta{}
		}
		if t.Metadata.Labels == nil {
			t.Metadata.Labels = map[string]string{}
		}
		maps.Copy(t.Metadata.Labels, workload.JobLabels(j))
		if s.Selector == nil {
			s.Selector = workload.JobSelector(j)
		}
	}
	defaultTemplate(s.GetTemplate())
}

func validateJob(j *schedulingv1.Job) []object.Fault {
	s := j.GetSpec()
	bad := append(selectorFaults(s.GetSelector(), s.GetTemplate()), templateFaults(s.GetTemplate(), restartOnFailure,
		restartNever)...)
	if s.GetCompletionMode() == workload.Indexed && s.Completions == nil {
		bad = append(bad, object.Fault{Path: "spec.completions", Description: "must be given for an indexed job"})
	}
	bad = append(bad, failurePolicyFaults(s)...)
	bad = append(bad, successPolicyFaults(s)...)
	bad = append(bad, perIndexFaults(s)...)
	if want := j.GetMetadata().GetUid(); s.GetTemplate() != nil && !s.GetManualSelector() &&
		s.GetSelector().GetMatchLabels()[workload.ControllerUIDLabel] != want {
		bad = append(bad,
			object.Fault{Path: "spec.selector", Description: "is made by the server: leave it out, or set spec.manualSelector"})
	}
	return bad
}

func validateJobUpdate(old, j *schedulingv1.Job) []object.Fault {
	was, is := old.GetSpec(), j.GetSpec()
	bad := append(unchanged("spec.selector", was.GetSelector(), is.GetSelector()),
		unchanged("spec.template", was.GetTemplate(), is.GetTemplate())...)
	if was.GetCompletions() != is.GetCompletions() || (was.Completions == nil) != (is.Completions == nil) {
		bad = append(bad, object.Fault{Path: "spec.completions", Description: "cannot be changed"})
	}
	if was.GetCompletionMode() != is.GetCompletionMode() {
		bad = append(bad, object.Fault{Path: "spec.completionMode", Description: "cannot be changed"})
	}
	if (was.BackoffLimitPerIndex == nil) != (is.BackoffLimitPerIndex == nil) ||
		was.GetBackoffLimitPerIndex() != is.GetBackoffLimitPerIndex() {
		bad = append(bad, object.Fault{Path: "spec.backoffLimitPerIndex", Description: "cannot be changed"})
	}
	bad = append(bad, unchanged("spec.podFailurePolicy", was.GetPodFailurePolicy(), is.GetPodFailurePolicy())...)
	bad = append(bad, unchanged("spec.successPolicy", was.GetSuccessPolicy(), is.GetSuccessPolicy())...)
	return bad
}

// failurePolicyFaults returns what is wrong with the podFailurePolicy of a job.
func failurePolicyFaults(s *schedulingv1.JobSpec) []object.Fault {
	policy := s.GetPodFailurePolicy()
	if policy == nil {
		return nil
	}
	var bad []object.Fault
	if s.GetTemplate().GetSpec().GetRestartPolicy() != restartNever {
		bad = append(bad, object.Fault{
			Path: "spec.template.spec.restartPolicy", Description: "must be Never with a podFailurePolicy",
		})
	}
	if s.GetPodReplacementPolicy() != "Failed" {
		bad = append(bad, object.Fault{
			Path: "spec.podReplacementPolicy", Description: "must be Failed with a podFailurePolicy",
		})
	}
	names := map[string]bool{}
	for _, c := range slices.Concat(s.GetTemplate().GetSpec().GetInitContainers(),
		s.GetTemplate().GetSpec().GetContainers()) {
		names[c.GetName()] = true
	}
	for i, r := range policy.GetRules() {
		at := fmt.Sprintf("spec.podFailurePolicy.rules[%d]", i)
		codes := r.GetOnExitCodes()
		if (codes != nil) == (len(r.GetOnPodConditions()) > 0) {
			bad = append(bad, object.Fault{Path: at, Description: "must have one of onExitCodes and onPodConditions"})
		}
		if r.GetAction() == "FailIndex" && s.BackoffLimitPerIndex == nil {
			bad = append(bad, object.Fault{
				Path: at + ".action", Description: "FailIndex needs spec.backoffLimitPerIndex",
			})
		}
		if codes == nil {
			continue
		}
		at += ".onExitCodes"
		if codes.ContainerName != nil && !names[codes.GetContainerName()] {
			bad = append(bad, object.Faultf(at+".containerName", "the template has no container %q", codes.GetContainerName()))
		}
		values := codes.GetValues()
		if codes.GetOperator() == "In" && slices.Contains(values, 0) {
			bad = append(bad, object.Fault{
				Path: at + ".values", Description: "must not have 0 with the operator In: such a container did not fail",
			})
		}
		for k := 1; k < len(values); k++ {
			if values[k] <= values[k-1] {
				bad = append(bad, object.Faultf(fmt.Sprintf("%s.values[%d]", at, k), "must be greater than the one before it"))
			}
		}
	}
	return bad
}

// successPolicyFaults returns what is wrong with the successPolicy of a job.
func successPolicyFaults(s *schedulingv1.JobSpec) []object.Fault {
	if s.GetSuccessPolicy() == nil {
		return nil
	}
	if s.GetCompletionMode() != workload.Indexed {
		return []object.Fault{{Path: "spec.successPolicy", Description: "is for indexed jobs only"}}
	}
	var bad []object.Fault
	for i, r := range s.GetSuccessPolicy().GetRules() {
		at := fmt.Sprintf("spec.successPolicy.rules[%d]", i)
		most := int(s.GetCompletions())
		if r.SucceededIndexes == nil && r.SucceededCount == nil {
			bad = append(bad, object.Fault{Path: at, Description: "must have succeededIndexes or succeededCount"})
		}
		if r.SucceededIndexes != nil {
			n, err := workload.CountIndexes(r.GetSucceededIndexes(), most)
			if err != nil {
				bad = append(bad, object.Fault{Path: at + ".succeededIndexes", Description: err.Error()})
				continue
			}
			most = n
		}
		if int(r.GetSucceededCount()) > most {
			bad = append(bad, object.Faultf(at+".succeededCount", "must be no more than %d, the number of indexes", most))
		}
	}
	return bad
}

// Limits of jobs with backoffLimitPerIndex, whose failures are recorded by index. Source: Kubernetes' jobs.
const (
	manyIndexes  = 100_000 // above it, mostFailed is in force
	mostFailed   = 10_000
	mostParallel = 10_000 // in Kubernetes only above manyIndexes; here the failures of more would not fit an annotation
)

// perIndexFaults returns what is wrong with the limits of a job for each of its indexes.
func perIndexFaults(s *schedulingv1.JobSpec) []object.Fault {
	var bad []object.Fault
	wrong := func(path, why string, args ...any) { bad = append(bad, object.Faultf(path, why, args...)) }
	if s.BackoffLimitPerIndex == nil {
		if s.MaxFailedIndexes != nil {
			wrong("spec.maxFailedIndexes", "needs spec.backoffLimitPerIndex")
		}
		return bad
	}
	if s.GetCompletionMode() != workload.Indexed {
		wrong("spec.backoffLimitPerIndex", "is for indexed jobs only")
	}
	if s.GetTemplate().GetSpec().GetRestartPolicy() != restartNever {
		wrong("spec.template.spec.restartPolicy", "must be Never with backoffLimitPerIndex")
	}
	if s.GetMaxFailedIndexes() > s.GetCompletions() {
		wrong("spec.maxFailedIndexes", "must be no more than spec.completions")
	}
	if s.GetParallelism() > mostParallel {
		wrong("spec.parallelism", "must be no more than %d with backoffLimitPerIndex", mostParallel)
	}
	if s.GetCompletions() <= manyIndexes {
		return bad
	}
	switch {
	case s.MaxFailedIndexes == nil:
		wrong("spec.maxFailedIndexes", "must be given for more than %d completions", manyIndexes)
	case s.GetMaxFailedIndexes() > mostFailed:
		wrong("spec.maxFailedIndexes", "must be no more than %d for more than %d completions", mostFailed, manyIndexes)
	}
	return bad
}
