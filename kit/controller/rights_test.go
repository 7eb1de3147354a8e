package controller_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/kit/topology"
)

// touched collects the keys and ranges that a client names, as etcd checks rights by them.
type touched struct {
	mu     sync.Mutex
	ranges map[[2]string]bool
}

func (c *touched) add(key, end []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges[[2]string{string(key), string(end)}] = true
}

func (c *touched) request(m any) {
	switch r := m.(type) {
	case *pb.RangeRequest:
		c.add(r.Key, r.RangeEnd)
	case *pb.WatchRequest:
		if create := r.GetCreateRequest(); create != nil {
			c.add(create.Key, create.RangeEnd)
		}
	case *pb.TxnRequest:
		for _, cmp := range r.Compare {
			c.add(cmp.Key, cmp.RangeEnd)
		}
		for _, op := range append(r.Success, r.Failure...) {
			switch o := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				c.add(o.RequestRange.Key, o.RequestRange.RangeEnd)
			case *pb.RequestOp_RequestPut:
				c.add(o.RequestPut.Key, nil)
			case *pb.RequestOp_RequestDeleteRange:
				c.add(o.RequestDeleteRange.Key, o.RequestDeleteRange.RangeEnd)
			}
		}
	}
}

type touchingStream struct {
	grpc.ClientStream
	touched *touched
}

func (s touchingStream) SendMsg(m any) error {
	s.touched.request(m)
	return s.ClientStream.SendMsg(m)
}

func (c *touched) client(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{etcdtest.Endpoint(t)}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				c.request(req)
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, cc, method, opts...)
				return touchingStream{stream, c}, err
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// A service's etcd user has rights on its own prefix and on its own election key, and on nothing else.
func TestALeaderTouchesNothingButItsPrefixAndItsElectionKey(t *testing.T) {
	seen := &touched{ranges: map[[2]string]bool{}}
	client, name := seen.client(t), service(t)
	st := store.New(client, etcdtest.Prefix(t))
	w := st.Watch(t.Context(), "", 1)
	e := controller.NewElector(client, name, "127.0.0.1:1", slog.New(slog.DiscardHandler))
	s := campaignWith(t, e)
	for range 2 {
		term := s.leads(t)
		if _, err := st.Commit(term, store.Put("a", nil, store.Whatever), store.Check("absent", 0)); err != nil {
			t.Fatal(err)
		}
		<-w.Batches()
		if _, err := st.List(term, "", store.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := etcdtest.Client(t).Delete(t.Context(), topology.ElectionKey(name)); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for r := range seen.ranges {
		election := r == [2]string{topology.ElectionKey(name), ""}
		records := strings.HasPrefix(r[0], st.Prefix()) && r[1] <= clientv3.GetPrefixRangeEnd(st.Prefix())
		if !election && !records {
			t.Errorf("touches %q to %q", r[0], r[1])
		}
	}
	if len(seen.ranges) < 3 {
		t.Errorf("only %d ranges were seen", len(seen.ranges))
	}
}
