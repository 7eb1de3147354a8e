package attacks

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"

	"github.com/windlass-dev/windlass/e2e/harness"
)

// TestALostMajorityIsSaidAtOnce stops etcd's members, as a host that swaps or a debugger does: nothing is refused,
// nothing answers.
func TestALostMajorityIsSaidAtOnce(t *testing.T) {
	c := harness.Second(t) // the shared cluster holds the lock of the host
	c.Settle(time.Minute)
	ctx := context.Background()
	nodes := nodev1.NewNodeServiceClient(c.Conn())
	watch, err := nodes.WatchNodes(ctx, &nodev1.WatchNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := watch.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	health := func() grpc_health_v1.HealthCheckResponse_ServingStatus {
		r, err := grpc_health_v1.NewHealthClient(c.Conn()).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetStatus()
	}
	readyz := func() (int, string) {
		r, err := c.Admin().REST(ctx, "GET", "/readyz", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Code, string(r.Body)
	}
	machines := c.MustMachines("master")
	for _, m := range machines[:2] {
		if err := c.Pause(harness.Member(m.GetMetadata().GetName())); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "/readyz is 503", func() bool { code, _ := readyz(); return code == http.StatusServiceUnavailable })
	if _, body := readyz(); !strings.Contains(body, "etcd") {
		t.Errorf("/readyz does not say why: %s", body)
	}
	until(t, "the health service says the same", func() bool {
		return health() == grpc_health_v1.HealthCheckResponse_NOT_SERVING
	})
	if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("the watch ended with %v", err)
	}
	// The gateway refuses calls itself. A service that was asked would wait ten seconds for etcd.
	refused := func() error {
		_, err := nodes.ListNodes(ctx, &nodev1.ListNodesRequest{})
		return err
	}
	const own = "gateway is not serving"
	until(t, "the gateway refuses calls", func() bool {
		err := refused()
		return err != nil && strings.Contains(err.Error(), own)
	})
	for range 10 {
		if err := refused(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "etcd") ||
			!strings.Contains(err.Error(), own) {
			t.Fatalf("a call got %v", err)
		}
	}
	// The guardian, which helps etcd back, is asked even so.
	if _, err := etcdv1.NewQuorumServiceClient(c.Conn()).GetQuorum(ctx, &etcdv1.GetQuorumRequest{}); err != nil &&
		strings.Contains(err.Error(), own) {
		t.Errorf("the guardian cannot be asked: %v", err)
	}

	for _, m := range machines[:2] {
		if err := c.Continue(harness.Member(m.GetMetadata().GetName())); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "/readyz is 200 again", func() bool { code, _ := readyz(); return code == http.StatusOK })
	until(t, "calls are answered again, and every node is Ready", func() bool {
		list, err := nodes.ListNodes(ctx, &nodev1.ListNodesRequest{})
		if err != nil {
			return false
		}
		for _, n := range list.GetItems() {
			for _, cond := range n.GetStatus().GetConditions() {
				if cond.GetType() == "Ready" && cond.GetStatus() != "True" {
					t.Fatalf("node %s: Ready is %s: its heartbeats were not received", n.GetMetadata().GetName(), cond.GetStatus())
				}
			}
		}
		return true
	})
}
