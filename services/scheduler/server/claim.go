package server

import (
	"context"
	"errors"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// Claims serves what PersistentVolumeClaimService has beyond the standard methods.
type Claims struct {
	schedulingv1.UnimplementedPersistentVolumeClaimServiceServer
	Config
}

// PlanPersistentVolumeClaim says which volume a claim would be bound to, or what it waits for.
func (s *Claims) PlanPersistentVolumeClaim(ctx context.Context, r *schedulingv1.PlanPersistentVolumeClaimRequest) (
	*schedulingv1.PlanPersistentVolumeClaimResponse, error,
) {
	claim, err := subject(ctx, s.Tables.Claims, r.GetPersistentVolumeClaim(), r.GetNamespace(), r.GetName())
	if err = errors.Join(err, bounded(r.GetPods())); err != nil {
		return nil, err
	}
	var live []copied
	if r.GetStorage() == nil {
		live = append(live, s.Tables.Volumes, s.Tables.StorageClasses)
	}
	if r.GetPods() == nil {
		live = append(live, s.Tables.Pods)
	}
	if err = current(ctx, live...); err != nil {
		return nil, err
	}
	v := s.Storage.ViewClaim(claim)
	if given := r.GetStorage(); given != nil {
		v.Volumes = given.GetVolumes()
		i := slices.IndexFunc(given.GetClasses(), func(c *schedulingv1.StorageClass) bool {
			return c.GetMetadata().GetName() == plan.ClassOf(claim)
		})
		if v.Class = nil; i >= 0 {
			v.Class = given.GetClasses()[i]
		}
	}
	if r.GetPods() != nil {
		v.Pods = r.GetPods().GetItems()
	}
	p := plan.Claim(v)
	return &schedulingv1.PlanPersistentVolumeClaimResponse{Actions: p.Actions(), HeldBack: p.Held, Status: p.Status}, nil
}
