package server

import (
	"slices"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// nothing shows a drain alone: nothing else is known.
type nothing struct{ Views }

func (nothing) Drain(d *nodev1.Drain) plan.DrainView {
	return plan.DrainView{Now: time.Now(), Drain: d}
}

func TestADrainThatNamesNoNodeIsNotPlanned(t *testing.T) {
	s := NewEviction(newTables(t), nothing{}, nil)
	for _, r := range []*schedulingv1.PlanDrainRequest{
		{Drain: &nodev1.Drain{}},
		{Drain: &nodev1.Drain{Spec: &nodev1.DrainSpec{}}},
		{},
	} {
		_, err := s.PlanDrain(t.Context(), r)
		fields, _ := rpcerr.Fields(err)
		var paths []string
		for _, f := range fields {
			paths = append(paths, f.Path)
		}
		want := "drain.spec.nodeName"
		if r.GetDrain() == nil {
			want = "name"
		}
		if !slices.Equal(paths, []string{want}) {
			t.Errorf("PlanDrain(%v): %v, want field %s", r, err, want)
		}
	}
}

// TestAPlanOfADrainHasNoStepThatABudgetRefuses gives every object that the decision needs, so no live object is read.
func TestAPlanOfADrainHasNoStepThatABudgetRefuses(t *testing.T) {
	s := NewEviction(newTables(t), nothing{}, nil)
	app := map[string]string{"app": "web"}
	pod := func(name string, labels map[string]string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{
				Namespace: "default", Name: name, Labels: labels,
				OwnerReferences: []*metav1.OwnerReference{{Kind: "ReplicaSet", Controller: proto.Bool(true)}},
			},
			Status: &schedulingv1.PodStatus{Phase: proto.String("Running"), Conditions: []*schedulingv1.PodCondition{
				{Type: "Ready", Status: "True"},
			}},
		}
	}
	r, err := s.PlanDrain(t.Context(), &schedulingv1.PlanDrainRequest{
		Drain: &nodev1.Drain{Spec: &nodev1.DrainSpec{NodeName: "a"}, Status: &nodev1.DrainStatus{
			Phase: proto.String(plan.Draining),
		}},
		Node: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "a"}, Spec: &nodev1.NodeSpec{Unschedulable: proto.Bool(true)}},
		Pods: &schedulingv1.PodList{Items: []*schedulingv1.Pod{pod("guarded", app), pod("free", nil)}},
		Budgets: &schedulingv1.PodDisruptionBudgetList{Items: []*schedulingv1.PodDisruptionBudget{{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:     &schedulingv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}},
			Status:   &schedulingv1.PodDisruptionBudgetStatus{DisruptionsAllowed: proto.Int32(0)},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := r.GetActions(); len(a) != 1 || a[0].GetObject().GetName() != "free" {
		t.Errorf("steps %v", a)
	}
	if h := r.GetHeldBack(); len(h) != 1 || h[0].GetObject().GetName() != "guarded" || h[0].GetReason() == "" {
		t.Errorf("held back %v", h)
	}
}
