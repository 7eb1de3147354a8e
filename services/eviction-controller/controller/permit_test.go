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

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// permit is the guardian's: it is given to whoever asks.
type permit struct{ held bool }

func (p *permit) Acquire(context.Context, *metav1.ObjectReference, string) (bool, error) {
	p.held = true
	return true, nil
}

func (p *permit) Release(context.Context, *metav1.ObjectReference) error {
	p.held = false
	return nil
}

// TestADrainThatEndsLeavesThePermitToAnother has one drain of a control-plane node take the permit in the very look in which another one of
// that node ends.
func TestADrainThatEndsLeavesThePermitToAnother(t *testing.T) {
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
	c := New(Config{
		Tables: tables, Tracker: liveness.New(liveness.NewAwake(), time.Minute), Permits: guardian, Pods: pods, Budgets: budgets,
		Evictor: &owner{}, Events: nobody{}, Retry: time.Second, Log: log,
	})
	ctx := kinds.Own(t.Context())
	if _, err := tables.Nodes.Create(ctx, &nodev1.Node{Metadata: &metav1.ObjectMeta{
		Name: "a", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
	}}); err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		if _, err := tables.Drains.Create(ctx, &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: name}, Spec: &nodev1.DrainSpec{NodeName: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	look := func() {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), "a"); err != nil {
			t.Fatal(err)
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
