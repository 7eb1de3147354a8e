package pods

import (
	"context"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/cgroup"
	"github.com/windlass-dev/windlass/kit/placement"
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

// sharedBy returns what all containers of a pod get together. Their limits are those of each, but for that of
// processes.
func (s *Pods) sharedBy(pod *schedulingv1.Pod) cgroup.Limits {
	requests := placement.RequestsOf(pod.GetSpec())
	return cgroup.Limits{
		MilliCPURequest: requests.MilliCPU, MemoryRequest: requests.Memory, Processes: max(0, s.cfg.ProcessLimit),
	}
}

// checkProcessLimit logs that pods have no limit of processes although they are to have one. No pod asks for it, so
// none is refused. A container runtime is asked once it answers.
func (s *Pods) checkProcessLimit(ctx context.Context) {
	if s.cfg.ProcessLimit <= 0 {
		return
	}
	err := s.cfg.Supervisor.CanLimitProcesses()
	if s.runtime != nil {
		select {
		case <-s.runtime.Active():
		case <-ctx.Done():
			return
		}
		err = s.runtime.CanLimitProcesses(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.WarnContext(ctx, "pods have no limit of processes", "limit", s.cfg.ProcessLimit, "error", err)
	}
}
