package service

import (
	"context"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/services/gateway/backend"
)

// register adds the REST handlers of every service that has some. A test compares it with the catalog.
func register(router *backend.Router, events eventv1.EventServiceClient, access metav1.AccessServiceClient) func(context.Context, *runtime.ServeMux) error {
	return func(ctx context.Context, mux *runtime.ServeMux) error {
		for _, add := range []func() error{
			func() error {
				return machinev1.RegisterMachineServiceHandlerClient(ctx, mux, machinev1.NewMachineServiceClient(router))
			},
			func() error {
				return machinev1.RegisterMachineSetServiceHandlerClient(ctx, mux, machinev1.NewMachineSetServiceClient(router))
			},
			func() error {
				return machinev1.RegisterControlPlaneMachineSetServiceHandlerClient(ctx, mux, machinev1.NewControlPlaneMachineSetServiceClient(router))
			},
			func() error {
				return machinev1.RegisterInfrastructureServiceHandlerClient(ctx, mux, machinev1.NewInfrastructureServiceClient(router))
			},
			func() error {
				return machinev1.RegisterJoinServiceHandlerClient(ctx, mux, machinev1.NewJoinServiceClient(router))
			},
			func() error {
				return hookv1.RegisterHookTaskServiceHandlerClient(ctx, mux, hookv1.NewHookTaskServiceClient(router))
			},
			func() error {
				return hookv1.RegisterHookOwnerServiceHandlerClient(ctx, mux, hookv1.NewHookOwnerServiceClient(router))
			},
			func() error {
				return etcdv1.RegisterQuorumServiceHandlerClient(ctx, mux, etcdv1.NewQuorumServiceClient(router))
			},
			func() error {
				return nodev1.RegisterNodeServiceHandlerClient(ctx, mux, nodev1.NewNodeServiceClient(router))
			},
			func() error {
				return nodev1.RegisterDrainServiceHandlerClient(ctx, mux, nodev1.NewDrainServiceClient(router))
			},
			func() error { return metav1.RegisterAccessServiceHandlerClient(ctx, mux, access) },
			func() error { return eventv1.RegisterEventServiceHandlerClient(ctx, mux, events) },
		} {
			if err := add(); err != nil {
				return err
			}
		}
		return nil
	}
}
