package cri

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/windlass-dev/windlass/kit/process"
)

// Uses returns what the containers of each of these pools use: the working set, and the processor time of those that
// the runtime has. Processes, with their threads, are those of the pool's control group; without one they are what the
// runtime says, or 0 if it does not count them. A pool without containers uses nothing.
func (r *Runtime) Uses(ctx context.Context, pools []string) (map[string]process.Use, error) {
	stats, err := r.stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("use of pools: %w", err)
	}
	uses := map[string]process.Use{}
	for _, p := range pools {
		uses[p] = process.Use{}
	}
	for _, s := range stats {
		pool := s.GetAttributes().GetLabels()[labelPool]
		use, asked := uses[pool]
		if !asked {
			continue
		}
		use.Memory += int64(s.GetMemory().GetWorkingSetBytes().GetValue())
		use.CPU += time.Duration(s.GetCpu().GetUsageCoreNanoSeconds().GetValue())
		uses[pool] = use
	}
	counted := map[string]bool{}
	for pool, use := range uses {
		if use.Processes, counted[pool] = r.parents().Processes(pool); counted[pool] {
			uses[pool] = use
		}
	}
	sandboxes, err := call(ctx, r.cri.ListPodSandboxStats, &runtimeapi.ListPodSandboxStatsRequest{
		Filter: &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{labelOwner: r.owner}},
	})
	if err != nil {
		return uses, nil // not every runtime has them
	}
	for _, s := range sandboxes.GetStats() {
		pool := s.GetAttributes().GetLabels()[labelPool]
		if use, asked := uses[pool]; asked && !counted[pool] {
			use.Processes += int(s.GetLinux().GetProcess().GetProcessCount().GetValue())
			uses[pool] = use
		}
	}
	return uses, nil
}

// Disk returns the size of the writable layer of each container, in bytes, by name. The runtime measures it every few
// seconds.
func (r *Runtime) Disk(ctx context.Context) (map[string]int64, error) {
	stats, err := r.stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("disk use of containers: %w", err)
	}
	sizes := map[string]int64{}
	for _, s := range stats {
		sizes[s.GetAttributes().GetLabels()[labelContainer]] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
	}
	return sizes, nil
}

func (r *Runtime) stats(ctx context.Context) ([]*runtimeapi.ContainerStats, error) {
	out, err := call(ctx, r.cri.ListContainerStats, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{labelOwner: r.owner}},
	})
	return out.GetStats(), err
}
