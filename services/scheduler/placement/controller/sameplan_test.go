package controller

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
	"github.com/windlass-dev/windlass/services/scheduler/server"
)

var start = time.Unix(1_700_000_000, 0)

// fleet is some nodes, of which each has room for one core more than the one before, and the last is unschedulable.
type fleet struct {
	noNodes
	list []*nodev1.Node
}

func (*fleet) WaitRevision(context.Context, int64) error { return nil }
func (f *fleet) All() []*nodev1.Node                     { return f.list }
func (f *fleet) IsSynced() bool                          { return true }

func (f *fleet) Speaks(context.Context, string) error { return nil }

func newFleet(n int) *fleet {
	f := &fleet{}
	for i := range n {
		last := i == n-1
		f.list = append(f.list, &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}, Spec: &nodev1.NodeSpec{Unschedulable: &last},
			Status: &nodev1.NodeStatus{
				Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
				Allocatable: map[string]*structpb.Value{
					"cpu": structpb.NewStringValue(fmt.Sprint(i + 1)), "memory": structpb.NewStringValue("8Gi"),
					"pods": structpb.NewStringValue("110"),
				},
			},
		})
	}
	return f
}

// TestThePlanIsWhatIsDone asks for the explanation of a pod and has a new leader place it in the same state: it is
// bound to the node that is named best, or stays pending with the same message.
func TestThePlanIsWhatIsDone(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	tables := followed(t, etcdtest.Store(t))
	for i, nodes := range []*fleet{newFleet(4), newFleet(1), {}, newFleet(3), newFleet(4), newFleet(2)} {
		pod := newPod(t, tables, fmt.Sprint("p-", i))
		if err := tables.Pods.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := object.KeyOf(pod)
		s := NewScheduler(tables, nodes, nodes, nil, log)
		pods := server.NewPods(server.Config{
			Tables: tables, Nodes: nodes, Events: nodes, Placer: s, Now: time.Now, Log: log,
		})
		want, err := pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Name: key.Name, Namespace: key.Namespace})
		if err != nil {
			t.Fatal(err)
		}
		s.observe()
		live, err := pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Name: key.Name, Namespace: key.Namespace})
		if err != nil {
			t.Fatal(err)
		}
		if want.GetComputedFrom() != "Copy" || live.GetComputedFrom() != "Leader" || live.GetResourceVersion() == "" {
			t.Errorf("computed from %q before the process leads, and from %q at %q then", want.GetComputedFrom(),
				live.GetComputedFrom(), live.GetResourceVersion())
		}
		live.ComputedFrom, live.ResourceVersion = want.GetComputedFrom(), want.GetResourceVersion()
		if diff := cmp.Diff(want, live, protocmp.Transform()); diff != "" {
			t.Errorf("with %d nodes the leader explains otherwise (-copy +leader):\n%s", len(nodes.list), diff)
		}
		s.carryOut(t.Context(), s.queue.Next(start))
		got, err := tables.Pods.Get(t.Context(), key.Namespace, key.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.GetSpec().GetNodeName() != want.GetBest() {
			t.Errorf("with %d nodes it is bound to %q, the plan says %q", len(nodes.list), got.GetSpec().GetNodeName(),
				want.GetBest())
		}
		if c := placement.PodCondition(got, plan.PodScheduled); want.GetBest() == "" && c.GetMessage() != want.GetMessage() {
			t.Errorf("with %d nodes its condition is %q, the plan says %q", len(nodes.list), c.GetMessage(), want.GetMessage())
		}
		if want.GetBest() != "" {
			continue
		}
		if _, err := tables.Pods.Delete(t.Context(), key.Namespace, key.Name, nil); err != nil {
			t.Fatal(err) // or the next leader would place it first
		}
	}
}
