package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// owner plays the scheduler: it notes which pods were made to leave, and does then what a test wants.
type owner struct {
	mu   sync.Mutex
	gone []string
	then func(*schedulingv1.Pod)
	err  error // of each call
}

func (o *owner) Delete(_ context.Context, pod *schedulingv1.Pod) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = append(o.gone, pod.GetMetadata().GetName())
	if o.then != nil {
		o.then(pod)
	}
	return o.err
}

func (o *owner) Evict(ctx context.Context, pod *schedulingv1.Pod, _ *int32, _ bool) error {
	return o.Delete(ctx, pod)
}

func (o *owner) On(context.Context, string, string) ([]*schedulingv1.Pod, error) { return nil, nil }

type noEvents struct{}

func (noEvents) Event(object.Object, string, string, string) {}

// controllerOf returns a controller of one node that many pods run on; what it knows is put into its caches.
func controllerOf(t *testing.T, o *owner, node *nodev1.Node, drains ...*nodev1.Drain) *Controller {
	t.Helper()
	pods, err := NewPods(nil, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](nil, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	tables := kinds.New(nil, protovalidate.GlobalValidator, nil, slog.Default())
	tracker := liveness.New(liveness.NewAwake(), time.Minute)
	c := New(Config{
		Tables: tables, Tracker: tracker, Views: NewViews(tables, tracker, pods, budgets, time.Second), Pods: pods,
		Budgets: budgets, Evictor: o, Events: noEvents{}, Retry: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	tables.Nodes.Replace([]*nodev1.Node{node}, 1)
	tables.Drains.Replace(drains, 1)
	var all []*schedulingv1.Pod
	for i := range 5 * plan.AtOnce {
		name := fmt.Sprint("p", i)
		all = append(all, &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{
				Namespace: "default", Name: name, Uid: name,
				OwnerReferences: []*metav1.OwnerReference{{Kind: "ReplicaSet", Uid: "r", Controller: proto.Bool(true)}},
			},
			Spec: &schedulingv1.PodSpec{NodeName: "a"}, Status: &schedulingv1.PodStatus{Phase: proto.String(placement.Running)},
		})
	}
	pods.Replace(all, 1)
	return c
}

func tainted() *nodev1.Node {
	return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a"}, Spec: &nodev1.NodeSpec{
		Unschedulable: proto.Bool(true),
		Taints: []*nodev1.Taint{
			{Key: "k", Effect: placement.NoExecute, TimeAdded: timestamppb.New(time.Now().Add(-time.Second))},
		},
	}}
}

func TestPodsThatHaveNotLeftYetStayWhenTheTaintGoes(t *testing.T) {
	var c *Controller
	o := &owner{then: func(*schedulingv1.Pod) {
		free := &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a"}}
		c.Tables.Nodes.Step(2, []resource.Change[*nodev1.Node]{{Key: object.Key{Name: "a"}, Object: free}})
	}}
	c = controllerOf(t, o, tainted())
	if _, err := c.reconcilePods(t.Context(), "a"); len(o.gone) != plan.AtOnce || err != nil {
		t.Errorf("%d pods left after the taint went with the first: %v", len(o.gone), err)
	}
}

func TestAnEvictionDoesNotWaitForAWriteOfItsNode(t *testing.T) {
	asked := make(chan string, 5*plan.AtOnce)
	c := controllerOf(t, &owner{then: func(pod *schedulingv1.Pod) { asked <- pod.GetMetadata().GetName() }}, tainted())
	written := c.locks.lock("a") // as while the node is written
	ended := make(chan error)
	go func() {
		_, err := c.reconcilePods(t.Context(), "a")
		ended <- err
	}()
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Error("no pod is evicted while the node is written")
	}
	written()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestPodsThatHaveNotLeftYetStayWhenTheDrainGoes(t *testing.T) {
	drain := &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: "d", Uid: "d"}, Spec: &nodev1.DrainSpec{NodeName: "a"},
		Status: &nodev1.DrainStatus{Phase: proto.String(plan.Draining)},
	}
	var c *Controller
	o := &owner{then: func(*schedulingv1.Pod) {
		c.Tables.Drains.Step(2, []resource.Change[*nodev1.Drain]{
			{Key: object.Key{Name: "d"}, Object: drain, Deleted: true},
		})
	}}
	node := tainted()
	node.Spec.Taints = nil
	c = controllerOf(t, o, node, drain)
	drain.Status = plan.Drain(c.Views.Drain(drain)).StatusAfter(drain)
	if _, err := c.reconcilePods(t.Context(), "a"); len(o.gone) != plan.AtOnce || err != nil {
		t.Errorf("%d pods left after the drain went with the first: %v", len(o.gone), err)
	}
}

// Else the pods of a few nodes would keep all workers, and the first pods of a node would be tried alone.
func TestASchedulerThatIsAwayIsAskedOnceForEachPodInTurn(t *testing.T) {
	o := &owner{err: status.Error(codes.Unavailable, "away")}
	c := controllerOf(t, o, tainted())
	for range 5 {
		wake, err := c.reconcilePods(t.Context(), "a")
		if err != nil || wake.IsZero() {
			t.Fatalf("decided again at %v: %v", wake, err)
		}
	}
	slices.Sort(o.gone)
	if tried := len(slices.Compact(slices.Clone(o.gone))); len(o.gone) != 5*plan.AtOnce || tried != 5*plan.AtOnce {
		t.Errorf("%d calls for %d pods in five rounds", len(o.gone), tried)
	}
}

func TestNothingIsRememberedOfPodsThatWentBeforeTheAnswer(t *testing.T) {
	var c *Controller
	revision := int64(1)
	o := &owner{then: func(pod *schedulingv1.Pod) {
		revision++
		c.Pods.Step(revision, []resource.Change[*schedulingv1.Pod]{
			{Key: object.KeyOf(pod), Object: pod, Existed: true, Previous: pod, Deleted: true},
		})
	}}
	c = controllerOf(t, o, tainted())
	all := c.Pods.On("a")
	if _, err := c.reconcilePods(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	slices.Sort(o.gone)
	if left, tries := len(slices.Compact(o.gone)), c.Views.tries(all); left != 5*plan.AtOnce || len(tries) != 0 {
		t.Errorf("%d pods left, %d are remembered", left, len(tries))
	}
}

// TestNotEachOfManyNodesThatAreLostHasAllNodesLookedAt asks about a full disruption as each lost node of a large
// cluster does.
func TestNotEachOfManyNodesThatAreLostHasAllNodesLookedAt(t *testing.T) {
	c := controllerOf(t, &owner{}, tainted())
	var nodes []*nodev1.Node
	for i := range 1000 {
		nodes = append(nodes, &nodev1.Node{Metadata: &metav1.ObjectMeta{
			Name: fmt.Sprint("n", i), Labels: map[string]string{
				"topology.kubernetes.io/region": "r",
				"topology.kubernetes.io/zone":   "z",
			},
		}})
	}
	c.Tables.Nodes.Replace(nodes, 2)
	ask := func() { c.Views.planNode(nodes[0]) }
	ask()
	if got := testing.AllocsPerRun(10, ask); got > 100 {
		t.Errorf("%v allocations for one node of %d", got, len(nodes))
	}
}
