package server

import (
	"context"
	"errors"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"google.golang.org/grpc"
)

// Register serves the kinds of machine-api, standard methods and plans.
func Register(s grpc.ServiceRegistrar, t *kinds.Tables, views Views, now func() time.Time) error {
	if now == nil {
		now = time.Now
	}
	base := server{tables: t, views: views, now: now}
	return errors.Join(
		resource.Register(s, &machinev1.MachineService_ServiceDesc, machines{server: base}, t.Machines),
		resource.Register(dryRuns{s}, &machinev1.MachineSetService_ServiceDesc, sets{server: base}, t.Sets),
		resource.Register(s, &machinev1.ControlPlaneMachineSetService_ServiceDesc, controlPlanes{server: base}, t.ControlPlanes),
		resource.Register(s, &machinev1.InfrastructureService_ServiceDesc, nil, t.Infrastructure),
		resource.Register(s, &machinev1.RevocationService_ServiceDesc, nil, t.Revocations),
	)
}

// dryRuns registers a service so that the context of a deletion says whether it shall store nothing: the deletion of a set with its machines left
// alone takes a note first.
type dryRuns struct{ grpc.ServiceRegistrar }

func (d dryRuns) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for i, m := range desc.Methods {
		if m.MethodName == "DeleteMachineSet" {
			desc.Methods[i].Handler = marked(m.Handler)
		}
	}
	d.ServiceRegistrar.RegisterService(desc, impl)
}

func marked(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var req *machinev1.DeleteMachineSetRequest
		return handle(srv, ctx, func(v any) error {
			if err := dec(v); err != nil {
				return err
			}
			req, _ = v.(*machinev1.DeleteMachineSetRequest)
			return nil
		}, func(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if req.GetDryRun() != "" {
				ctx = kinds.WithDryRun(ctx)
			}
			if interceptor == nil {
				return next(ctx, r)
			}
			return interceptor(ctx, r, info, next)
		})
	}
}
