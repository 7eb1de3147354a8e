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
	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/relay"
	"github.com/windlass-dev/windlass/services/scheduler/traffic"
	volume "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
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
	Traffic   *traffic.Tracker
	Events    events.Sink
	Workloads Workloads
	Placer    Placer
	Storage   Storage
	Extenders Extenders
	Signer    Signer
	Now       func() time.Time
	Log       *slog.Logger
}

// Extenders asks the extenders of policies.
type Extenders interface {
	Ask(ctx context.Context, q plan.Question) plan.Answer
}

// Placer places pods on nodes while this process leads.
type Placer interface {
	// Settle waits until pods are placed with the current state of a node, and the bindings that were decided on before
	// are stored or refused.
	Settle(ctx context.Context, node string) error
	// Bind decides on bindings together with all others, stores those that are granted, and returns the results in their
	// order.
	Bind(ctx context.Context, bindings []plan.Request) ([]resource.Written[*schedulingv1.Pod], error)
	// Explain evaluates a pod by the state that pods are placed by, and by a policy in place of the live one unless it is
	// nil. ask has the extenders of the pod answer an inquiry; if it is nil, they are not asked. leads is false if this
	// process does not place pods.
	Explain(ctx context.Context, supposed *plan.Profile, pod *schedulingv1.Pod, ask func(*plan.Inquiry)) (
		out *schedulingv1.ExplainPodResponse, leads bool, err error)
}

// Storage observes live claims, as the controller does.
type Storage interface {
	ViewClaim(claim *schedulingv1.PersistentVolumeClaim) volume.ClaimView
}

// Pods serves what PodService has beyond the standard methods.
type Pods struct {
	schedulingv1.UnimplementedPodServiceServer
	Config
}

// NewPods returns the custom methods of PodService.
func NewPods(cfg Config) *Pods { return &Pods{Config: cfg} }

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
	switch {
	case r.GetUser() != "":
		ctx = identity.WithCaller(ctx, identity.Caller{
			User: r.GetUser(), Groups: append([]string{identity.GroupAuthenticated}, r.GetGroups()...),
		})
	case len(r.GetGroups()) > 0:
		return nil, rpcerr.Invalid(object.Fault{Path: "groups", Description: "are those of user, which is not given"})
	}
	if r.GetNamespaceObject() != nil || r.GetAdmissionConfig() != nil || r.GetMasterConfig() != nil ||
		len(r.GetPriorityClasses()) > 0 || r.GetOldPod() != nil {
		return s.admitGiven(ctx, r, pod)
	}
	if op := r.GetOperation(); op == kinds.UpdatePod || op == kinds.DeletePod {
		if pod.Metadata.Name == "" {
			return nil, rpcerr.Invalid(object.Fault{Path: "pod.metadata.name", Description: "must be given"})
		}
		pod.Metadata.Namespace = keyOf(pod.Metadata.Namespace, "").Namespace
	}
	out, warnings, err := s.Tables.Rehearse(ctx, r.GetOperation(), pod)
	if err != nil {
		code, message := s.outcome(ctx, err)
		if !refusal(code) {
			return nil, err
		}
		return &schedulingv1.AdmitPodResponse{Reason: message, Warnings: warnings}, nil
	}
	return &schedulingv1.AdmitPodResponse{Allowed: true, Pod: out, Warnings: warnings}, nil
}

