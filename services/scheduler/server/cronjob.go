package server

import (
	"context"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// CronJobs serves what CronJobService has beyond the standard methods.
type CronJobs struct {
	schedulingv1.UnimplementedCronJobServiceServer
	Config
}

// PlanCronJob says what a cron job would do.
func (s *CronJobs) PlanCronJob(ctx context.Context, r *schedulingv1.PlanCronJobRequest) (
	*schedulingv1.PlanCronJobResponse, error,
) {
	cron, err := subject(ctx, s.Tables.CronJobs, r.GetCronJob(), r.GetNamespace(), r.GetName())
	if err != nil {
		return nil, err
	}
	if fields := atMost("jobs.items", len(r.GetJobs().GetItems()), maxPods); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	if r.GetJobs() == nil {
		if err := current(ctx, s.Tables.Jobs); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewCronJob(cron)
	if r.GetJobs() != nil {
		v.Jobs = beside(cron, r.GetJobs().GetItems())
		v.Named = func(name string) *schedulingv1.Job {
			i := slices.IndexFunc(v.Jobs, func(j *schedulingv1.Job) bool { return j.GetMetadata().GetName() == name })
			if i < 0 {
				return nil
			}
			return v.Jobs[i]
		}
	}
	if r.GetNow() != nil {
		v.Now = r.GetNow().AsTime()
	}
	p := plan.CronJob(v)
	return &schedulingv1.PlanCronJobResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status, WakeTime: wakeTime(p.Wake),
	}, nil
}
