// Package server answers the calls of pods and their owners that are not standard ones, and listens to the agents that
// run pods.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
)

// Policy says who may do what.
type Policy interface {
	Require(identity.Caller, identity.Attributes) (by string, refusal error)
}

// Config is what the servers work with; nothing in it may be nil.
type Config struct {
	Tables    *kinds.Tables
	Nodes     Nodes
	Policy    Policy
	Relay     *relay.Relay
	Events    events.Sink
	Workloads Workloads
	Now       func() time.Time
	Log       *slog.Logger
}

// Pods serves what PodService has beyond the standard methods.
type Pods struct {
	schedulingv1.UnimplementedPodServiceServer
	Config
}

// NewPods returns the custom methods of PodService.
func NewPods(cfg Config) *Pods { return &Pods{Config: cfg} }

// BindPod binds a pod that no node has to a node.
func (s *Pods) BindPod(ctx context.Context, r *schedulingv1.BindPodRequest) (*schedulingv1.Pod, error) {
	if err := s.nodeIsThere(r.GetNodeName()); err != nil {
		return nil, err
	}
	pod, err := s.Tables.Pods.Modify(ctx, keyOf(r.GetNamespace(), r.GetName()),
		func(pod *schedulingv1.Pod) error {
			return s.bind(pod, r)
		}, resource.WriteOptions{Own: true})
	if err == nil {
		s.tellBound(pod)
	}
	return pod, err
}

func (s *Pods) tellBound(pod *schedulingv1.Pod) {
	s.Events.Event(pod, "Normal", "Scheduled", "Successfully assigned "+object.KeyOf(pod).String()+" to "+
		pod.GetSpec().GetNodeName())
}

func (s *Pods) bind(pod *schedulingv1.Pod, r *schedulingv1.BindPodRequest) error {
	want, m := r.GetPreconditions().GetResourceVersion(), pod.GetMetadata()
	if want != "" && want != m.GetResourceVersion() {
		return rpcerr.Conflict("Pod", m.GetName(), fmt.Sprintf("resourceVersion is %s, not %s", m.GetResourceVersion(), want))
	}
	return s.Tables.Bind(pod, r.GetPreconditions().GetUid(), r.GetNodeName())
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
	wanted := map[object.Key]*schedulingv1.BindPodRequest{}
	var keys []object.Key
	var places []int
	for i, b := range r.GetBindings() {
		key := keyOf(b.GetNamespace(), b.GetName())
		err := s.nodeIsThere(b.GetNodeName())
		if _, twice := wanted[key]; twice {
			err = rpcerr.Conflict("Pod", key.Name, "the request binds it twice")
		}
		if err != nil {
			out.Results[i] = s.bindResult(ctx, nil, err)
			continue
		}
		wanted[key] = b
		keys, places = append(keys, key), append(places, i)
	}
	for n, w := range s.Tables.Pods.ModifyAll(ctx, keys, func(pod *schedulingv1.Pod) error {
		return s.bind(pod, wanted[object.KeyOf(pod)])
	}, resource.WriteOptions{Own: true}) {
		out.Results[places[n]] = s.bindResult(ctx, w.Object, w.Err)
		if w.Err == nil {
			s.tellBound(w.Object)
		}
	}
	return out, nil
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

// BatchCreatePods creates many pods, each for itself.
func (s *Pods) BatchCreatePods(ctx context.Context, r *schedulingv1.BatchCreatePodsRequest) (
	*schedulingv1.BatchCreatePodsResponse, error,
) {
	if err := servicesOnly(ctx); err != nil {
		return nil, err
	}
	out := &schedulingv1.BatchCreatePodsResponse{Results: make([]*schedulingv1.BatchCreatePodsResponse_Result,
		len(r.GetPods()))}
	seen := map[object.Key]bool{}
	var pods []*schedulingv1.Pod
	var places []int
	for i, pod := range r.GetPods() {
		key := keyOf(pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
		if key.Name != "" && seen[key] {
			out.Results[i] = s.createResult(ctx, nil, rpcerr.Exists("Pod", key.Name))
			continue
		}
		seen[key] = true
		pods, places = append(pods, pod), append(places, i)
	}
	for n, w := range s.Tables.Pods.CreateAll(ctx, pods) {
		out.Results[places[n]] = s.createResult(ctx, w.Object, w.Err)
	}
	return out, nil
}

func (s *Pods) createResult(ctx context.Context, pod *schedulingv1.Pod,
	err error,
) *schedulingv1.BatchCreatePodsResponse_Result {
	code, message := s.outcome(ctx, err)
	if err != nil {
		pod = nil
	}
	return &schedulingv1.BatchCreatePodsResponse_Result{Code: code, Message: message, Pod: pod}
}

// outcome returns the code and the message that a call by itself would be answered with. The cause of trouble here goes
// to the log alone.
func (s *Pods) outcome(ctx context.Context, err error) (int32, string) {
	if err == nil {
		return 0, ""
	}
	st := status.Convert(rpcerr.From(err))
	if st.Code() == codes.Internal {
		s.Log.ErrorContext(ctx, "item of a batch failed", "error", err)
	}
	return int32(st.Code()), st.Message()
}

func servicesOnly(ctx context.Context) error {
	caller, _ := identity.CallerFrom(ctx)
	if _, ok := caller.Service(); !ok {
		return rpcerr.Forbidden(fmt.Sprintf("batches are for services alone; user %q makes one call for each pod",
			caller.User))
	}
	return nil
}

// AdmitPod returns a pod as it would be stored after defaults and admission, or the refusal.
func (s *Pods) AdmitPod(ctx context.Context, r *schedulingv1.AdmitPodRequest) (*schedulingv1.AdmitPodResponse, error) {
	pod := object.Clone(r.GetPod())
	if pod.Metadata == nil {
		pod.Metadata = &metav1.ObjectMeta{}
	}
	if r.GetNamespace() != "" {
		pod.Metadata.Namespace = r.GetNamespace()
	}
	if r.GetUser() != "" {
		ctx = identity.WithCaller(ctx, identity.Caller{User: r.GetUser(), Groups: []string{identity.GroupAuthenticated}})
	}
	out, warnings, err := s.Tables.Rehearse(ctx, pod)
	if err != nil {
		code, message := s.outcome(ctx, err)
		if !refusal(code) {
			return nil, err
		}
		return &schedulingv1.AdmitPodResponse{Reason: message, Warnings: warnings}, nil
	}
	return &schedulingv1.AdmitPodResponse{Allowed: true, Pod: out, Warnings: warnings}, nil
}

func keyOf(namespace, name string) object.Key {
	if namespace == "" {
		namespace = "default"
	}
	return object.Key{Namespace: namespace, Name: name}
}
