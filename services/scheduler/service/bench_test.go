package service

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

const (
	benchPods  = 2000
	benchBatch = 1000 // the most that one call takes
)

// processor returns the processor time of this process, etcd and client included: other programs on the host disturb it
// less than the clock.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startFleet runs a scheduler over a fleet of idle nodes that it has seen.
func startFleet(b *testing.B, nodes int) *cluster {
	b.Helper()
	return startFleetOver(b, nodes, etcdtest.Client(b))
}

func startFleetOver(b *testing.B, nodes int, etcd *clientv3.Client) *cluster {
	b.Helper()
	c := startOver(b, etcd)
	fleet := make([]*nodev1.Node, nodes)
	for i := range fleet {
		fleet[i] = newNode(fmt.Sprintf("node-%d", i), "64")
		fleet[i].Metadata.Labels[zoneLabel] = fmt.Sprint(i % 3)
	}
	for _, w := range c.nodes.CreateAll(b.Context(), fleet) {
		if w.Err != nil {
			b.Fatal(w.Err)
		}
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
// of them are in etcd with their node, as a watch shows it. All calls are in the audit log.
func BenchmarkPodsBound(b *testing.B) {
	for _, nodes := range []int{100, 500, 5000, 20000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { bindPods(b, startFleet(b, nodes), newPod) })
	}
}

// BenchmarkPodsBoundByRules is the same at 5,000 nodes in three zones for pods that repel each other on a node, that
// require a zone, and whose service is spread over the zones.
func BenchmarkPodsBoundByRules(b *testing.B) {
	for _, rule := range []struct {
		name  string
		apply func(*schedulingv1.Pod)
	}{
		{"anti-affinity", func(p *schedulingv1.Pod) {
			p.Spec.Affinity = &schedulingv1.Affinity{PodAntiAffinity: &schedulingv1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{{
					LabelSelector: &metav1.LabelSelector{MatchLabels: p.Metadata.Labels}, TopologyKey: "kubernetes.io/hostname",
				}},
			}}
		}},
		{"node-affinity", func(p *schedulingv1.Pod) {
			p.Spec.Affinity = &schedulingv1.Affinity{NodeAffinity: &schedulingv1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &schedulingv1.NodeSelector{
					NodeSelectorTerms: []*schedulingv1.NodeSelectorTerm{{
						MatchExpressions: []*schedulingv1.NodeSelectorRequirement{{
							Key: zoneLabel, Operator: "In", Values: []string{"1", "2"},
						}},
					}},
				},
			}}
		}},
		{"spreading", func(*schedulingv1.Pod) {}},
	} {
		b.Run(rule.name, func(b *testing.B) {
			c := startFleet(b, 5000)
			if rule.name == "spreading" {
				_, err := schedulingv1.NewServiceServiceClient(c.admin()).CreateService(b.Context(),
					&schedulingv1.CreateServiceRequest{Service: &schedulingv1.Service{
						Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "all"},
						Spec: &schedulingv1.ServiceSpec{
							Selector: map[string]string{"app": "test"}, Ports: []*schedulingv1.ServicePort{{Port: 80}},
						},
					}})
				if err != nil {
					b.Fatal(err)
				}
			}
			bindPods(b, c, func(name, cpu string) *schedulingv1.Pod {
				p := newPod(name, cpu)
				rule.apply(p)
				return p
			})
		})
	}
}

const zoneLabel = "topology.kubernetes.io/zone"

// BenchmarkPodsBoundBesideAgents is the same while the agents of 1,000 of the nodes watch their pods, each over a
// connection of its own.
func BenchmarkPodsBoundBesideAgents(b *testing.B) {
	c := startFleet(b, 5000)
	connect(b, c, 1000)
	bindPods(b, c, newPod)
}

// connect has the agents of the first nodes watch their pods until the benchmark ends.
func connect(b *testing.B, c *cluster, agents int) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var group sync.WaitGroup
	b.Cleanup(func() { cancel(); group.Wait() })
	for i := range agents {
		node := fmt.Sprintf("node-%d", i)
		watch, err := c.agent(node).WatchOwnPods(ctx, &schedulingv1.WatchOwnPodsRequest{NodeName: node})
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			b.Fatal(err)
		}
		group.Go(func() {
			for err == nil {
				_, err = watch.Recv()
			}
		})
	}
}

func bindPods(b *testing.B, c *cluster, pod func(name, cpu string) *schedulingv1.Pod) {
	b.Helper()
	batches := c.batches()
	var spent, used time.Duration
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
				r.Pods = append(r.Pods, pod(fmt.Sprintf("p-%d-%d", round, from+i), "10m"))
			}
			calls = append(calls, r)
		}
		b.StartTimer()
		begin, before := time.Now(), processor(b)
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
		spent, used = spent+time.Since(begin), used+processor(b)-before
		cancel()
	}
	b.ReportMetric(float64(benchPods*b.N)/spent.Seconds(), "pods/s")
	b.ReportMetric(float64(used.Microseconds())/float64(benchPods*b.N), "cpu-µs/pod")
}

// BenchmarkSingleCreates measures how many pods a second are made and bound by 64 callers, each with one call for each
// pod.
func BenchmarkSingleCreates(b *testing.B) {
	const callers = 64
	c := startFleet(b, 1000)
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	watch := follow(b, ctx, c.pods())
	var clients []schedulingv1.PodServiceClient
	for range 4 {
		clients = append(clients, c.pods())
	}
	var spent, used time.Duration
	for round := 0; b.Loop(); round++ {
		begin, before := time.Now(), processor(b)
		var next atomic.Int64
		var group errgroup.Group
		for i := range callers {
			group.Go(func() error {
				for n := next.Add(1); n <= benchPods; n = next.Add(1) {
					pod := newPod(fmt.Sprintf("p-%d-%d", round, n), "10m")
					if _, err := clients[i%len(clients)].CreatePod(ctx, &schedulingv1.CreatePodRequest{Pod: pod}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		awaitBound(b, watch, benchPods)
		spent, used = spent+time.Since(begin), used+processor(b)-before
	}
	b.ReportMetric(float64(benchPods*b.N)/spent.Seconds(), "pods/s")
	b.ReportMetric(float64(used.Microseconds())/float64(benchPods*b.N), "cpu-µs/pod")
}

// BenchmarkCreatedToBound measures how long a pod waits on an idle cluster: from the call that makes it until a watch
// shows its binding.
func BenchmarkCreatedToBound(b *testing.B) {
	for _, nodes := range []int{100, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { createdToBound(b, nodes) })
	}
}

func createdToBound(b *testing.B, nodes int) {
	c := startFleet(b, nodes)
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
