package server

import (
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestAPreemptionInAGivenClusterIsNotMixedWithTheLiveOne(t *testing.T) {
	s := NewPods(follow(t))
	app := map[string]string{"app": "web"}
	budget := &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: &schedulingv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: app}, MinAvailable: structpb.NewNumberValue(1),
		},
		Status: &schedulingv1.PodDisruptionBudgetStatus{DisruptionsAllowed: proto.Int32(0)},
	}
	if _, err := s.Tables.Budgets.Create(t.Context(), proto.CloneOf(budget)); err != nil {
		t.Fatal(err)
	}
	pod := func(name, node string, priority int32) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default", Labels: app},
			Spec: &schedulingv1.PodSpec{
				NodeName: node, Priority: proto.Int32(priority), Containers: []*schedulingv1.Container{{Name: "c", Image: "pause"}},
			},
		}
	}
	nodes := &nodev1.NodeList{Items: []*nodev1.Node{{
		Metadata: &metav1.ObjectMeta{Name: "a"},
		Status:   &nodev1.NodeStatus{Allocatable: map[string]*structpb.Value{"pods": structpb.NewStringValue("1")}},
	}}}
	pods := &schedulingv1.PodList{Items: []*schedulingv1.Pod{pod("low", "a", 1)}}
	for exceeds, budgets := range map[string]*schedulingv1.PlanPreemptionRequest_Budgets{
		"": nil, "web": {Items: []*schedulingv1.PodDisruptionBudget{budget}},
	} {
		out, err := s.PlanPreemption(t.Context(), &schedulingv1.PlanPreemptionRequest{
			Pod: pod("high", "", 10), Nodes: nodes, Pods: pods, Budgets: budgets,
		})
		if err != nil || out.GetNominatedNodeName() != "a" || len(out.GetVictims()) != 1 ||
			(out.GetVictims()[0].GetExceededBudget() != "") != (exceeds != "") {
			t.Errorf("given budgets %v: %v, %v; want exceeded %q", budgets, out, err, exceeds)
		}
		e, err := s.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{
			Pod: pod("high", "", 10), Nodes: nodes, Pods: pods, Budgets: budgets.GetItems(),
		})
		if err != nil || strings.Contains(e.GetMessage(), "against the budget") != (exceeds != "") {
			t.Errorf("explained with budgets %v: %q, %v; want exceeded %q", budgets, e.GetMessage(), err, exceeds)
		}
	}
	for name, r := range map[string]*schedulingv1.PlanPreemptionRequest{
		"budgets":  {Pod: pod("p", "", 1), Budgets: &schedulingv1.PlanPreemptionRequest_Budgets{}},
		"services": {Pod: pod("p", "", 1), Services: []*schedulingv1.Service{{Metadata: &metav1.ObjectMeta{Name: "s"}}}},
	} {
		_, err := s.PlanPreemption(t.Context(), r)
		if fields, _ := rpcerr.Fields(err); len(fields) != 1 || fields[0].Path != "nodes" {
			t.Errorf("only %s given: %v", name, err)
		}
	}
}
