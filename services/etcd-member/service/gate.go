package service

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate intercepts every call of every client.
//
// While it is closed, it refuses them: until authentication is on, etcd lets any certificate of the client CA do
// anything. And it refuses those that meet a server which is stopping: etcd closes its database under them, and
// their panic would end the process with the wrong exit code.
type gate struct {
	open     atomic.Bool
	stopping atomic.Pointer[<-chan struct{}] // closed when the server stops; nil before there is one
	trust    atomic.Pointer[string]          // what the server trusts; nil before there is one
}

// guard makes the gate watch a server, by the channel that it closes when it stops.
func (g *gate) guard(stopping <-chan struct{}) {
	g.stopping.Store(&stopping)
}

func (g *gate) check() error {
	switch {
	case !g.open.Load():
		return status.Error(codes.Unavailable, "the etcd member is still setting up its users")
	case g.isStopping():
		return errStopping
	}
	return nil
}

var errStopping = status.Error(codes.Unavailable, "the etcd member is stopping")

func (g *gate) isStopping() bool {
	stopping := g.stopping.Load()
	if stopping == nil {
		return false
	}
	select {
	case <-*stopping:
		return true
	default:
		return false
	}
}

// call runs f, which is a call into etcd. A panic of a server that is stopping becomes an error.
func (g *gate) call(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if !g.isStopping() {
				panic(p)
			}
			err = errStopping
		}
	}()
	return f()
}

// options returns the interceptors that keep the gate.
func (g *gate) options() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		if err := g.check(); err != nil {
			return nil, err
		}
		g.sayTrust(ctx, info.FullMethod)
		err = g.call(func() (err error) { resp, err = next(ctx, req); return err })
		return resp, err
	}
	stream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := g.check(); err != nil {
			return err
		}
		return g.call(func() error { return next(srv, ss) })
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary), grpc.ChainStreamInterceptor(stream)}
}
