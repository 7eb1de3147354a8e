package server

import (
	"context"
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"

	"github.com/windlass-dev/windlass/services/scheduler/plan"
	"github.com/windlass-dev/windlass/services/scheduler/view"
)

// Nodes is a copy of all nodes.
type Nodes interface {
	All() []*nodev1.Node
	HasNode(name string) bool
}

// ExplainPod says for each node which predicates a pod fails and why, and what each priority makes of it.
func (s *Pods) ExplainPod(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse, error) {
	pod, err := s.podOf(ctx, r)
	if err != nil {
		return nil, err
	}
	profile := view.Profile(s.Tables)
	if r.GetPolicy() != nil {
		if fields, _ := plan.CheckPolicy(r.GetPolicy()); len(fields) > 0 {
			return nil, rpcerr.Invalid(fields...)
		}
		profile = plan.Policy(r.GetPolicy())
	}
	nodes, pods := s.Nodes.All(), s.Tables.Pods.All()
	if r.GetNodes() != nil {
		nodes = r.GetNodes().GetItems()
	}
	if r.GetPods() != nil {
		pods = slices.Clone(r.GetPods().GetItems())
	}
	return plan.Explain(view.Cluster(s.Tables, nodes, pods), profile, pod, 0), nil
}

// podOf returns the pod of a request: given, as it would be stored, or the live one.
func (s *Pods) podOf(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.Pod, error) {
	if r.GetPod() == nil {
		if r.GetName() == "" {
			return nil, rpcerr.Invalid(rpcerr.Field{Path: "name", Description: "give a name or a pod"})
		}
		key := keyOf(r.GetNamespace(), r.GetName())
		return s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
	}
	pod := resource.Clone(r.GetPod())
	if pod.Metadata == nil {
		pod.Metadata = &metav1.ObjectMeta{}
	}
	if pod.Metadata.Namespace == "" {
		pod.Metadata.Namespace = keyOf(r.GetNamespace(), "").Namespace
	}
	if pod.Spec == nil {
		pod.Spec = &schedulingv1.PodSpec{}
	}
	plan.Default(pod.Spec)
	return pod, nil
}

// refusal reports whether a code tells of something wrong with what was asked for, and not of trouble here.
func refusal(code int32) bool {
	return slices.Contains([]codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.AlreadyExists,
	}, codes.Code(code))
}
