package controller

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

// creating is a scheduler that places new pods, over one node with room for one of them.
type creating struct {
	*Scheduler
	store *store.Store
	ctx   context.Context // of the leader
}

func newCreating(t *testing.T, fenceHolds bool) creating {
	t.Helper()
	c := creating{store: etcdtest.Store(t)}
	fence := store.Fence{Key: c.store.Prefix() + "leader", CreateRevision: 1}
	if fenceHolds {
		resp, err := etcdtest.Client(t).Put(t.Context(), fence.Key, "")
		if err != nil {
			t.Fatal(err)
		}
		fence.CreateRevision = resp.Header.Revision
	}
	c.ctx = store.WithFence(t.Context(), fence)
	tables := followedBy(t, c.store, func(pods []*schedulingv1.Pod) *resource.Creation[*schedulingv1.Pod] {
		return c.Creating(pods)
	})
	c.Scheduler = NewScheduler(tables, newFleet(2), noNodes{}, nil, slog.New(slog.DiscardHandler))
	c.patience = time.Minute
	c.observe() // offers are taken from now on
	return c
}

// lead has the scheduler lead until the end of the test.
func (c creating) lead(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		if err := c.Lead(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

func asking(name string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
			Name: "main", Image: "pause", Resources: &schedulingv1.ResourceRequirements{
				Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("1")},
			},
		}}},
	}
}

func (c creating) create(t *testing.T, name string) *schedulingv1.Pod {
	t.Helper()
	pod, err := c.tables.Pods.Create(t.Context(), asking(name))
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestANewPodIsStoredOnceWithItsNode(t *testing.T) {
	c := newCreating(t, true)
	c.lead(t)
	pod := c.create(t, "p")
	if pod.GetSpec().GetNodeName() != "node-0" || placement.PodCondition(pod, plan.PodScheduled).GetStatus() != "True" {
		t.Errorf("created as %v", pod)
	}
	stored, err := c.tables.Pods.Get(t.Context(), "default", "p")
	if err != nil || !proto.Equal(stored, pod) {
		t.Errorf("stored as %v: %v", stored, err)
	}
	if other := c.create(t, "q"); other.GetSpec().GetNodeName() != "" {
		t.Errorf("the second of two pods with room for one is on %q", other.GetSpec().GetNodeName())
	}
}

func TestAPodIsStoredWithoutANodeWhenTheLeaderWasReplaced(t *testing.T) {
	c := newCreating(t, false)
	c.lead(t)
	if pod := c.create(t, "p"); pod.GetSpec().GetNodeName() != "" || pod.GetMetadata().GetUid() == "" {
		t.Errorf("created as %v", pod)
	}
}

func TestACreationDoesNotWaitForAPlacementThatDoesNotBegin(t *testing.T) {
	c := newCreating(t, true) // and does not lead
	c.patience = time.Millisecond
	if pod := c.create(t, "p"); pod.GetSpec().GetNodeName() != "" {
		t.Errorf("it is on %q", pod.GetSpec().GetNodeName())
	}
	if offered, _ := c.offers.take(); len(offered) > 0 {
		t.Errorf("%d offers are left", len(offered))
	}
	c.offers.end()
	c.patience = time.Hour
	if pod := c.create(t, "q"); pod.GetSpec().GetNodeName() != "" {
		t.Errorf("where no process leads it is on %q", pod.GetSpec().GetNodeName())
	}
}

// TestACreationOfUnknownOutcomeKeepsItsRoomUntilEtcdAnswersForIt loses the answer of a creation.
func TestACreationOfUnknownOutcomeKeepsItsRoomUntilEtcdAnswersForIt(t *testing.T) {
	for what, tc := range map[string]struct {
		cameThrough bool
		err         error
	}{
		"that came through":         {true, store.ErrUnavailable},
		"that did not":              {false, store.ErrUnavailable},
		"whose caller has given up": {false, context.Canceled},
	} {
		t.Run(what, func(t *testing.T) {
			c := newCreating(t, true)
			pod := asking("p")
			pod.Metadata.Uid = "u"
			plan.Default(pod.Spec)
			pod.Status = &schedulingv1.PodStatus{Phase: proto.String(placement.Pending)}
			one := &offer{pods: []*schedulingv1.Pod{pod}, answered: make(chan struct{})}
			c.offers.add(one)
			reconcile := func() {
				t.Helper()
				if _, err := c.reconcile(c.ctx, ""); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			if <-one.answered; len(one.placed) != 1 {
				t.Fatalf("placed %v", one.placed)
			}
			c.tables.Place(pod, one.placed[0].Node)
			if tc.cameThrough {
				value, err := proto.Marshal(pod)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.store.Commit(t.Context(), store.Put("pods/default/p", value, 0)); err != nil {
					t.Fatal(err)
				}
			}
			settled := c.settle.wait()
			c.patience = 0
			other := c.create(t, "other")
			reconcile()
			if nodeOf(t, c.Scheduler, other) != "" {
				t.Fatal("its room was given away")
			}
			select {
			case <-settled:
				t.Error("its binding counts as settled")
			default:
			}
			c.created(one, one.pods, []resource.Written[*schedulingv1.Pod]{{Err: tc.err}})
			_, results := c.offers.take()
			c.takeCreated(results)
			select {
			case <-settled:
				t.Error("its binding counts as settled before etcd has answered")
			default:
			}
			reconcile()
			<-settled
			if got := nodeOf(t, c.Scheduler, other) != ""; got == tc.cameThrough {
				t.Errorf("another pod has its room: %t", got)
			}
			if _, ok := c.tables.Pods.Lookup("default", object.KeyOf(pod).Name); ok != tc.cameThrough {
				t.Errorf("it is stored: %t", ok)
			}
		})
	}
}
