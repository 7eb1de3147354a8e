package server

import (
	"cmp"
	"context"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

// machineType describes the kind Machine.
var machineType = object.TypeOf((&machinev1.Machine{}).ProtoReflect().Descriptor())

// PlanHookTasks returns what the controller would do about the hooks of a machine. What a request leaves out is as it
// is live.
func (s *Tasks) PlanHookTasks(_ context.Context, r *hookv1.PlanHookTasksRequest) (*hookv1.PlanHookTasksResponse,
	error,
) {
	v, err := s.view(r)
	if err != nil {
		return nil, err
	}
	p := plan.Machine(v)
	return &hookv1.PlanHookTasksResponse{
		Actions: p.Steps(), HeldBack: p.Held, WaitsFor: p.WaitsFor, WakeTime: object.Timestamp(p.Wake),
	}, nil
}

func (s *Tasks) view(r *hookv1.PlanHookTasksRequest) (plan.View, error) {
	var v plan.View
	namespace := cmp.Or(r.GetNamespace(), machineType.GetDefaultNamespace())
	switch {
	case r.GetMachine() != nil:
		m := object.Clone(r.GetMachine())
		if m.GetMetadata() == nil {
			m.Metadata = &metav1.ObjectMeta{}
		}
		m.Metadata.Namespace = cmp.Or(m.GetMetadata().GetNamespace(), namespace) // or its live tasks would not be found
		v = s.Views.Given(m)
	case r.GetName() == "":
		return v, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a machine"})
	default:
		v = s.Views.Machine(object.Key{Namespace: namespace, Name: r.GetName()})
		if v.Machine == nil && len(v.Tasks) == 0 {
			return v, rpcerr.NotFound("Machine", r.GetName())
		}
	}
	if r.GetNow() != nil {
		v.Now = r.GetNow().AsTime()
	}
	if r.GetTasks() != nil {
		v.Tasks = given(r.GetTasks().GetItems(), v.Now)
	}
	if r.GetOwners() != nil {
		v.Owners = map[string]plan.OwnerFacts{}
		for _, o := range r.GetOwners().GetItems() {
			v.Owners[o.GetSpec().GetOwner()] = plan.StoredFacts(o)
		}
	}
	return v, nil
}

// given returns the tasks of a request with a creation time each.
func given(tasks []*hookv1.HookTask, now time.Time) []*hookv1.HookTask {
	out := make([]*hookv1.HookTask, len(tasks))
	for i, t := range tasks {
		out[i] = object.Clone(t)
		if t.GetMetadata() == nil {
			out[i].Metadata = &metav1.ObjectMeta{}
		}
		if t.GetMetadata().GetCreationTimestamp() == nil {
			out[i].Metadata.CreationTimestamp = timestamppb.New(now)
		}
	}
	return out
}
