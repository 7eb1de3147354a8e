// Package server holds the methods of machine-api beyond the standard ones: plans, which run the very functions that
// the controllers run, and the check of a change of hooks.
package server

import (
	"context"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// Views observes live objects, as the controllers do.
type Views interface {
	ViewMachine(ctx context.Context, m *machinev1.Machine) plan.MachineView
	ViewSet(s *machinev1.MachineSet) (plan.SetView, bool)
	ViewControlPlane(s *machinev1.ControlPlaneMachineSet) (plan.ControlPlaneView, bool)
	PlanHealthCheck(ctx context.Context, h *machinev1.MachineHealthCheck) plan.HealthCheckPlan
	ViewAutoscaler() plan.AutoscalerView
	PreviewAutoscaler(ctx context.Context) plan.AutoscalerView
	PlanAutoscaler(ctx context.Context, v plan.AutoscalerView, given *schedulingv1.PlanPlacementRequest) (
		plan.AutoscalerPlan, error)
	ViewOrphans(ctx context.Context) plan.OrphanView
	OrphanSettings() (policy string, grace time.Duration)
}

// server answers from tables and views; each kind's service is a type of its own around it.
type server struct {
	tables *kinds.Tables
	views  Views
	now    func() time.Time
}

func namespaceOr(ns, otherwise string) string {
	if ns == "" {
		return otherwise
	}
	return ns
}

func missingObject(kind string) error {
	return rpcerr.Invalid(object.Fault{Path: "name", Description: "must be given, or else the " + kind})
}

// machines is the part of MachineService that is no standard method.
type machines struct {
	machinev1.UnimplementedMachineServiceServer
	server
}

// PlanMachine says what the next step of a machine is.
func (s machines) PlanMachine(ctx context.Context, req *machinev1.PlanMachineRequest) (*machinev1.PlanMachineResponse,
	error,
) {
	if bad := kinds.GivenSpecFaults(req.GetMachine().GetSpec().GetProviderSpec(),
		"machine.spec.providerSpec.value"); len(bad) > 0 {
		return nil, rpcerr.Invalid(bad...)
	}
	v := plan.MachineView{
		Now: s.now(), Machine: req.GetMachine(), Instance: req.GetInstance(), InstanceGone: req.GetInstance() == nil,
		Node: req.GetNode(), NodesSeen: true, Drain: req.GetDrain(), Exact: true,
		Failures: req.GetMachine().GetStatus().GetStepFailures(),
	}
	if e := req.GetInstanceError(); e != "" {
		v.InstanceErr, v.InstanceGone = e, false
	}
	if v.Machine == nil {
		m, err := s.live(ctx, req.GetNamespace(), req.GetName())
		if err != nil {
			return nil, err
		}
		v = s.views.ViewMachine(ctx, m)
	}
	p := plan.Next(v)
	out := &machinev1.PlanMachineResponse{
		Phase: p.Status.GetPhase(), Conditions: p.Status.GetConditions(), WaitsFor: p.WaitsFor,
		WakeTime: object.Timestamp(p.Wake), StepFailures: p.Failures, Deletion: p.Status.GetDeletion(),
		BlockingPods: p.Status.GetBlockingPods(), BlockingVolumes: p.Status.GetBlockingVolumes(),
	}
	for _, a := range p.Actions {
		out.Actions = append(out.Actions, &metav1.PlannedAction{
			Action: string(a), Object: object.Reference(v.Machine),
			Reason: reasonFor(a),
		})
	}
	return out, nil
}

func reasonFor(a plan.Action) string {
	switch a {
	case plan.CreateInstance:
		return "the machine has no instance yet"
	case plan.GetInstance:
		return "only the provider can say whether the instance still exists"
	case plan.UpdateNode:
		return "the node lacks labels, annotations or taints of the machine's spec, or was not linked yet"
	case plan.CreateDrain:
		return "no hook holds the drain, and the node is not drained yet"
	case plan.DeleteInstance:
		return "the node is drained, and no hook holds the instance"
	case plan.DeleteNode, plan.DeleteDrain:
		return "the instance is gone"
	}
	return "everything else is gone"
}

func (s server) live(ctx context.Context, namespace, name string) (*machinev1.Machine, error) {
	if name == "" {
		return nil, missingObject("machine")
	}
	return s.tables.Machines.Get(ctx, namespaceOr(namespace, s.tables.Machines.Type().GetDefaultNamespace()), name)
}

// ValidateHooks says whether a change of lifecycle hooks is allowed.
func (s machines) ValidateHooks(ctx context.Context, req *machinev1.ValidateHooksRequest) (
	*machinev1.ValidateHooksResponse, error,
) {
	old := req.GetOldMachine()
	if old == nil && req.GetName() != "" {
		m, err := s.live(ctx, req.GetNamespace(), req.GetName())
		if err != nil {
			return nil, err
		}
		old = m
	}
	if old == nil {
		old = &machinev1.Machine{}
	}
	out := &machinev1.ValidateHooksResponse{}
	for _, v := range s.hookViolations(ctx, old, req) {
		out.Violations = append(out.Violations, &machinev1.ValidateHooksResponse_Violation{
			Field: v.Path, Description: v.Description,
		})
	}
	out.Allowed = len(out.Violations) == 0
	return out, nil
}

func (s machines) hookViolations(ctx context.Context, old *machinev1.Machine,
	req *machinev1.ValidateHooksRequest,
) []object.Fault {
	bad := plan.HookChange(old, req.GetNewMachine()) // the shape was checked with the request
	caller, _ := identity.CallerFrom(ctx)
	if u := req.GetUser(); u != "" && u != caller.User {
		caller = identity.Caller{User: u, Groups: []string{identity.GroupAuthenticated}}
	}
	for _, r := range plan.GuardedRemovals(old, req.GetNewMachine()) {
		if ok, _ := s.tables.MayComplete(caller, r.Hook.GetOwner()); !ok {
			bad = append(bad, object.Fault{Path: r.Field, Description: "hook " + r.Hook.GetName() +
				" can be removed only by its owner " + r.Hook.GetOwner() + " or an administrator"})
		}
	}
	return bad
}
