package server

import (
	"context"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Drain serves what DrainService has beyond the standard methods.
type Drain struct {
	nodev1.UnimplementedDrainServiceServer
	tables *kinds.Tables
}

// NewDrain returns the custom methods of DrainService.
func NewDrain(tables *kinds.Tables) *Drain { return &Drain{tables: tables} }

// PlanDrain says what a drain would do now. The permit is not asked for.
func (s *Drain) PlanDrain(ctx context.Context, r *nodev1.PlanDrainRequest) (*nodev1.PlanDrainResponse, error) {
	v := plan.DrainView{Now: time.Now().UTC(), Drain: r.GetDrain()}
	var err error
	if v.Drain == nil {
		if r.GetName() == "" {
			return nil, rpcerr.Invalid(rpcerr.Field{Path: "name", Description: "give a name or a drain"})
		}
		if v.Drain, err = s.tables.Drains.Get(ctx, "", r.GetName()); err != nil {
			return nil, err
		}
	}
	v.Node, err = s.tables.Nodes.Get(ctx, "", v.Drain.GetSpec().GetNodeName())
	if err != nil && rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_NOT_FOUND {
		return nil, err
	}
	v.Others = slices.DeleteFunc(s.tables.DrainsOf(v.Drain.GetSpec().GetNodeName()), func(d *nodev1.Drain) bool {
		return d.GetMetadata().GetName() == v.Drain.GetMetadata().GetName()
	})
	p := plan.Drain(v)
	return &nodev1.PlanDrainResponse{Actions: p.Actions, HeldBack: p.HeldBack, Status: p.Status, WakeTime: wake(p.Wake)}, nil
}