// admitGiven returns the result of admission with the configuration of the request.
func (s *Pods) admitGiven(ctx context.Context, r *schedulingv1.AdmitPodRequest, pod *schedulingv1.Pod) (
	*schedulingv1.AdmitPodResponse, error,
) {
	fields := append(plan.CheckAdmission("admissionConfig.admissionConfig.pluginConfig",
		r.GetAdmissionConfig().GetAdmissionConfig()), plan.CheckMaster("masterConfig.kubernetesMasterConfig",
		r.GetMasterConfig().GetKubernetesMasterConfig())...)
	if len(fields) > 0 {
		return nil, rpcerr.Invalid(fields...)
	}
	pod.Metadata.Namespace = keyOf(pod.GetMetadata().GetNamespace(), "").Namespace
	fields, err := s.Tables.Pods.Complete(pod)
	if err != nil {
		return nil, err
	}
	a, err := s.admission(ctx, r, pod)
	if err != nil {
		return nil, err
	}
	a.Fields = append(fields, a.Fields...)
	if !a.Allowed() {
		return &schedulingv1.AdmitPodResponse{Reason: a.Reason(), Warnings: a.Warnings}, nil
	}
	return &schedulingv1.AdmitPodResponse{Allowed: true, Pod: a.Pod, Warnings: a.Warnings}, nil
}

// admission returns the result of admission with the objects of the request alone. The rights are those of the live
// policy.
func (s *Pods) admission(ctx context.Context, r *schedulingv1.AdmitPodRequest, pod *schedulingv1.Pod) (plan.Admission,
	error,
) {
	switch old := r.GetOldPod(); {
	case r.GetOperation() == kinds.DeletePod:
		return plan.Admission{Pod: pod}, nil // only webhooks act on deletions
	case r.GetOperation() != kinds.UpdatePod && old != nil:
		return plan.Admission{}, rpcerr.Invalid(object.Fault{Path: "oldPod", Description: "is for UPDATE alone"})
	case r.GetOperation() == kinds.UpdatePod && old == nil:
		return plan.Admission{}, rpcerr.Invalid(object.Fault{
			Path: "oldPod", Description: "give the pod before the change too: live ones are not mixed with given objects",
		})
	case r.GetOperation() == kinds.UpdatePod:
		old = object.Clone(old)
		if _, err := s.Tables.Pods.Complete(old); err != nil { // its defaults: the other pod has them too
			return plan.Admission{}, err
		}
		if r.GetPod().GetStatus() == nil { // what an update leaves out remains
			pod.Status = old.GetStatus()
		}
		out := plan.AdmitUpdate(old, pod)
		out.Fields = append(out.Fields, plan.CheckPodUpdate(old, pod)...)
		return out, nil
	}
	caller, _ := identity.CallerFrom(ctx)
	return plan.Admit(plan.AdmissionView{
		Pod: pod, Namespace: r.GetNamespaceObject(), Admission: r.GetAdmissionConfig(), Master: r.GetMasterConfig(),
		Classes: r.GetPriorityClasses(), MayBind: s.Tables.MayBind(caller, pod),
		MayBeCritical: s.Tables.MayBeCritical(caller, pod.GetMetadata().GetNamespace(), pod.GetSpec()),
	}), nil
}

func keyOf(namespace, name string) object.Key {
	if namespace == "" {
		namespace = "default"
	}
	return object.Key{Namespace: namespace, Name: name}
}

// settlePatience is how long a call waits for the placement of pods: less than callers wait.
const settlePatience = 2 * time.Second

// SettleBindings waits until pods are placed with a revision of a node, and earlier bindings are settled.
func (s *Pods) SettleBindings(ctx context.Context, r *schedulingv1.SettleBindingsRequest) (
	*schedulingv1.SettleBindingsResponse, error,
) {
	revision, err := resource.ParseRevision(r.GetResourceVersion())
	if err != nil {
		return nil,
			rpcerr.Invalid(object.Fault{Path: "resourceVersion", Description: "must be the resourceVersion of a node"})
	}
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	if err := s.Nodes.WaitRevision(ctx, revision); err != nil {
		return nil, rpcerr.Unavailable("this revision of the node was not received from its owner yet")
	}
	if err := s.Placer.Settle(ctx, r.GetNodeName()); err != nil {
		return nil, rpcerr.Unavailable("this process does not place pods, or is still storing bindings")
	}
	return &schedulingv1.SettleBindingsResponse{}, nil
}
