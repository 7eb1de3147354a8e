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
	"google.golang.org/grpc/codes"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/placement/view"
)

// Nodes is a copy of all nodes.
type Nodes interface {
	All() []*nodev1.Node
	HasNode(name string) bool
	// Speaks returns nil if the caller is the agent of the node.
	Speaks(ctx context.Context, name string) error
	// Synced is closed once all nodes are known.
	IsSynced() bool
}

// maxNodes and maxPods bound the objects that a request may bring: twice the cluster that is aimed at.
const (
	maxNodes = 10_000
	maxPods  = 20_000
)

// ExplainPod says for each node which predicates a pod fails and why, and what each priority makes of it.
func (s *Pods) ExplainPod(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.ExplainPodResponse,
	error,
) {
	if fields := slices.Concat(atMost("nodes.items", len(r.GetNodes().GetItems()), maxNodes),
		atMost("pods.items", len(r.GetPods().GetItems()), maxPods)); len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
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
	nodes, err := s.nodesOf(r)
	if err != nil {
		return nil, err
	}
	pods := s.Tables.Pods.All()
	if r.GetPods() != nil {
		pods = r.GetPods().GetItems()
	}
	return plan.Explain(view.Cluster(s.Tables, nodes, pods), profile, pod, 0), nil
}

func atMost(path string, n, most int) []object.Fault {
	if n <= most {
		return nil
	}
	return []object.Fault{{Path: path, Description: fmt.Sprintf("has %d objects, at most %d can be checked", n, most)}}
}

// nodesOf returns the nodes of a request, or else all there are.
func (s *Pods) nodesOf(r *schedulingv1.ExplainPodRequest) ([]*nodev1.Node, error) {
	if r.GetNodes() != nil {
		return r.GetNodes().GetItems(), nil
	}
	return s.Nodes.All(), s.nodesKnown()
}

// nodesKnown returns nil once all nodes are known.
func (c Config) nodesKnown() error {
	if !c.Nodes.IsSynced() {
		return rpcerr.Unavailable("it is not known yet which nodes there are")
	}
	return nil
}

// podOf returns the pod of a request: the given one with its defaults, but without what admission would add, or else
// the live one.
func (s *Pods) podOf(ctx context.Context, r *schedulingv1.ExplainPodRequest) (*schedulingv1.Pod, error) {
	if r.GetPod() == nil {
		if r.GetName() == "" {
			return nil, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a pod"})
		}
		key := keyOf(r.GetNamespace(), r.GetName())
		return s.Tables.Pods.Get(ctx, key.Namespace, key.Name)
	}
	pod := object.Clone(r.GetPod())
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

// refusal reports whether a code reports something wrong with what was asked for, and not of trouble here.
func refusal(code int32) bool {
	return slices.Contains([]codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.AlreadyExists,
	}, codes.Code(code))
}
