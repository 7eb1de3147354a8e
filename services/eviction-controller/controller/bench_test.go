package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
)

// BenchmarkTaint measures from the call that sets a NoExecute taint of a node, one of 5,000 with 100,000 pods together,
// until the scheduler is asked to delete the last of its 20 pods.
func BenchmarkTaint(b *testing.B) {
	const nodes, each = 5000, 20
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(etcdtest.Store(b), protovalidate.GlobalValidator, nil, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	pods, err := NewPods(nil, log)
	if err != nil {
		b.Fatal(err)
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](nil, log)
	if err != nil {
		b.Fatal(err)
	}
	var fleet []*nodev1.Node
	var all []*schedulingv1.Pod
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		fleet = append(fleet, &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}})
		for n := range each {
			pod := fmt.Sprintf("pod-%d-%d", i, n)
			all = append(all, &schedulingv1.Pod{
				Metadata: &metav1.ObjectMeta{Namespace: "default", Name: pod, Uid: pod},
				Spec:     &schedulingv1.PodSpec{NodeName: name},
				Status:   &schedulingv1.PodStatus{Phase: proto.String(placement.Running)},
			})
		}
	}
	pods.Replace(all, 1)
	budgets.Replace(nil, 1)
	tracker, asked := liveness.New(liveness.NewAwake(), time.Hour), make(chan string, nodes*each)
	c := New(Config{
		Tables: tables, Tracker: tracker, Views: NewViews(tables, tracker, pods, budgets, time.Hour), Permits: &siblings{},
		Pods: pods, Budgets: budgets, Events: noEvents{}, Retry: time.Hour, Log: log,
		Evictor: &owner{then: func(pod *schedulingv1.Pod) { asked <- pod.GetSpec().GetNodeName() }},
	})
	ended := make(chan error, 3)
	for _, run := range []func(context.Context) error{tables.Nodes.Run, tables.Drains.Run, c.Lead} {
		go func() { ended <- run(ctx) }()
	}
	b.Cleanup(func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	})
	for _, w := range tables.Nodes.CreateAll(b.Context(), fleet) {
		if w.Err != nil {
			b.Fatal(w.Err)
		}
	}
	taint := func(i int) {
		b.Helper()
		name := fmt.Sprint("node-", i)
		if _, err := tables.Nodes.Modify(b.Context(), object.Key{Name: name}, func(n *nodev1.Node) error {
			if n.Spec == nil {
				n.Spec = &nodev1.NodeSpec{}
			}
			n.Spec.Taints = []*nodev1.Taint{{Key: "k", Effect: placement.NoExecute, TimeAdded: timestamppb.Now()}}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < each; {
			if <-asked == name {
				n++
			}
		}
	}
	taint(nodes - 1) // after the first decision about each node
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		if i == nodes-1 {
			b.Fatal("no node is left")
		}
		begin := time.Now()
		taint(i)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
