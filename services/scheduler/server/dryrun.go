package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

// DryRuns registers services so that the context of a deletion says whether it shall store nothing: the deletion of an owner that leaves alone
// what belongs to it takes a note first.
type DryRuns struct{ grpc.ServiceRegistrar }

// RegisterService marks the deletions of a service and registers it.
func (d DryRuns) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for i, m := range desc.Methods {
		if strings.HasPrefix(m.MethodName, "Delete") {
			desc.Methods[i].Handler = marked(m.Handler)
		}
	}
	d.ServiceRegistrar.RegisterService(desc, impl)
}

func marked(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		return handle(srv, ctx, dec, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if r, ok := req.(interface{ GetDryRun() string }); ok && r.GetDryRun() != "" {
				ctx = kinds.WithDryRun(ctx)
			}
			if interceptor == nil {
				return next(ctx, req)
			}
			return interceptor(ctx, req, info, next)
		})
	}
}
