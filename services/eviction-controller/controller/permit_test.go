package controller

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/informer"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// permit is etcd-guardian's: it is granted to every caller.
type permit struct{ held bool }

func (p *permit) Acquire(context.Context, *metav1.ObjectReference, string) (bool, error) {
	p.held = true
	return true, nil
}

func (p *permit) Release(context.Context, *metav1.ObjectReference) error {
	p.held = false
	return nil
}

// guarded returns a controller of stored nodes and drains, and the guardian that it asks.
func guarded(t *testing.T) (*Controller, *permit) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	tables := kinds.New(etcdtest.Store(t), protovalidate.GlobalValidator, nil, log)
	for _, run := range []func(context.Context) error{tables.Nodes.Run, tables.Drains.Run} {
		go func() { _ = run(t.Context()) }()
	}
	for _, wait := range []func(context.Context) error{tables.Nodes.WaitSynced, tables.Drains.WaitSynced} {
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := NewPods(nil, log)
	if err != nil {
		t.Fatal(err)
	}
	budgets, err := informer.New[*schedulingv1.PodDisruptionBudget](nil, log)
	if err != nil {
		t.Fatal(err)
	}
	guardian := &permit{}
	tracker := liveness.New(liveness.NewAwake(), time.Minute)
	c := New(Config{
		Tables: tables, Tracker: tracker, Views: NewViews(tables, tracker, pods, budgets, time.Second), Permits: guardian,
		Pods: pods, Budgets: budgets, Evictor: &owner{}, Events: noEvents{}, Retry: time.Second, Log: log,
	})
	return c, guardian
}

// TestADrainThatEndsLeavesThePermitToAnother has one drain of a control-plane node take the permit in the very look in
// which another one of that node ends.
func TestADrainThatEndsLeavesThePermitToAnother(t *testing.T) {
	c, guardian := guarded(t)
	tables := c.Tables
	ctx := t.Context()
	if _, err := tables.Nodes.Create(ctx, &nodev1.Node{Metadata: &metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
	}}); err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		if _, err := tables.Drains.Create(ctx, &nodev1.Drain{
			Metadata: &metav1.ObjectMeta{Name: name},
			Spec:     &nodev1.DrainSpec{NodeName: "a"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	look := func() {
		t.Helper()
		for _, reconcile := range []func(context.Context, string) (time.Time, error){c.reconcilePods, c.reconcileNode} {
			if _, err := reconcile(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	create("old")
	look()
	if _, err := tables.Drains.Delete(ctx, "", "old", nil); err != nil {
		t.Fatal(err)
	}
	create("new") // comes before the other by its name
	look()
	if d, ok := tables.Drains.Lookup("", "new"); !ok || !plan.UsesPermit(d) || !guardian.held {
		t.Errorf("drain %v goes on, the permit is held: %t", d.GetStatus(), guardian.held)
	}
	if _, ok := tables.Drains.Lookup("", "old"); ok {
		t.Error("the old drain is still there")
	}
	if _, err := tables.Drains.Delete(ctx, "", "new", nil); err != nil {
		t.Fatal(err)
	}
	if look(); guardian.held {
		t.Error("the permit is still held after the last drain")
	}
}

// TestThePermitIsGivenBackWhenRebootAndDrainEndTogether has a node come back from its reboot while the drain that used
// the permit as well is deleted: whichever ends last gives it back.
func TestThePermitIsGivenBackWhenRebootAndDrainEndTogether(t *testing.T) {
	c, guardian := guarded(t)
	ctx := t.Context()
	if _, err := c.Tables.Nodes.Create(ctx, &nodev1.Node{
		Metadata: &metav1.ObjectMeta{
			Name: "a", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
			Annotations: map[string]string{plan.RebootOf: "before"},
		},
		Status: &nodev1.NodeStatus{NodeInfo: &nodev1.NodeSystemInfo{BootId: "after"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Tables.Drains.Create(ctx, &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{Name: "d"}, Spec: &nodev1.DrainSpec{NodeName: "a"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reconcilePods(ctx, "a"); err != nil || !guardian.held {
		t.Fatalf("the drain has no permit: %v", err)
	}
	if _, err := c.Tables.Drains.Delete(ctx, "", "d", nil); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.Go(func() error {
		_, err := c.reconcilePods(ctx, "a")
		return err
	})
	group.Go(func() error {
		_, err := c.reconcileNode(ctx, "a")
		return err
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	node, _ := c.Tables.Nodes.Lookup("", "a")
	if _, there := c.Tables.Drains.Lookup("", "d"); there || node.GetMetadata().GetAnnotations()[plan.RebootOf] != "" {
		t.Fatalf("the drain is there: %t, node %v", there, node)
	}
	if guardian.held {
		t.Error("the permit is held for nothing")
	}
}
