package server

import (
	"context"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxSets bounds the machine sets that a request may have scaled together: the scheduler is asked about each of them.
const maxSets = 500

// autoscalers is the part of ClusterAutoscalerService that is no standard method.
type autoscalers struct {
	machinev1.UnimplementedClusterAutoscalerServiceServer
	server
}

// PlanClusterAutoscaler says which sets would be scaled, and what is held back.
func (s autoscalers) PlanClusterAutoscaler(ctx context.Context, req *machinev1.PlanClusterAutoscalerRequest) (
	*machinev1.PlanClusterAutoscalerResponse, error,
) {
	if err := bounded(req.GetMachines(), req.GetNodes()); err != nil {
		return nil, err
	}
	for path, n := range map[string]int{
		"machineAutoscalers.items": len(req.GetMachineAutoscalers().GetItems()),
		"machineSets.items":        len(req.GetMachineSets().GetItems()),
	} {
		if n > maxSets {
			return nil, rpcerr.Invalid(object.Faultf(path, "has %d items, at most %d can be planned for", n, maxSets))
		}
	}
	if n := len(req.GetPodDisruptionBudgets().GetItems()); n > maxObjects {
		return nil, rpcerr.Invalid(object.Faultf("podDisruptionBudgets.items", "has %d items, at most %d can be planned for",
			n,
			maxObjects))
	}
	if n := len(req.GetPods().GetItems()); n > 2*maxObjects {
		return nil, rpcerr.Invalid(object.Faultf("pods.items", "has %d pods, at most %d can be planned for", n, 2*maxObjects))
	}
	live := req.GetMachineAutoscalers() == nil && req.GetMachineSets() == nil && req.GetMachines() == nil &&
		req.GetNodes() == nil && req.GetPods() == nil && req.GetPodDisruptionBudgets() == nil
	if live && req.GetNow() != nil {
		return nil, rpcerr.Invalid(object.Fault{
			Path: "now", Description: "is for given objects; those of the cluster are judged at the present time",
		})
	}
	v, given := s.views.ViewAutoscaler(), (*schedulingv1.PlanPlacementRequest)(nil)
	if !live {
		v, given = s.given(req, v.Cluster)
	}
	if c := req.GetClusterAutoscaler(); c != nil {
		if live {
			v = s.views.PreviewAutoscaler(ctx)
		}
		if bad := plan.ClusterAutoscalerFaults(c); len(bad) > 0 {
			return nil, rpcerr.Invalid(bad...)
		}
		v.Cluster = c
	}
	p, err := s.views.PlanAutoscaler(ctx, v, given)
	if err != nil {
		return nil, err
	}
	return autoscalerAnswer(p, v.Now), nil
}

// given returns the view of a request's own objects, and what the scheduler is to answer for.
func (s autoscalers) given(req *machinev1.PlanClusterAutoscalerRequest, cluster *machinev1.ClusterAutoscaler) (
	plan.AutoscalerView, *schedulingv1.PlanPlacementRequest,
) {
	v := plan.AutoscalerView{
		Now: given(req.GetNow(), s.now()), Cluster: cluster, Nodes: givenNodes(req.GetNodes(), nil, time.Time{}),
		Machines: givenMachines(req.GetMachines(), s.tables.Machines.Type().GetDefaultNamespace()),
		Budgets:  req.GetPodDisruptionBudgets().GetItems(), Exact: true,
	}
	for _, a := range req.GetMachineAutoscalers().GetItems() {
		v.Autoscalers = append(v.Autoscalers, inNamespace(a, "", s.tables.Autoscalers.Type()))
	}
	for _, set := range req.GetMachineSets().GetItems() {
		v.Sets = append(v.Sets, inNamespace(set, "", s.tables.Sets.Type()))
	}
	nodes, pods := &nodev1.NodeList{Items: req.GetNodes().GetItems()}, &schedulingv1.PodList{}
	for _, p := range req.GetPods().GetItems() {
		pods.Items = append(pods.Items, inNamespace(p, "", object.TypeOf(p.ProtoReflect().Descriptor())))
	}
	v.Pods = pods.GetItems()
	return v, &schedulingv1.PlanPlacementRequest{Nodes: nodes, Pods: pods}
}

func autoscalerAnswer(p plan.AutoscalerPlan, now time.Time) *machinev1.PlanClusterAutoscalerResponse {
	out := &machinev1.PlanClusterAutoscalerResponse{Actions: p.Actions(), HeldBack: p.Held, Status: p.Status}
	for _, d := range p.Sets {
		out.Sets = append(out.Sets, &machinev1.PlanClusterAutoscalerResponse_Set{
			Namespace:         d.Autoscaler.GetMetadata().GetNamespace(),
			MachineSet:        d.Autoscaler.GetSpec().GetScaleTargetRef().GetName(),
			MachineAutoscaler: d.Autoscaler.GetMetadata().GetName(),
			CurrentReplicas:   int32(d.Current), DesiredReplicas: int32(d.Desired), Reason: d.Reason, Pods: d.Pods,
			Status: d.Status,
		})
	}
	if !p.Wake.IsZero() {
		out.NextCheckAfter = durationpb.New(p.Wake.Sub(now))
	}
	return out
}
