package backend

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// serving is whether calls pass. The zero value lets them.
type serving struct {
	mu    sync.Mutex
	why   error           // nil while calls pass
	until context.Context // ends when calls no longer pass; nil before the first call
	end   context.CancelCauseFunc
}

// SetServing lets calls pass if why is nil. Otherwise it ends all calls and watches and refuses new ones at once with
// that reason: it is said by a gateway that has not read from etcd for some time, so that clients take another one.
// Streams of agents and hook owners live on, and calls of the guardian pass: through these etcd comes back.
func (r *Router) SetServing(why error) {
	s := &r.serving
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
	if why != nil && s.end != nil {
		s.end(why)
		s.until, s.end = nil, nil
	}
}

// Serving returns why calls do not pass; nil if they do.
func (r *Router) Serving() error {
	r.serving.mu.Lock()
	defer r.serving.mu.Unlock()
	return r.serving.why
}

// bound returns a context that ends when calls no longer pass, or their refusal.
func (s *serving) bound(ctx context.Context, m *catalog.Method) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// the guardian helps etcd back
	if m.Leader && m.Streaming || m.Program == topology.EtcdGuardian {
		return ctx, nil
	}
	if s.why != nil {
		return nil, rpcerr.Unavailable(s.why.Error())
	}
	if s.until == nil {
		s.until, s.end = context.WithCancelCause(context.Background())
	}
	until := s.until
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(until, func() {
		why := context.Cause(until)
		if !strings.HasPrefix(path.Base(m.FullName), "Watch") {
			why = fmt.Errorf("%w; what the call did is not known", why)
		}
		cancel(errNotServing{why})
	})
	context.AfterFunc(ctx, func() { stop() })
	return ctx, nil
}

type errNotServing struct{ error }

// reworded returns the error of a call with this context, which says why the gateway ended the call if it did.
func reworded(ctx context.Context, err error) error {
	var why errNotServing
	if (status.Code(err) == codes.Canceled || errors.Is(err, context.Canceled)) && errors.As(context.Cause(ctx), &why) {
		return rpcerr.Unavailable(why.Error())
	}
	return err
}

// ending is a stream whose errors say why the gateway ended it.
type ending struct {
	grpc.ClientStream
	ctx context.Context
}

func (e ending) Header() (metadata.MD, error) {
	header, err := e.ClientStream.Header()
	return header, reworded(e.ctx, err)
}

func (e ending) RecvMsg(m any) error { return reworded(e.ctx, e.ClientStream.RecvMsg(m)) }
