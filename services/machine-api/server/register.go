package server

import (
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
)

// Add adds the kinds of machine-api to the process's tables, with their plans.
func Add(g *resource.Group, t *kinds.Tables, views Views, now func() time.Time) {
	if now == nil {
		now = time.Now
	}
	base := server{tables: t, views: views, now: now}
	g.Add(t.Machines, &machinev1.MachineService_ServiceDesc, machines{server: base})
	g.Add(t.Sets, &machinev1.MachineSetService_ServiceDesc, sets{server: base})
	g.Add(t.ControlPlanes, &machinev1.ControlPlaneMachineSetService_ServiceDesc, controlPlanes{server: base})
	g.Add(t.HealthChecks, &machinev1.MachineHealthCheckService_ServiceDesc, healthChecks{server: base})
	g.Add(t.Autoscalers, &machinev1.MachineAutoscalerService_ServiceDesc, nil)
	g.Add(t.ClusterAutoscalers, &machinev1.ClusterAutoscalerService_ServiceDesc, autoscalers{server: base})
	g.Add(t.Infrastructure, &machinev1.InfrastructureService_ServiceDesc, nil)
	g.Add(t.Revocations, &machinev1.RevocationService_ServiceDesc, nil)
}
