package serve

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/rpcerr"
)

var errStopping = errors.New("the service is stopping")

// streams tracks every open stream, to end them when the process stops, so that their clients reconnect.
type streams struct {
	mu       sync.Mutex
	open     map[*stoppableStream]context.CancelCauseFunc
	stopping bool
}

func newStreams() *streams {
	return &streams{open: map[*stoppableStream]context.CancelCauseFunc{}}
}

type stoppableStream struct {
	grpc.ServerStream
	ctx   context.Context
	watch bool
}

// ended is why the process ends a stream.
type ended struct{ error }

func (s *stoppableStream) Context() context.Context { return s.ctx }

func (s *streams) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	stream := &stoppableStream{ServerStream: ss, ctx: ctx, watch: isWatch(info.FullMethod)}
	if !s.add(stream, cancel) {
		return rpcerr.Unavailable(errStopping.Error())
	}
	defer s.remove(stream)
	err := handler(srv, stream)
	if why := (ended{}); errors.As(context.Cause(ctx), &why) {
		return rpcerr.Unavailable(why.Error())
	}
	return err
}

func (s *streams) add(stream *stoppableStream, cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.open[stream] = cancel
	}
	return !s.stopping
}

func (s *streams) remove(stream *stoppableStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, stream)
}

func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for _, cancel := range s.open {
		cancel(ended{errStopping})
	}
}

// endWatches ends every open watch.
func (s *streams) endWatches(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream, cancel := range s.open {
		if stream.watch {
			cancel(ended{why})
		}
	}
}
