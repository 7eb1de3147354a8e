package server

import (
	"context"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/types/known/durationpb"
)

// healthChecks is the part of MachineHealthCheckService that is no standard method.
type healthChecks struct {
	machinev1.UnimplementedMachineHealthCheckServiceServer
	server
}

// PlanMachineHealthCheck says what a health check would do.
func (s healthChecks) PlanMachineHealthCheck(ctx context.Context, req *machinev1.PlanMachineHealthCheckRequest) (
	*machinev1.PlanMachineHealthCheckResponse, error,
) {
	if err := bounded(req.GetMachines(), req.GetNodes()); err != nil {
		return nil, err
	}
	check, typ := req.GetMachineHealthCheck(), s.tables.HealthChecks.Type()
	if check == nil {
		if req.GetName() == "" {
			return nil, missingObject("health check")
		}
		var err error
		if check, err = s.tables.HealthChecks.Get(ctx, namespaceOr(req.GetNamespace(), typ.GetDefaultNamespace()),
			req.GetName()); err != nil {
			return nil, err
		}
	}
	check = inNamespace(check, req.GetNamespace(), typ)
	if req.GetMachines() == nil && req.GetNodes() == nil {
		if req.GetNow() != nil {
			return nil, rpcerr.Invalid(object.Fault{
				Path: "now", Description: "is for given machines; those of the cluster are judged at the present time",
			})
		}
		return healthCheckAnswer(s.views.PlanHealthCheck(ctx, check), s.now()), nil
	}
	v := plan.HealthCheckView{
		Now: given(req.GetNow(), s.now()), Check: check, Nodes: givenNodes(req.GetNodes(), nil, time.Time{}),
		Machines: givenMachines(req.GetMachines(), check.GetMetadata().GetNamespace()), Exact: true,
	}
	return healthCheckAnswer(plan.HealthCheck(v), v.Now), nil
}

func healthCheckAnswer(p plan.HealthCheckPlan, now time.Time) *machinev1.PlanMachineHealthCheckResponse {
	out := &machinev1.PlanMachineHealthCheckResponse{
		ExpectedMachines: p.Status.GetExpectedMachines(), CurrentHealthy: p.Status.GetCurrentHealthy(),
		RemediationAllowed: p.Allowed, Message: p.Message, HeldBack: p.Held, Conditions: p.Status.GetConditions(),
	}
	for _, u := range p.Unhealthy {
		out.Unhealthy = append(out.Unhealthy, &machinev1.PlanMachineHealthCheckResponse_Unhealthy{
			Machine: u.Machine.GetMetadata().GetName(), Reason: u.Reason,
		})
	}
	for _, u := range p.Remediate {
		out.Actions = append(out.Actions, &metav1.PlannedAction{
			Action: "DeleteMachine", Object: object.Reference(u.Machine), Reason: u.Reason,
		})
	}
	if !p.Wake.IsZero() {
		out.NextCheckAfter = durationpb.New(p.Wake.Sub(now))
	}
	return out
}
