package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"syscall"
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
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// fleet is a leading controller of many nodes that have pods. etcd runs in a process of its own.
type fleet struct {
	*Controller
	asked chan asked
}

// asked is when the scheduler was asked to delete a pod.
type asked struct {
	at  time.Time
	pod *schedulingv1.Pod
}

// newFleet returns a fleet whose controller has decided about each node. The pods of a node tolerate the taint "late"
// for 20 s, 26 s, and so on.
func newFleet(b *testing.B, nodes, each int, grace, pause time.Duration) *fleet {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(store.New(etcdtest.StartMembers(b, 1).Client(b), "/fleet/"), protovalidate.GlobalValidator, nil,
		log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	pods, err := NewPods(nil, log)
	if err != nil {
		b.Fatal(err)
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](nil, log)
	if err != nil {
		b.Fatal(err)
	}
	var list []*nodev1.Node
	var all []*schedulingv1.Pod
	for i := range nodes {
		name := nodeName(i)
		list = append(list, &nodev1.Node{Metadata: &metav1.ObjectMeta{
			Name: name, Labels: map[string]string{placement.ZoneLabel: fmt.Sprint("zone-", i%3)},
		}})
		for n := range each {
			pod := fmt.Sprintf("pod-%d-%d", i, n)
			all = append(all, &schedulingv1.Pod{
				Metadata: &metav1.ObjectMeta{Namespace: "default", Name: pod, Uid: pod},
				Spec: &schedulingv1.PodSpec{NodeName: name, Tolerations: []*schedulingv1.Toleration{
					{Key: "late", Operator: "Exists", TolerationSeconds: proto.Int32(int32(20 + 6*n))},
				}},
				Status: &schedulingv1.PodStatus{Phase: proto.String(placement.Running)},
			})
		}
	}
	pods.Replace(all, 1)
	budgets.Replace(nil, 1)
	awake, calls := liveness.NewAwake(), make(chan asked, nodes*each)
	tracker := liveness.New(awake, grace)
	f := &fleet{asked: calls, Controller: New(Config{
		Tables: tables, Tracker: tracker, Views: NewViews(tables, tracker, pods, budgets, pause), Permits: &siblings{},
		Pods: pods, Budgets: budgets, Events: noEvents{}, Retry: time.Hour, Log: log,
		Evictor: &owner{then: func(pod *schedulingv1.Pod) { calls <- asked{time.Now(), pod} }},
	})}
	runs := []func(context.Context) error{tables.Nodes.Run, tables.Drains.Run, awake.Run, f.Lead}
	ended := make(chan error, len(runs))
	for _, run := range runs {
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
	for _, w := range tables.Nodes.CreateAll(b.Context(), list) {
		if w.Err != nil {
			b.Fatal(w.Err)
		}
	}
	for i := 0; i < nodes; { // the first heartbeats are refused until the controller leads
		if tracker.Beat(&nodev1.HeartbeatRequest{Name: nodeName(i)}) {
			i++
		}
	}
	f.await(b, func(i int, n *nodev1.Node) bool { return plan.IsReady(n) })
	return f
}

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// await waits until all nodes are as they are wanted.
func (f *fleet) await(b *testing.B, is func(i int, n *nodev1.Node) bool) {
	b.Helper()
	for i := range len(f.Tables.Nodes.Keys()) {
		for {
			if n, ok := f.Tables.Nodes.Lookup("", nodeName(i)); ok && is(i, n) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// processor returns the processor time of this process, in seconds.
func processor(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkSilence has agents fall silent at once, in three zones, while the other agents send a heartbeat every
// second. It measures the processor time until each lost node is stored as not ready, and then the share of one core
// while they wait for their turns. The grace period is a tenth of the default, so that decisions are ten times as
// frequent; the pause between two turns is the default.
func BenchmarkSilence(b *testing.B) {
	const grace, watched = 4 * time.Second, 10 * time.Second
	for _, nodes := range []int{1000, 5000} {
		for _, lost := range []int{50, 60, 100} { // percent
			b.Run(fmt.Sprintf("nodes=%d/lost=%d%%", nodes, lost), func(b *testing.B) {
				f := newFleet(b, nodes, 1, grace, 10*time.Second)
				silent := func(i int) bool { return i%100 < lost }
				ctx, cancel := context.WithCancel(b.Context())
				var beats sync.WaitGroup
				beats.Go(func() {
					for ; ctx.Err() == nil; time.Sleep(time.Second) {
						for i := range nodes {
							if !silent(i) {
								f.Tracker.Beat(&nodev1.HeartbeatRequest{Name: nodeName(i)})
							}
						}
					}
				})
				defer beats.Wait()
				defer cancel()
				for b.Loop() {
					used := processor(b)
					f.await(b, func(i int, n *nodev1.Node) bool { return plan.IsReady(n) != silent(i) })
					b.ReportMetric(processor(b)-used, "lost-cpu-s")
					used = processor(b)
					time.Sleep(watched)
					b.ReportMetric((processor(b)-used)/watched.Seconds()*100, "waiting-%")
				}
			})
		}
	}
}

// BenchmarkTaint measures from the call that sets a NoExecute taint of a node, one of 5,000 with 100,000 pods together,
// until the scheduler is asked to delete the last of its 20 pods.
func BenchmarkTaint(b *testing.B) {
	const nodes, each = 5000, 20
	f := newFleet(b, nodes, each, time.Hour, time.Hour)
	taint := func(i int) {
		b.Helper()
		f.taint(b, i, "k")
		for n := 0; n < each; {
			if (<-f.asked).pod.GetSpec().GetNodeName() == nodeName(i) {
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

// BenchmarkDeadlines has 100,000 pods of 5,000 nodes tolerate a taint for a while. It measures by how much the heap
// grows for each, and how late the scheduler is asked to delete the first fifth of them, about 800 a second. A deleted
// pod is gone at once.
func BenchmarkDeadlines(b *testing.B) {
	const nodes, each = 5000, 20
	f := newFleet(b, nodes, each, time.Hour, time.Hour)
	before := heap()
	added := make(map[string]time.Time, nodes)
	var late []time.Duration
	for b.Loop() {
		for i := range nodes {
			f.taint(b, i, "late")
		}
		f.await(b, func(_ int, n *nodev1.Node) bool { return n.GetStatus().GetEvictions().GetNextDeadline() != nil })
		b.ReportMetric(float64(int64(heap())-int64(before))/(nodes*each), "B/deadline")
		for i := range nodes {
			n, _ := f.Tables.Nodes.Lookup("", nodeName(i))
			added[nodeName(i)] = n.GetSpec().GetTaints()[0].GetTimeAdded().AsTime()
		}
		used, began := processor(b), time.Now()
		for revision := int64(2); len(late) < nodes*each/5; revision++ {
			call := <-f.asked
			pod := call.pod
			bears := time.Duration(pod.GetSpec().GetTolerations()[0].GetTolerationSeconds()) * time.Second
			late = append(late, call.at.Sub(added[pod.GetSpec().GetNodeName()].Add(bears)))
			f.Pods.Step(revision, []resource.Change[*schedulingv1.Pod]{{
				Key: object.KeyOf(pod), Object: pod, Previous: pod, Existed: true, Deleted: true,
			}})
		}
		b.ReportMetric((processor(b)-used)/time.Since(began).Seconds()*100, "cpu-%")
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[0].Microseconds())/1000, "first-ms")
	b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds())/1000, "p99-ms")
}

// heap returns the bytes of the live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (f *fleet) taint(b *testing.B, i int, key string) {
	b.Helper()
	if _, err := f.Tables.Nodes.Modify(b.Context(), object.Key{Name: nodeName(i)}, func(n *nodev1.Node) error {
		if n.Spec == nil {
			n.Spec = &nodev1.NodeSpec{}
		}
		n.Spec.Taints = []*nodev1.Taint{{Key: key, Effect: placement.NoExecute, TimeAdded: timestamppb.Now()}}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
