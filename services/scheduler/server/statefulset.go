package server

import (
	"context"
	"errors"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/spans"
	"github.com/windlass-dev/windlass/services/scheduler/kinds"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// StatefulSets serves what StatefulSetService has beyond the standard methods.
type StatefulSets struct {
	schedulingv1.UnimplementedStatefulSetServiceServer
	Config
}

// RollbackStatefulSet takes a stateful set back to an earlier template.
func (s *StatefulSets) RollbackStatefulSet(ctx context.Context, r *schedulingv1.RollbackStatefulSetRequest) (
	*schedulingv1.StatefulSet, error,
) {
	out, err := s.Tables.StatefulSets.Modify(ctx, keyOf(r.GetNamespace(), r.GetName()),
		func(set *schedulingv1.StatefulSet) error {
			template, err := s.restored(set, r.GetRevision())
			if err == nil {
				set.Spec.Template = template
			}
			return err
		})
	if err == nil {
		s.Events.Event(out, "Normal", "StatefulSetRollback", fmt.Sprintf("Rolled back stateful set %q", r.GetName()))
	}
	return out, err
}

// restored returns the template of an older revision of a set.
func (c Config) restored(set object.Object, revision int32) (*schedulingv1.PodTemplateSpec, error) {
	m := set.GetMetadata()
	template, err := plan.Restore(set, kinds.ManagedBy(c.Tables.Revisions, m.GetNamespace(), m.GetUid()), revision)
	if errors.Is(err, plan.ErrNoRevision) {
		return nil, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION,
			object.TypeOf(set.ProtoReflect().Descriptor()).GetPlural()+"/"+m.GetName(), err.Error())
	}
	return template, err
}

// PlanStatefulSet says what a stateful set would do.
func (s *StatefulSets) PlanStatefulSet(ctx context.Context, r *schedulingv1.PlanStatefulSetRequest) (
	*schedulingv1.PlanStatefulSetResponse, error,
) {
	set, err := subject(ctx, s.Tables.StatefulSets, r.GetStatefulSet(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods()), boundedRevisions(r), claimsWithPods(r)); err != nil {
		return nil, err
	}
	if r.Replicas != nil {
		set.Spec.Replicas = r.Replicas
	}
	if r.GetPods() == nil {
		if err := current(ctx, s.Tables.Pods, s.Tables.Revisions, s.Tables.Claims); err != nil {
			return nil, err
		}
	}
	v := s.Workloads.ViewStatefulSet(set)
	if r.GetStatefulSet() != nil || r.GetPods() != nil { // their times are of one clock
		v.Clock = spans.Clock{}
	}
	if r.GetPods() != nil {
		v.Pods, v.Revisions = beside(set, r.GetPods().GetItems()), beside(set, r.GetRevisions().GetItems())
		v.Claims = r.GetClaims()
	}
	p := plan.StatefulSet(v)
	return &schedulingv1.PlanStatefulSetResponse{
		Actions: p.Actions(), HeldBack: p.Held, Status: p.Status, WakeTime: wakeTime(p.Wake),
	}, nil
}

// planned is a request that may bring pods and revisions.
type planned interface {
	GetPods() *schedulingv1.PodList
	GetRevisions() *schedulingv1.ControllerRevisionList
}

// boundedRevisions limits the revisions of a request, which must not be mixed with live pods.
func boundedRevisions(r planned) error {
	fields := atMost("revisions.items", len(r.GetRevisions().GetItems()), maxSets)
	if r.GetRevisions() != nil && r.GetPods() == nil {
		fields = append(fields,
			object.Fault{Path: "revisions", Description: "are used only with pods, which must be given too"})
	}
	if len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	return nil
}

// claimsWithPods refuses claims without pods: they must not be mixed with live ones.
func claimsWithPods(r *schedulingv1.PlanStatefulSetRequest) error {
	if len(r.GetClaims()) > 0 && r.GetPods() == nil {
		return rpcerr.Invalid(
			object.Fault{Path: "claims", Description: "are used only with pods, which must be given too"})
	}
	return nil
}
