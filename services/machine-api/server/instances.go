package server

import (
	"context"
	"slices"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// instances implements InstanceService.
type instances struct {
	machinev1.UnimplementedInstanceServiceServer
	server
}

// NewInstances returns the InstanceService of live providers.
func NewInstances(views Views) machinev1.InstanceServiceServer {
	return instances{server: server{views: views, now: time.Now}}
}

// ListInstances asks all providers for their instances.
func (s instances) ListInstances(ctx context.Context, req *machinev1.ListInstancesRequest) (
	*machinev1.ListInstancesResponse, error,
) {
	v := s.views.ViewOrphans(ctx)
	if v.Unseen != "" {
		return nil, rpcerr.Unavailable("which instances have a machine is not known: " + v.Unseen)
	}
	p := plan.Orphans(v)
	// What only this look has found is not since now.
	for _, item := range p.Items {
		if _, before := v.Since[plan.OrphanKey(item.GetProvider(), item.GetInstance().GetProviderId())]; !before {
			item.OrphanTime = nil
		}
	}
	if req.GetOrphans() {
		p.Items = slices.DeleteFunc(p.Items, func(i *machinev1.ProvidedInstance) bool { return !i.GetOrphan() })
	}
	return &machinev1.ListInstancesResponse{Items: p.Items, Unknown: p.Unknown}, nil
}

// PlanInstances says what would be done about instances that no machine needs.
func (s instances) PlanInstances(ctx context.Context, req *machinev1.PlanInstancesRequest) (
	*machinev1.PlanInstancesResponse, error,
) {
	var v plan.OrphanView
	if err := bounded(req.GetMachines(), req.GetNodes()); err != nil {
		return nil, err
	}
	switch {
	case req.GetInstances() != nil:
		v = plan.GivenOrphans(req, given(req.GetNow(), s.now()))
		v.Policy, v.Grace = s.views.OrphanSettings()
	case req.GetMachines() != nil || req.GetNow() != nil:
		return nil, rpcerr.Invalid(object.Fault{
			Path: "instances", Description: "must be given if machines or now are; those of the providers are judged now",
		})
	default:
		if v = s.views.ViewOrphans(ctx); v.Unseen != "" {
			return nil, rpcerr.Unavailable("which instances have a machine is not known: " + v.Unseen)
		}
	}
	if req.GetPolicy() != "" {
		v.Policy = req.GetPolicy()
	}
	if g := req.GetGrace(); g != nil {
		if err := g.CheckValid(); err != nil || g.AsDuration() < 0 {
			return nil, rpcerr.Invalid(object.Fault{Path: "grace", Description: "must be a length of time, not below zero"})
		}
		v.Grace = g.AsDuration()
	}
	return plan.Orphans(v).Answer(v.Now), nil
}
