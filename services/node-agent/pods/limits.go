package pods

import (
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// limitsOf returns what a container may use. A limit is a request, too, if there is no other.
func limitsOf(c *schedulingv1.Container) cgroup.Limits {
	limits := placement.AmountsOf(c.GetResources().GetLimits())
	requests := placement.AmountsOf(c.GetResources().GetRequests())
	out := cgroup.Limits{
		MilliCPU: limits.MilliCPU, Memory: limits.Memory,
		MilliCPURequest: requests.MilliCPU, MemoryRequest: requests.Memory,
	}
	if _, ok := c.GetResources().GetRequests()[placement.CPU]; !ok {
		out.MilliCPURequest = limits.MilliCPU
	}
	if _, ok := c.GetResources().GetRequests()[placement.Memory]; !ok {
		out.MemoryRequest = limits.Memory
	}
	return out
}

// weightOf returns what all containers of a pod get together. Their limits are those of each.
func weightOf(pod *schedulingv1.Pod) cgroup.Limits {
	requests := placement.RequestsOf(pod.GetSpec())
	return cgroup.Limits{MilliCPURequest: requests.MilliCPU, MemoryRequest: requests.Memory}
}

// enforceable returns the verdict on a pod that asks for limits or for a security context that this machine cannot
// enforce.
func (s *Pods) enforceable(pod *schedulingv1.Pod) plan.Verdict {
	spec := pod.GetSpec()
	if verdict := plan.WithoutIsolation(spec, s.roots, s.namespaces, s.confinement); verdict.Phase != "" {
		return verdict
	}
	if !slices.ContainsFunc(slices.Concat(spec.GetInitContainers(), spec.GetContainers()),
		func(c *schedulingv1.Container) bool { return limitsOf(c).Bound() }) {
		return plan.Verdict{}
	}
	if err := s.cfg.Supervisor.CanLimit(); err != nil {
		return plan.WithoutLimits(spec, err.Error())
	}
	return plan.Verdict{}
}
