// Package proxy passes gRPC calls of any method on to the program that serves them, without decoding the messages:
// headers, messages, trailers and statuses with their details pass unchanged, and flow control is end to end.
package proxy

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Meter bounds what messages on their way may take.
type Meter interface {
	// Bytes takes room for a message of n bytes of the caller that ctx knows; release must be called unless there is an
	// error. Another call of it has no effect.
	Bytes(ctx context.Context, n int) (release func(), err error)
}

// Handler returns the handler of all methods that the server does not serve itself (grpc.UnknownServiceHandler). The
// server must use Codec. Calls leave by backends, which gets the client's metadata as outgoing metadata.
func Handler(backends grpc.ClientConnInterface, meter Meter) grpc.StreamHandler {
	return func(_ any, server grpc.ServerStream) error {
		method, ok := grpc.MethodFromServerStream(server)
		if !ok {
			return status.Error(codes.Internal, "internal error")
		}
		return pass(server, backends, meter, method)
	}
}

func pass(server grpc.ServerStream, backends grpc.ClientConnInterface, meter Meter, method string) error {
	// What the transport compresses is a copy, which could not be counted.
	if err := grpc.SetSendCompressor(server.Context(), encoding.Identity); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(server.Context())
	defer cancel(nil)
	sent, _ := metadata.FromIncomingContext(ctx)
	ctx = metadata.NewOutgoingContext(ctx, sent)
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	client, err := backends.NewStream(ctx, both, method, grpc.ForceCodecV2(Codec()))
	if err != nil {
		return err
	}
	// This direction is not waited for: it ends when the handler returns, and a client may keep its side open.
	go func() {
		if err := upwards(server, client, meter); err != nil {
			cancel(err)
		}
	}()
	err = downwards(server, client, meter)
	// A client whose own message was refused gets to know that, not that the call was cancelled for it.
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) &&
		server.Context().Err() == nil {
		return cause
	}
	return err
}

// upwards passes the client's messages on. It returns an error if the client's side broke, nil if either side ended.
func upwards(server grpc.ServerStream, client grpc.ClientStream, meter Meter) error {
	for {
		f := &frame{}
		err := server.RecvMsg(f)
		if errors.Is(err, io.EOF) {
			client.CloseSend() //nolint:errcheck // the backend's status says more
			return nil
		}
		if err != nil {
			return err
		}
		release, err := meter.Bytes(server.Context(), f.data.Len())
		if err != nil {
			f.data.Free()
			return err
		}
		err = client.SendMsg(f)
		release()
		if err != nil {
			f.data.Free()
			return nil // the backend has ended the call; downwards gets its status
		}
	}
}

// downwards passes the backend's header, messages, trailer and status on.
func downwards(server grpc.ServerStream, client grpc.ClientStream, meter Meter) error {
	header, err := client.Header()
	// An answer that is a trailer alone stays one: its header is nil.
	if err == nil && header != nil {
		if err := server.SendHeader(returning(header)); err != nil {
			return err
		}
	}
	for {
		f := &frame{}
		err := client.RecvMsg(f)
		if err != nil {
			server.SetTrailer(returning(client.Trailer()))
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		release, err := meter.Bytes(server.Context(), f.data.Len())
		if err != nil {
			f.data.Free()
			return err
		}
		f.hold(release)
		if err := server.SendMsg(f); err != nil {
			f.data.Free()
			return err
		}
	}
}

// returning drops the headers that the server sets itself.
func returning(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for key, values := range md {
		switch key {
		case "content-type", "grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-encoding",
			"grpc-accept-encoding":
			continue
		}
		out[key] = values
	}
	return out
}
