package events

import (
	"context"
	"io"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
)

// Client is the merger for callers in the same process.
func (m *Merger) Client() eventv1.EventServiceClient { return client{merger: m} }

type client struct{ merger *Merger }

func (c client) GetEvent(ctx context.Context, in *eventv1.GetEventRequest, _ ...grpc.CallOption) (*eventv1.Event,
	error,
) {
	return c.merger.GetEvent(ctx, in)
}

func (c client) ListEvents(ctx context.Context, in *eventv1.ListEventsRequest, opts ...grpc.CallOption) (
	*eventv1.EventList, error,
) {
	headers := &runtime.ServerTransportStream{}
	list, err := c.merger.ListEvents(grpc.NewContextWithServerTransportStream(ctx, headers), in)
	for _, o := range opts {
		if want, ok := o.(grpc.HeaderCallOption); ok {
			*want.HeaderAddr = headers.Header()
		}
	}
	return list, err
}

func (c client) WatchEvents(ctx context.Context, in *eventv1.WatchEventsRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[eventv1.WatchEventsResponse], error,
) {
	s := &stream{ctx: ctx, messages: make(chan *eventv1.WatchEventsResponse), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = c.merger.watch(ctx, in, s.send)
	}()
	return s, nil
}

// stream is a watch inside the process. It ends with its context.
type stream struct {
	ctx      context.Context
	messages chan *eventv1.WatchEventsResponse
	done     chan struct{}
	err      error // set before done is closed
}

func (s *stream) send(m *eventv1.WatchEventsResponse) error {
	select {
	case s.messages <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *stream) Recv() (*eventv1.WatchEventsResponse, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.done:
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
}

func (s *stream) Header() (metadata.MD, error) { return metadata.MD{}, nil }
func (s *stream) Trailer() metadata.MD         { return nil }
func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) SendMsg(any) error            { return io.EOF }
func (s *stream) RecvMsg(any) error            { return io.EOF } // only Recv is used
