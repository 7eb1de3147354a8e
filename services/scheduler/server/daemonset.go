package server

import (
	"context"
	"errors"
	"fmt"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/spans"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// DaemonSets serves what DaemonSetService has beyond the standard methods.
type DaemonSets struct {
	schedulingv1.UnimplementedDaemonSetServiceServer
	Config
}

// RollbackDaemonSet takes a daemon set back to an earlier template.
func (s *DaemonSets) RollbackDaemonSet(ctx context.Context, r *schedulingv1.RollbackDaemonSetRequest) (
	*schedulingv1.DaemonSet, error,
) {
	out, err := s.Tables.DaemonSets.Modify(ctx, keyOf(r.GetNamespace(), r.GetName()),
		func(set *schedulingv1.DaemonSet) error {
			template, err := s.restored(set, r.GetRevision())
			if err == nil {
				set.Spec.Template = template
			}
			return err
		})
	if err == nil {
		s.Events.Event(out, "Normal", "DaemonSetRollback", fmt.Sprintf("Rolled back daemon set %q", r.GetName()))
	}
	return out, err
}

// PlanDaemonSet says what a daemon set would do.
func (s *DaemonSets) PlanDaemonSet(ctx context.Context, r *schedulingv1.PlanDaemonSetRequest) (
	*schedulingv1.PlanDaemonSetResponse, error,
) {
	set, err := subject(ctx, s.Tables.DaemonSets, r.GetDaemonSet(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods()), boundedRevisions(r)); err != nil {
		return nil, err
	}
	if r.GetPods() == nil {
		if err := current(ctx, s.Tables.Pods, s.Tables.Revisions); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewDaemonSet(set)
	if r.GetDaemonSet() != nil || r.GetPods() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetPods() != nil {
		v.Pods, v.Revisions = beside(set, r.GetPods().GetItems()), beside(set, r.GetRevisions().GetItems())
	}
	if r.GetNodes() != nil {
		if fields := atMost("nodes.items", len(r.GetNodes().GetItems()), maxNodes); len(fields) > 0 {
			return nil, rpcerr.Invalid(fields...)
		}
		v.Nodes = r.GetNodes().GetItems()
	} else if err := s.nodesKnown(); err != nil {
		return nil, err
	}
	p := plan.DaemonSet(v)
	return &schedulingv1.PlanDaemonSetResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status,
		WakeTime: wakeTime(p.Wake),
	}, nil
}
