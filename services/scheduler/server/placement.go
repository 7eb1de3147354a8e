package server

import (
	"context"
	"fmt"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/placement/view"
)

// hostnameLabel of a node is unique to it.
const hostnameLabel = "kubernetes.io/hostname"

// PlanPlacement says where pods would go in variations of the cluster.
func (s *Pods) PlanPlacement(ctx context.Context, r *schedulingv1.PlanPlacementRequest) (
	*schedulingv1.PlanPlacementResponse, error,
) {
	if fields := slices.Concat(atMost("nodes.items", len(r.GetNodes().GetItems()), maxNodes),
		atMost("pods.items", len(r.GetPods().GetItems()), maxPods)); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	nodes := s.Nodes.All()
	if r.GetNodes() != nil {
		nodes = r.GetNodes().GetItems()
	} else if err := s.nodesKnown(); err != nil {
		return nil, err
	}
	pods := r.GetPods().GetItems()
	if r.GetPods() == nil {
		if err := s.Tables.Pods.CatchUp(ctx); err != nil {
			return nil, err
		}
		pods = s.Tables.Pods.All()
	}
	byName := make(map[object.Key]*schedulingv1.Pod, len(pods))
	for _, pod := range pods {
		m := pod.GetMetadata()
		byName[keyOf(m.GetNamespace(), m.GetName())] = pod
	}
	out, profiles := &schedulingv1.PlanPlacementResponse{}, view.Profiles(s.Tables)
	for _, v := range r.GetVariations() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var place []*schedulingv1.Pod
		for _, p := range v.GetPlace() {
			if pod, ok := byName[keyOf(p.GetNamespace(), p.GetName())]; ok {
				place = append(place, pod)
			}
		}
		c := view.Cluster(s.Tables, varied(nodes, v), pods)
		result := &schedulingv1.PlanPlacementResponse_Result{}
		for _, d := range plan.FirstFit(c, profiles, place) {
			result.Placements = append(result.Placements, &schedulingv1.PlanPlacementResponse_Placement{
				Namespace: d.Pod.GetMetadata().GetNamespace(), Name: d.Pod.GetMetadata().GetName(), Node: d.Node,
				Message: d.Message,
			})
		}
		out.Results = append(out.Results, result)
	}
	return out, nil
}

// varied returns the nodes of a variation. The names of further nodes sort after all others.
func varied(nodes []*nodev1.Node, v *schedulingv1.PlanPlacementRequest_Variation) []*nodev1.Node {
	out := slices.DeleteFunc(slices.Clone(nodes), func(n *nodev1.Node) bool {
		return slices.Contains(v.GetRemove(), n.GetMetadata().GetName())
	})
	for _, further := range v.GetAdd() {
		for i := range further.GetCount() {
			n := object.Clone(further.GetNode())
			if n.Metadata == nil {
				n.Metadata = &metav1.ObjectMeta{}
			}
			n.Metadata.Name = fmt.Sprintf("~%s-%d", n.Metadata.Name, i)
			if n.Metadata.Labels == nil {
				n.Metadata.Labels = map[string]string{}
			}
			n.Metadata.Labels[hostnameLabel] = n.Metadata.Name
			out = append(out, n)
		}
	}
	return out
}
