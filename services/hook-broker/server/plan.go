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

// What a plan request may give: a machine has at most 64 hooks at each of its two points, and each hook one task.
const (
	mostHooks = 128
	mostTasks = 1000
)

// PlanHookTasks returns what the controller would do about the hooks of a live machine, or of one that a request gives
// with its tasks and owners. Live objects are not mixed with given ones.
func (s *Tasks) PlanHookTasks(ctx context.Context, r *hookv1.PlanHookTasksRequest) (*hookv1.PlanHookTasksResponse,
	error,
) {
	if n := len(r.GetTasks().GetItems()); n > mostTasks {
		return nil, rpcerr.Invalid(object.Faultf("tasks.items", "has %d tasks, at most %d can be planned for", n, mostTasks))
	}
	if n := len(plan.Hooks(r.GetMachine())); n > mostHooks {
		return nil, rpcerr.Invalid(object.Faultf("machine.spec.lifecycleHooks", "has %d hooks, at most %d can be planned for",
			n, mostHooks))
	}
	v, err := s.view(ctx, r)
	if err != nil {
		return nil, err
	}
	p := plan.Machine(v)
	return &hookv1.PlanHookTasksResponse{
		Actions: p.Steps(), HeldBack: p.Held, WaitsFor: p.WaitsFor, WakeTime: object.Timestamp(p.Wake),
	}, nil
}

// view returns what the plan of a request depends on.
func (s *Tasks) view(ctx context.Context, r *hookv1.PlanHookTasksRequest) (plan.View, error) {
	namespace := cmp.Or(r.GetNamespace(), machineType.GetDefaultNamespace())
	switch {
	case r.GetMachine() != nil && r.GetName() != "":
		return plan.View{}, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a machine, not both"})
	case r.GetMachine() != nil:
		return given(r, namespace, s.Now()), nil
	case r.GetTasks() != nil || r.GetOwners() != nil:
		return plan.View{}, rpcerr.Invalid(object.Fault{
			Path: "machine", Description: "give the machine too: a live one is not mixed with given objects",
		})
	case r.GetName() == "":
		return plan.View{}, rpcerr.Invalid(object.Fault{Path: "name", Description: "give a name or a machine"})
	}
	if err := s.Views.WaitSynced(ctx); err != nil {
		return plan.View{}, err
	}
	v := s.Views.Machine(object.Key{Namespace: namespace, Name: r.GetName()})
	if v.Machine == nil && len(v.Tasks) == 0 {
		return v, rpcerr.NotFound("Machine", r.GetName())
	}
	if r.GetNow() != nil {
		v.Now, v.Seen = r.GetNow().AsTime(), nil // what this process has seen says nothing about another time
	}
	return v, nil
}

// given returns what the plan of a request that gives the machine depends on. namespace is that of a machine without
// one, and now the time of a request without one.
func given(r *hookv1.PlanHookTasksRequest, namespace string, now time.Time) plan.View {
	m := object.Clone(r.GetMachine())
	if m.GetMetadata() == nil {
		m.Metadata = &metav1.ObjectMeta{}
	}
	m.Metadata.Namespace = cmp.Or(m.GetMetadata().GetNamespace(), namespace) // as its tasks name it
	v := plan.View{Now: now.UTC(), Machine: m, Owners: map[string]plan.OwnerFacts{}}
	if r.GetNow() != nil {
		v.Now = r.GetNow().AsTime()
	}
	v.Tasks = givenTasks(r.GetTasks().GetItems(), v.Now)
	for _, o := range r.GetOwners().GetItems() {
		v.Owners[o.GetSpec().GetOwner()] = plan.StoredFacts(o)
	}
	return v
}

// givenTasks returns the tasks of a request with a creation time each.
func givenTasks(tasks []*hookv1.HookTask, now time.Time) []*hookv1.HookTask {
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
