package etcdtest

import (
	"context"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// LateClient returns a client of the package's server whose watches receive nothing from a call of hold until that of
// the release that it returned. All other answers arrive. hold may be called again after release.
func LateClient(t testing.TB) (client *clientv3.Client, hold func() (release func())) {
	t.Helper()
	g := &gate{held: make(chan struct{})}
	close(g.held)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				if err != nil || !strings.HasSuffix(method, "Watch/Watch") {
					return stream, err
				}
				return lateStream{stream, g}, nil
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, func() func() {
		opened := make(chan struct{})
		g.mu.Lock()
		g.held = opened
		g.mu.Unlock()
		release := sync.OnceFunc(func() { close(opened) })
		t.Cleanup(release)
		return release
	}
}

// gate holds streams back while held is open.
type gate struct {
	mu   sync.Mutex
	held chan struct{}
}

type lateStream struct {
	grpc.ClientStream
	gate *gate
}

func (s lateStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.gate.mu.Lock()
	held := s.gate.held
	s.gate.mu.Unlock()
	select {
	case <-held:
		return err
	case <-s.Context().Done():
		return s.Context().Err()
	}
}
