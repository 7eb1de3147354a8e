package service

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	benchNodes = 100
	benchPods  = 2000
	benchBatch = 1000 // the most that one call takes
)

// startFleet runs a scheduler over a fleet of idle nodes that it has seen.
func startFleet(b *testing.B) *cluster {
	b.Helper()
	c := start(b)
	for i := range benchNodes {
		c.addNode(fmt.Sprintf("node-%d", i), "64")
	}
	pods := c.pods()
	c.create(pods, newPod("first", "10m"))
	c.awaitPod(pods, "first", bound)
	return c
}

// follow opens a watch of all pods and reads the beginning of it.
func follow(b *testing.B, ctx context.Context,
	pods schedulingv1.PodServiceClient,
) grpc.ServerStreamingClient[schedulingv1.WatchPodsResponse] {
	b.Helper()
	watch, err := pods.WatchPods(ctx, &schedulingv1.WatchPodsRequest{})
	if err != nil {
		b.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if m.GetBookmark() {
			return watch
		}
	}
}

// awaitBound reads a watch until so many of the pods for which want holds are bound in etcd.
func awaitBound(b *testing.B, watch grpc.ServerStreamingClient[schedulingv1.WatchPodsResponse], n int) {
	b.Helper()
	seen := map[string]bool{}
	for len(seen) < n {
		m, err := watch.Recv()
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range m.GetEvents() {
			if e.GetType() != "DELETED" && bound(e.GetObject()) {
				seen[e.GetObject().GetMetadata().GetUid()] = true
			}
		}
	}
}

// BenchmarkPodsBound measures how many pods a second are made and bound: from the first call that makes them until all
// of them are in etcd with their node, as a watch shows it.
func BenchmarkPodsBound(b *testing.B) {
	c := startFleet(b)
	batches := c.batches()
	var spent time.Duration
	for round := 0; b.Loop(); round++ {
		b.StopTimer()
		if _, err := etcdtest.Client(b).Delete(b.Context(), "/windlass/scheduler/pods/", clientv3.WithPrefix()); err != nil {
			b.Fatal(err) // the pods of the round before, or the fleet would be full some time
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		watch := follow(b, ctx, c.pods())
		var calls []*schedulingv1.BatchCreatePodsRequest
		for from := 0; from < benchPods; from += benchBatch {
			r := &schedulingv1.BatchCreatePodsRequest{}
			for i := range benchBatch {
				r.Pods = append(r.Pods, newPod(fmt.Sprintf("p-%d-%d", round, from+i), "10m"))
			}
			calls = append(calls, r)
		}
		b.StartTimer()
		begin := time.Now()
		for _, r := range calls {
			out, err := batches.BatchCreatePods(b.Context(), r)
			if err != nil {
				b.Fatal(err)
			}
			for _, one := range out.GetResults() {
				if one.GetCode() != 0 {
					b.Fatal(one)
				}
			}
		}
		awaitBound(b, watch, benchPods)
		spent += time.Since(begin)
		cancel()
	}
	b.ReportMetric(float64(benchPods*b.N)/spent.Seconds(), "pods/s")
}

// BenchmarkCreatedToBound measures how long a pod waits on an idle cluster: from the call that makes it until a watch
// shows its binding.
func BenchmarkCreatedToBound(b *testing.B) {
	c := startFleet(b)
	pods := c.pods()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	watch := follow(b, ctx, pods)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		c.create(pods, newPod(fmt.Sprintf("p-%d", i), "10m"))
		awaitBound(b, watch, 1)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
