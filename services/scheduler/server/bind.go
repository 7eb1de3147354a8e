package server

import (
	"cmp"
	"context"
	"fmt"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// BindPod binds a pod that no node has to a node.
func (s *Pods) BindPod(ctx context.Context, r *schedulingv1.BindPodRequest) (*schedulingv1.Pod, error) {
	b, err := s.binding(ctx, r)
	if err != nil {
		return nil, err
	}
	out, err := s.Placer.Bind(ctx, []plan.Request{b})
	if err != nil {
		return nil, err
	}
	if out[0].Err == nil {
		s.tellBound(ctx, out[0].Object)
	}
	return out[0].Object, out[0].Err
}

// BatchBindPods binds many pods, each for itself.
func (s *Pods) BatchBindPods(ctx context.Context, r *schedulingv1.BatchBindPodsRequest) (
	*schedulingv1.BatchBindPodsResponse, error,
) {
	if err := servicesOnly(ctx); err != nil {
		return nil, err
	}
	out := &schedulingv1.BatchBindPodsResponse{
		Results: make([]*schedulingv1.BatchBindPodsResponse_Result, len(r.GetBindings())),
	}
	seen := map[object.Key]bool{}
	var bindings []plan.Request
	var places []int
	for i, one := range r.GetBindings() {
		b, err := s.binding(ctx, one)
		if err == nil && seen[object.KeyOf(b.Pod)] {
			err = rpcerr.Conflict("Pod", one.GetName(), "the request binds it twice")
		}
		if err != nil {
			out.Results[i] = s.bindResult(ctx, nil, err)
			continue
		}
		seen[object.KeyOf(b.Pod)] = true
		bindings, places = append(bindings, b), append(places, i)
	}
	written, err := s.Placer.Bind(ctx, bindings)
	if err != nil {
		return nil, err
	}
	for n, w := range written {
		out.Results[places[n]] = s.bindResult(ctx, w.Object, w.Err)
		if w.Err == nil {
			s.tellBound(ctx, w.Object)
		}
	}
	return out, nil
}

// binding returns what a request asks for, with the pod as it is stored.
func (s *Pods) binding(ctx context.Context, r *schedulingv1.BindPodRequest) (b plan.Request, err error) {
	if fields := bindingFaults(r); len(fields) > 0 {
		return b, rpcerr.Invalid(fields...)
	}
	b.Node = cmp.Or(r.GetNodeName(), r.GetTarget().GetName())
	if err := s.nodeIsThere(b.Node); err != nil {
		return b, err
	}
	key := keyOf(r.GetNamespace(), r.GetName())
	if b.Pod, err = s.Tables.Pods.Get(ctx, key.Namespace, key.Name); err != nil {
		return b, err
	}
	if _, ok := s.Tables.Pods.Lookup(key.Namespace, key.Name); !ok { // another replica stored it a moment ago
		if err := s.Tables.Pods.CatchUp(ctx); err != nil {
			return b, err
		}
	}
	// the rules of the message exclude it
	if b.Known, err = resource.ParseRevision(r.GetAllocationRevision()); err != nil {
		return b, err
	}
	b.UID = cmp.Or(r.GetPreconditions().GetUid(), r.GetMetadata().GetUid())
	b.ResourceVersion = r.GetPreconditions().GetResourceVersion()
	return b, nil
}

// bindingFaults returns what contradicts itself in a request.
func bindingFaults(r *schedulingv1.BindPodRequest) (fields []object.Fault) {
	m := r.GetMetadata()
	for path, differ := range map[string]bool{
		"metadata.namespace": m.GetNamespace() != "" && m.GetNamespace() != keyOf(r.GetNamespace(), "").Namespace,
		"metadata.name":      m.GetName() != "" && m.GetName() != r.GetName(),
		"metadata.uid": m.GetUid() != "" && r.GetPreconditions().GetUid() != "" &&
			m.GetUid() != r.GetPreconditions().GetUid(),
		"target.name": r.GetTarget().GetName() != "" && r.GetNodeName() != "" && r.GetTarget().GetName() != r.GetNodeName(),
	} {
		if differ {
			fields = append(fields, object.Fault{Path: path, Description: "differs from what the request says elsewhere"})
		}
	}
	if r.GetNodeName() == "" && r.GetTarget().GetName() == "" {
		fields = append(fields,
			object.Fault{Path: "nodeName", Description: "give the name of a node, here or in target.name"})
	}
	return fields
}

// tellBound records who bound a pod, as other schedulers do.
func (s *Pods) tellBound(ctx context.Context, pod *schedulingv1.Pod) {
	caller, _ := identity.CallerFrom(ctx)
	binder := caller.User
	if service, ok := caller.Service(); ok {
		binder = service
	}
	events.From(s.Events, binder).Event(pod, "Normal", "Scheduled",
		fmt.Sprintf("Successfully assigned %s to %s", pod.GetMetadata().GetName(), pod.GetSpec().GetNodeName()))
}

// nodeIsThere returns nil for a node that exists: a pod that is bound to any other goes at once.
func (s *Pods) nodeIsThere(name string) error {
	if err := s.nodesKnown(); err != nil {
		return err
	}
	if !s.Nodes.HasNode(name) {
		return rpcerr.NotFoundField("Node", name, "nodeName")
	}
	return nil
}

func (s *Pods) bindResult(ctx context.Context, pod *schedulingv1.Pod,
	err error,
) *schedulingv1.BatchBindPodsResponse_Result {
	code, message := s.outcome(ctx, err)
	return &schedulingv1.BatchBindPodsResponse_Result{
		Code: code, Message: message,
		ResourceVersion: pod.GetMetadata().GetResourceVersion(),
	}
}
