package server

import (
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Existing nodes are used first, further nodes one after the other, and nodes that are left out not at all.
func TestWherePodsWouldGoInVariationsOfTheCluster(t *testing.T) {
	s := NewPods(follow(t))
	if _, err := s.PlanPlacement(t.Context(), &schedulingv1.PlanPlacementRequest{}); status.Code(
		err) != codes.Unavailable {
		t.Errorf("before the nodes are known: %v", err)
	}
	node := func(name, cpu string) *nodev1.Node {
		return &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: name},
			Status: &nodev1.NodeStatus{
				Capacity:   map[string]*structpb.Value{"cpu": structpb.NewStringValue(cpu)},
				Conditions: []*nodev1.NodeCondition{{Type: "Ready", Status: "True"}},
			},
		}
	}
	pods := &schedulingv1.PodList{}
	var place []*schedulingv1.PlanPlacementRequest_PodName
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		pods.Items = append(pods.Items, &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: &schedulingv1.PodSpec{Containers: []*schedulingv1.Container{{
				Name: "a", Resources: &schedulingv1.ResourceRequirements{
					Requests: map[string]*structpb.Value{"cpu": structpb.NewStringValue("1")},
				},
			}}},
		})
		place = append(place, &schedulingv1.PlanPlacementRequest_PodName{Namespace: "default", Name: name})
	}
	pods.Items[4].Spec.NodeName = "two"
	resp, err := s.PlanPlacement(t.Context(), &schedulingv1.PlanPlacementRequest{
		Nodes: &nodev1.NodeList{Items: []*nodev1.Node{node("one", "1"), node("two", "2")}}, Pods: pods,
		Variations: []*schedulingv1.PlanPlacementRequest_Variation{
			{Place: place[:4]},
			{Place: place[:4], Add: []*schedulingv1.PlanPlacementRequest_FurtherNodes{{Node: node("more", "1"), Count: 3}}},
			{Place: place[3:], Remove: []string{"two"}},
			{Place: []*schedulingv1.PlanPlacementRequest_PodName{{Namespace: "default", Name: "gone"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"one", "two", "", ""}, {"one", "two", "~more-0", "~more-1"}, {"one", ""}, nil}
	for i, r := range resp.GetResults() {
		var got []string
		for _, p := range r.GetPlacements() {
			got = append(got, p.GetNode())
			if (p.GetMessage() == "") != (p.GetNode() != "") {
				t.Errorf("variation %d: %v", i, p)
			}
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("variation %d: the pods go to %q, want %q", i, got, want[i])
		}
	}
}
