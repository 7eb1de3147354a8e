package controller_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
)

// slowClient returns a client that gets every answer of etcd late, those of streams too.
func slowClient(t testing.TB, after time.Duration) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				late(ctx, after)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return err
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				return lateStream{stream, after}, err
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func late(ctx context.Context, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

type lateStream struct {
	grpc.ClientStream
	after time.Duration
}

func (s lateStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	late(s.Context(), s.after)
	return err
}

func TestALeaderIsElectedAndStaysUnderASlowEtcd(t *testing.T) {
	const ttl = 2 * time.Second
	e := controller.NewElector(slowClient(t, 550*time.Millisecond), service(t), "127.0.0.1:1",
		slog.New(slog.DiscardHandler))
	controller.ShortenLease(e, ttl)
	s := campaignWith(t, e)
	began := time.Now()
	term := s.leads(t)
	t.Logf("elected after %s", time.Since(began).Round(time.Millisecond))
	select {
	case <-term.Done():
		t.Errorf("the leader was lost: %v", context.Cause(term))
	case <-time.After(2*ttl + ttl/2):
	}
}

// Where answers take longer than a call's first limit, the limit grows.
func TestALeaderIsElectedByAnEtcdThatNeedsMoreThanASecond(t *testing.T) {
	s := campaignWith(t, controller.NewElector(slowClient(t, 1200*time.Millisecond), service(t), "127.0.0.1:1",
		slog.New(slog.DiscardHandler)))
	term := s.leads(t)
	select {
	case <-term.Done():
		t.Errorf("the leader was lost: %v", context.Cause(term))
	case <-time.After(time.Second):
	}
}
