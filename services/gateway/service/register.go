package service

import (
	"context"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	"github.com/windlass-dev/windlass/gen/rest"
	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/services/gateway/backend"
)

// register adds the REST handlers of every service that has some. The gateway serves events and access itself.
func register(router *backend.Router, events eventv1.EventServiceClient,
	access metav1.AccessServiceClient,
) func(context.Context, *runtime.ServeMux) error {
	return func(ctx context.Context, mux *runtime.ServeMux) error {
		for _, s := range rest.Services() {
			var err error
			switch s.Name {
			case eventv1.EventService_ServiceDesc.ServiceName:
				err = eventv1.RegisterEventServiceHandlerClient(ctx, mux, events)
			case metav1.AccessService_ServiceDesc.ServiceName:
				err = metav1.RegisterAccessServiceHandlerClient(ctx, mux, access)
			default:
				err = s.Register(ctx, mux, router)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}
