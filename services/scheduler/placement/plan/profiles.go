package plan

import (
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// defaultPolicy is the name of the policy of DefaultScheduler.
const defaultPolicy = "default"

// Profiles are the policies in force, by the name of the scheduler whose pods they place: DefaultScheduler and those
// that a policy is named after. Other names are those of other schedulers.
type Profiles map[string]*Profile

// Policies returns the profiles of the stored policies. Without one for DefaultScheduler, that has the built-in one.
func Policies(stored []*schedulingv1.Policy) Profiles {
	out := Profiles{DefaultScheduler: Policy(nil)}
	for _, p := range stored {
		if name := p.GetMetadata().GetName(); name == defaultPolicy {
			out[DefaultScheduler] = Policy(p)
		} else {
			out[name] = Policy(p)
		}
	}
	return out
}

// Of returns the profile that a pod is placed by: if another scheduler places it, that of DefaultScheduler.
func (p Profiles) Of(pod *schedulingv1.Pod) *Profile {
	if own := p[SchedulerOf(pod)]; own != nil {
		return own
	}
	return p[DefaultScheduler]
}

// NeedsNode reports whether this scheduler has to find a node for a pod.
func (p Profiles) NeedsNode(pod *schedulingv1.Pod) bool {
	return p[SchedulerOf(pod)] != nil && placeable(pod)
}

// AwaitsOther reports whether another scheduler has to find a node for a pod.
func (p Profiles) AwaitsOther(pod *schedulingv1.Pod) bool {
	return p[SchedulerOf(pod)] == nil && placeable(pod)
}
