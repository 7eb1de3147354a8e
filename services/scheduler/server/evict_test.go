package server

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/etcdtest"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/services/scheduler/kinds"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

type everyNode struct{}

func (everyNode) HasNode(string) bool { return true }

func (everyNode) Speaks(context.Context, string) error { return nil }

func (everyNode) WaitRevision(context.Context, int64) error { return nil }

// TestAPodThatBecomesReadyIsNotEvictedForNothing has a pod become ready after it was found not to be, and before it is
// deleted: the time of the mark on it is asked for in between.
func TestAPodThatBecomesReadyIsNotEvictedForNothing(t *testing.T) {
	meanwhile := func() {}
	tables := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: everyNode{},
		Log:     slog.New(slog.DiscardHandler),
		MayBind: func(identity.Caller, string, string) bool { return true },
		Now:     func() time.Time { meanwhile(); return time.Now() },
	})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	key, ctx := object.Key{Namespace: "default", Name: "p"}, t.Context()
	say := func(ready string) {
		t.Helper()
		if _, err := tables.Pods.Modify(ctx, key, func(p *schedulingv1.Pod) error {
			p.Status.Phase = proto.String(placement.Running)
			p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: ready}}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	app := map[string]string{"app": "a"}
	if _, err := tables.Pods.Create(ctx, &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p", Labels: app},
		Spec: &schedulingv1.PodSpec{
			NodeName: "node", Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	say("False")
	b, err := tables.Budgets.Create(ctx, &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Name: "b", Namespace: "default"}, Spec: &schedulingv1.PodDisruptionBudgetSpec{
			MinAvailable: structpb.NewNumberValue(1), Selector: &metav1.LabelSelector{MatchLabels: app},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Status = &schedulingv1.PodDisruptionBudgetStatus{
		ObservedGeneration: proto.Int32(1), DesiredHealthy: proto.Int32(1), CurrentHealthy: proto.Int32(1),
		DisruptionsAllowed: proto.Int32(0),
	}
	if _, err := tables.Budgets.UpdateStatus(ctx, b); err != nil {
		t.Fatal(err)
	}
	meanwhile = func() {
		meanwhile = func() {}
		say("True")
	}
	s := NewPods(Config{Tables: tables, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	evict := func() codes.Code {
		_, err := s.EvictPod(t.Context(), &schedulingv1.EvictPodRequest{Name: "p"})
		return status.Code(err)
	}
	if got := evict(); got != codes.ResourceExhausted {
		t.Errorf("EvictPod of a pod that became ready = %v, want RESOURCE_EXHAUSTED", got)
	}
	if pod, err := tables.Pods.Get(ctx, key.Namespace, key.Name); err != nil || object.Deleting(pod) {
		t.Errorf("the pod is %v, %v", pod, err)
	}
	say("False")
	if got := evict(); got != codes.OK {
		t.Errorf("EvictPod of a pod that is not ready = %v", got)
	}
}

// answers is a policy that answers everything with one error.
type answers struct{ error }

func (r answers) Require(identity.Caller, identity.Attributes) (string, error) { return "", r.error }

// TestADeletionForATaintIsSaidOnThePod has the eviction controller delete a pod, whose budget allows no eviction.
func TestADeletionForATaintIsSaidOnThePod(t *testing.T) {
	tables := kinds.New(kinds.Config{
		Store: etcdtest.Store(t), Validator: protovalidate.GlobalValidator, Nodes: everyNode{},
		Log:     slog.New(slog.DiscardHandler),
		MayBind: func(identity.Caller, string, string) bool { return true },
	})
	for _, k := range tables.All() {
		go func() { _ = k.Run(t.Context()) }()
		if err := k.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tables.Pods.Create(t.Context(), &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "a"}},
		Spec: &schedulingv1.PodSpec{
			NodeName: "node", Containers: []*schedulingv1.Container{{Name: "main", Image: "pause"}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := tables.Budgets.Create(t.Context(), &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Name: "b", Namespace: "default"}, Spec: &schedulingv1.PodDisruptionBudgetSpec{
			MinAvailable: structpb.NewNumberValue(1),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	evict := func(policy Policy) error {
		s := NewPods(Config{Tables: tables, Policy: policy, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		_, err := s.EvictPod(t.Context(), &schedulingv1.EvictPodRequest{Name: "p", Cause: placement.EvictedByTaint})
		return err
	}
	if err := evict(answers{status.Error(codes.PermissionDenied, "")}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("by a caller who may not delete the pod: %v", err)
	}
	if pod, err := tables.Pods.Get(t.Context(), "default", "p"); err != nil || object.Deleting(pod) {
		t.Fatalf("then the pod is %v, %v", pod, err)
	}
	if err := evict(answers{}); err != nil {
		t.Fatal(err)
	}
	pod, err := tables.Pods.Get(t.Context(), "default", "p")
	c := placement.PodCondition(pod, placement.DisruptionTarget)
	if err != nil || !object.Deleting(pod) || c.GetStatus() != "True" || c.GetReason() != "DeletionByTaintManager" {
		t.Errorf("the pod is deleted: %t, with %v; %v", object.Deleting(pod), c, err)
	}
}
