package service

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate refuses every call of every client while it is closed. Until authentication is on, etcd lets any
// certificate of the client CA do anything; the gate is what stands between them meanwhile.
type gate struct {
	open atomic.Bool
}

func (g *gate) check() error {
	if g.open.Load() {
		return nil
	}
	return status.Error(codes.Unavailable, "the etcd member is still setting up its users")
}

// options returns the interceptors that keep the gate.
func (g *gate) options() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := g.check(); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
	stream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := g.check(); err != nil {
			return err
		}
		return next(srv, ss)
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}
