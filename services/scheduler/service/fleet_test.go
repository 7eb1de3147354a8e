package service

import (
	"context"
	"fmt"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
)

// memoryInUse returns what this process has from the operating system for its Go heap, stacks and tables, in bytes. The
// mapped database of etcd is not in it.
func memoryInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// mostMemory follows memoryInUse until ctx ends.
func mostMemory(ctx context.Context) *atomic.Uint64 {
	var most atomic.Uint64
	go func() {
		for ticker := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			if now := memoryInUse(); now > most.Load() {
				most.Store(now)
			}
		}
	}()
	return &most
}

// BenchmarkFleet measures a scheduler of 20,000 nodes and 400,000 running pods: how long a process that begins needs
// until it has placed its first pod, how many more pods a second it places, and the most memory that it has in use from
// its start on. The owner of the nodes and the client are in the same process; etcd is a process of its own.
func BenchmarkFleet(b *testing.B) {
	const nodes, running = 20_000, 400_000
	c := startFleetOver(b, nodes, etcdtest.StartMembers(b, 1).Client(b))
	c.stop()
	c.fill(b, running, nodes)
	var began, spent time.Duration
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var most *atomic.Uint64
	for round := 0; b.Loop(); round++ {
		most = mostMemory(ctx)
		begin := time.Now()
		c.startScheduler()
		pods := c.pods()
		c.create(pods, newPod(fmt.Sprintf("begin-%d", round), "10m"))
		c.awaitPod(pods, fmt.Sprintf("begin-%d", round), bound)
		began += time.Since(begin)
		begin = time.Now()
		batches := c.batches()
		var late []string // stored before a node was chosen
		for n := range 10 {
			r := &schedulingv1.BatchCreatePodsRequest{}
			for i := range benchBatch {
				r.Pods = append(r.Pods, newPod(fmt.Sprintf("more-%d-%d-%d", round, n, i), "10m"))
			}
			out, err := batches.BatchCreatePods(b.Context(), r)
			if err != nil {
				b.Fatal(err)
			}
			for _, one := range out.GetResults() {
				switch {
				case one.GetCode() != 0:
					b.Fatal(one)
				case one.GetPod().GetSpec().GetNodeName() == "":
					late = append(late, one.GetPod().GetMetadata().GetName())
				}
			}
		}
		for _, name := range late {
			c.awaitPod(pods, name, bound)
		}
		spent += time.Since(begin)
		c.stop()
	}
	b.ReportMetric(began.Seconds()/float64(b.N), "s/start")
	b.ReportMetric(float64(10*benchBatch*b.N)/spent.Seconds(), "pods/s")
	b.ReportMetric(float64(most.Load())/(1<<20), "MiB")
}

// fill stores running pods as the agents of their nodes report them.
func (c *cluster) fill(b *testing.B, pods, nodes int) {
	b.Helper()
	table := resource.NewTable(store.New(c.etcd, "/windlass/scheduler/"), protovalidate.GlobalValidator,
		resource.Config[*schedulingv1.Pod]{KeepStatus: true})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- table.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	now := timestamppb.Now()
	for from := 0; from < pods; from += benchBatch {
		some := make([]*schedulingv1.Pod, benchBatch)
		for i := range some {
			p := newPod(fmt.Sprintf("web-6c9cddbc59-%06d", from+i), "10m")
			p.Metadata.Labels = map[string]string{
				"app": fmt.Sprintf("web-%d", (from+i)/50), "pod-template-hash": "6c9cddbc59",
			}
			p.Spec.NodeName, p.Spec.SchedulerName = fmt.Sprintf("node-%d", (from+i)%nodes), "default-scheduler"
			p.Status = &schedulingv1.PodStatus{
				Phase: proto.String("Running"), HostIp: "10.0.0.1", PodIp: "10.0.0.1", StartTime: now, QosClass: "Burstable",
				ContainerStatuses: []*schedulingv1.ContainerStatus{{
					Name: "main", Ready: proto.Bool(true), RestartCount: proto.Int32(0), Started: proto.Bool(true),
					Image: "pause", ContainerId: fmt.Sprintf("process://%036d", from+i),
					State: &schedulingv1.ContainerState{Running: &schedulingv1.ContainerStateRunning{StartedAt: now}},
				}},
			}
			for _, typ := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
				p.Status.Conditions = append(p.Status.Conditions, &schedulingv1.PodCondition{
					Type: typ, Status: "True", LastTransitionTime: now,
				})
			}
			some[i] = p
		}
		for _, w := range table.CreateAll(b.Context(), some) {
			if w.Err != nil {
				b.Fatal(w.Err)
			}
		}
	}
}
