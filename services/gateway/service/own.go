package service

import (
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

// own are the methods that the gateway serves itself, by their full names. They are not registered with the gRPC
// server, which would take the whole message of a unary call into memory before any interceptor has asked who sends it.
type own map[string]grpc.StreamHandler

// RegisterService implements grpc.ServiceRegistrar.
func (o own) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		o["/"+desc.ServiceName+"/"+m.MethodName] = func(_ any, stream grpc.ServerStream) error {
			reply, err := m.Handler(impl, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return rpcerr.From(err)
			}
			return stream.SendMsg(reply)
		}
	}
	for _, s := range desc.Streams {
		o["/"+desc.ServiceName+"/"+s.StreamName] = func(_ any, stream grpc.ServerStream) error {
			return s.Handler(impl, stream)
		}
	}
}

// or returns the handler of all calls: those of other methods are for others.
func (o own) or(others grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		if method, ok := grpc.MethodFromServerStream(stream); ok && o[method] != nil {
			return o[method](srv, stream)
		}
		return others(srv, stream)
	}
}
