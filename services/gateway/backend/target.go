package backend

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// streamsPerLink is below what a service allows on one connection (1,000): one stream more would wait without a word.
const streamsPerLink = 900

// target is one address of a program, or the nearest process of it where that is empty: a connection for calls that end
// soon, and as many for streams as it takes, so that watches never hold a call back.
type target struct {
	program, address string
	creds            credentials.TransportCredentials
	options          []grpc.DialOption
	calls            *link

	mu      sync.Mutex
	closed  bool // no more streams
	under   int  // calls that are under way
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
		end := t.begin()
		stream, err := t.calls.open(ctx, desc, method, opts...)
		if err != nil {
			end()
			return nil, err
		}
		context.AfterFunc(ctx, end)
		return stream, nil
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

// invoke makes a unary call.
func (t *target) invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	defer t.begin()()
	if err := t.calls.await(ctx); err != nil {
		return err
	}
	return t.calls.reword(ctx, t.calls.conn.Invoke(ctx, method, args, reply, opts...))
}

// begin counts a call that is under way until end is called.
func (t *target) begin() (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.under++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.under--; t.under == 0 && t.closed {
			t.calls.close()
		}
	}
}

// retire ends the streams now, and the connection for calls with the last call that is under way: what it did would
// not be known otherwise.
func (t *target) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endStreams()
	if t.under == 0 {
		t.calls.close()
	}
}

// ended reports whether a retired target has no calls any more.
func (t *target) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.under == 0
}

// close ends all connections and what runs over them.
func (t *target) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endStreams()
	t.calls.close()
}

// endStreams closes the connections for streams. The lock is held.
func (t *target) endStreams() {
	t.closed = true
	for _, l := range t.streams {
		l.close()
	}
	t.streams = nil
}
