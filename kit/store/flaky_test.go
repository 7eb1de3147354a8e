package store_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/kit/etcdtest"
)

// answers decides about the answer to a transaction that etcd has committed: true loses it.
type answers func(txn *etcdserverpb.TxnRequest) (lost bool)

// clientThatLoses returns a client whose transactions reach etcd, but whose answers may not come back.
func clientThatLoses(t testing.TB, lose answers) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if err == nil && strings.HasSuffix(method, "KV/Txn") && lose(req.(*etcdserverpb.TxnRequest)) {
					return status.Error(codes.Unavailable, "the answer was lost")
				}
				return err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// clientThatDrops returns a client that calls drop before each of its transactions that delete something, one at a
// time, counted from 1. One for which drop returns true never reaches etcd, and its sender does not learn that. wait
// returns when no call of drop is under way.
func clientThatDrops(t testing.TB, drop func(n int) bool) (client *clientv3.Client, wait func()) {
	t.Helper()
	var mu sync.Mutex
	count := 0
	dropped := func(ctx context.Context, txn *etcdserverpb.TxnRequest) bool {
		if !slices.ContainsFunc(txn.Success, func(o *etcdserverpb.RequestOp) bool {
			return o.GetRequestDeleteRange() != nil
		}) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return true
		}
		count++
		return drop(count)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
				opts ...grpc.CallOption,
			) error {
				if txn, ok := req.(*etcdserverpb.TxnRequest); ok && dropped(ctx, txn) {
					return status.Error(codes.Unavailable, "the connection broke")
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, func() {
		mu.Lock()
		defer mu.Unlock()
	}
}

// line is a wire to etcd that can be cut.
type line struct {
	target string
	socket string

	mu    sync.Mutex
	conns []net.Conn
}

// newLine listens on a socket and passes everything on to etcd.
func newLine(t testing.TB) *line {
	t.Helper()
	l := &line{
		target: strings.TrimPrefix(etcdtest.Endpoint(t), "unix://"),
		socket: filepath.Join(t.TempDir(), "line"),
	}
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.connect(&group, conn)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		group.Wait()
	})
	return l
}

func (l *line) connect(group *sync.WaitGroup, near net.Conn) {
	far, err := net.Dial("unix", l.target)
	if err != nil {
		_ = near.Close()
		return
	}
	l.mu.Lock()
	l.conns = append(l.conns, near, far)
	l.mu.Unlock()
	group.Go(func() { pump(near, far) })
	group.Go(func() { pump(far, near) })
}

func pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}

// cut closes every connection; new ones can be made.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// endpoint is the address to dial.
func (l *line) endpoint() string { return "unix://" + l.socket }

// clientThatSticks returns a client whose streams to etcd deliver nothing more once stuck is closed, if they were
// opened before. The connection stays up.
func clientThatSticks(t testing.TB, stuck <-chan struct{}) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
				opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				select {
				case <-stuck:
					return stream, err
				default:
					return stickyStream{ClientStream: stream, stuck: stuck}, err
				}
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

type stickyStream struct {
	grpc.ClientStream
	stuck <-chan struct{}
}

func (s stickyStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	select {
	case <-s.stuck:
		<-s.Context().Done()
		return s.Context().Err()
	default:
		return err
	}
}
