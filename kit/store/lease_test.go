package store_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
)

// renewing returns a client whose renewals of leases are changed, and a lease. n is the number of a renewal.
func renewing(t *testing.T, change func(n int32, s grpc.ClientStream) grpc.ClientStream) (*clientv3.Client,
	clientv3.LeaseID,
) {
	t.Helper()
	var opened atomic.Int32
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				if err == nil && strings.HasSuffix(method, "LeaseKeepAlive") {
					return change(opened.Add(1), stream), nil
				}
				return stream, err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	return client, lease.ID
}

// slowStream receives after a while.
type slowStream struct {
	grpc.ClientStream
	after time.Duration
}

func (s slowStream) RecvMsg(m any) error {
	select {
	case <-time.After(s.after):
		return s.ClientStream.RecvMsg(m)
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func TestALeaseIsRenewedWhereAMemberHangsOrAllAreSlow(t *testing.T) {
	const next = 50 * time.Millisecond
	for name, change := range map[string]func(n int32, s grpc.ClientStream) grpc.ClientStream{
		"all answer": func(_ int32, s grpc.ClientStream) grpc.ClientStream { return s },
		"the first two hang": func(n int32, s grpc.ClientStream) grpc.ClientStream {
			if n <= 2 {
				return stuckStream{s}
			}
			return s
		},
		"all take longer than the next one is asked": func(_ int32, s grpc.ClientStream) grpc.ClientStream {
			return slowStream{s, 6 * next}
		},
	} {
		client, lease := renewing(t, change)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		began := time.Now()
		until, err := store.RenewLease(ctx, client, lease, next)
		if err != nil || until.Before(began.Add(59*time.Second)) || until.After(time.Now().Add(61*time.Second)) {
			t.Errorf("%s: the lease of 60 s is valid until %s after the renewal began, %v", name, until.Sub(began), err)
		}
		cancel()
	}
}

func TestALostLeaseIsNotRenewed(t *testing.T) {
	client, lease := renewing(t, func(_ int32, s grpc.ClientStream) grpc.ClientStream { return s })
	if _, err := client.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	_, err := store.RenewLease(t.Context(), client, lease, time.Second)
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("error %v", err)
	}
}

func TestARenewalEndsWithItsContext(t *testing.T) {
	client, lease := renewing(t, func(_ int32, s grpc.ClientStream) grpc.ClientStream { return stuckStream{s} })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := store.RenewLease(ctx, client, lease, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
