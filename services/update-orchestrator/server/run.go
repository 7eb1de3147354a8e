package server

import (
	"context"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/update-orchestrator/kinds"
	"github.com/windlass-dev/windlass/services/update-orchestrator/plan"
)

// PlanClusterVersionRun returns how far the pass over the manifests of the release is, or would come.
func (s *Version) PlanClusterVersionRun(ctx context.Context, req *updatev1.PlanClusterVersionRunRequest) (
	*updatev1.PlanClusterVersionRunResponse, error,
) {
	if faults := plan.RunFaults(req); len(faults) > 0 {
		return nil, rpcerr.Invalid(faults...)
	}
	if req.GetClusterVersion() != nil {
		now := time.Now().UTC().Truncate(time.Second)
		if req.GetNow() != nil {
			now = req.GetNow().AsTime()
		}
		return s.control.Foresee(req, now), nil
	}
	cv, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil {
		return nil, err
	}
	return s.control.Progress(cv)
}

// PlanClusterVersionHistory returns the history with the ways back.
func (s *Version) PlanClusterVersionHistory(ctx context.Context, req *updatev1.PlanClusterVersionHistoryRequest) (
	*updatev1.PlanClusterVersionHistoryResponse, error,
) {
	now := time.Now().UTC().Truncate(time.Second)
	if req.GetNow() != nil {
		now = req.GetNow().AsTime()
	}
	if cv := req.GetClusterVersion(); cv != nil {
		if faults := plan.GivenFaults(cv); len(faults) > 0 {
			return nil, rpcerr.Invalid(faults...)
		}
		return plan.WaysBack(cv, nil, now), nil
	}
	cv, err := s.tables.Versions.Get(ctx, "", kinds.Version)
	if err != nil {
		return nil, err
	}
	return plan.WaysBack(cv, s.tables.Windows.All(), now), nil
}
