package backend

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// streamsPerLink is below what a service allows on one connection (1,000): one stream more would wait without a word.
const streamsPerLink = 900

// target is one address of a program: a connection for calls that end soon, and as many for streams as it takes, so
// that watches never hold a call back.
type target struct {
	program, address string
	creds            credentials.TransportCredentials
	options          []grpc.DialOption
	calls            *link

	mu      sync.Mutex
	closed  bool
	streams []*link
}

func newTarget(program, address string, creds credentials.TransportCredentials, options []grpc.DialOption) (*target,
	error,
) {
	calls, err := newLink(program, address, creds, options)
	if err != nil {
		return nil, err
	}
	return &target{program: program, address: address, creds: creds, options: options, calls: calls}, nil
}

// open opens a call; streaming says whether it may stay open for long.
func (t *target) open(ctx context.Context, streaming bool, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if !streaming {
		return t.calls.open(ctx, desc, method, opts...)
	}
	// A connection for streams may be a new one; whether the program is there, the other one knows.
	if err := t.calls.await(ctx); err != nil {
		return nil, err
	}
	l, err := t.reserve()
	if err != nil {
		return nil, err
	}
	stream, err := l.open(ctx, desc, method, opts...)
	if err != nil {
		l.streams.Add(-1)
		return nil, err
	}
	// The caller ends ctx when it is done with the stream; the stream's own context would cost gRPC its retry.
	context.AfterFunc(ctx, func() { l.streams.Add(-1) })
	return stream, nil
}

// reserve returns a connection that has room for one more stream, and counts it.
func (t *target) reserve() (*link, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, t.calls.away()
	}
	for _, l := range t.streams {
		if l.streams.Load() < streamsPerLink {
			l.streams.Add(1)
			return l, nil
		}
	}
	l, err := newLink(t.program, t.address, t.creds, t.options)
	if err != nil {
		return nil, err
	}
	l.streams.Add(1)
	t.streams = append(t.streams, l)
	return l, nil
}

func (t *target) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.calls.close()
	for _, l := range t.streams {
		l.close()
	}
	t.streams = nil
}
