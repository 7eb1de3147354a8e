package pods

import (
	"context"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestAPodIsAdmittedByTheNodeAsItIsNow has the labels of a node change after its agent registered it: what the agent
// remembers decides about no pod that asks for labels, and refuses none.
func TestAPodIsAdmittedByTheNodeAsItIsNow(t *testing.T) {
	labelled := func(labels map[string]string) *nodev1.Node {
		return &nodev1.Node{
			Metadata: &metav1.ObjectMeta{Name: "m-0", Labels: labels},
			Status: &nodev1.NodeStatus{Allocatable: map[string]*structpb.Value{
				"pods": structpb.NewNumberValue(4),
				"cpu":  structpb.NewNumberValue(1),
			}},
		}
	}
	fast, none := map[string]string{"disk": "fast"}, map[string]string(nil)
	plain, selecting, required, pinned, large := sh("p", ""), sh("p", ""), sh("p", ""), sh("p", ""), sh("p", "")
	selecting.Spec.NodeSelector = fast
	terms := func(term *schedulingv1.NodeSelectorTerm) *schedulingv1.Affinity {
		return &schedulingv1.Affinity{NodeAffinity: &schedulingv1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &schedulingv1.NodeSelector{
				NodeSelectorTerms: []*schedulingv1.NodeSelectorTerm{term},
			},
		}}
	}
	required.Spec.Affinity = terms(&schedulingv1.NodeSelectorTerm{
		MatchExpressions: []*schedulingv1.NodeSelectorRequirement{{Key: "disk", Operator: "Exists"}},
	})
	pinned.Spec.Affinity = terms(&schedulingv1.NodeSelectorTerm{MatchFields: []*schedulingv1.NodeSelectorRequirement{
		{Key: "metadata.name", Operator: "In", Values: []string{"m-0"}},
	}})
	large.Spec.Containers[0].Resources = &schedulingv1.ResourceRequirements{
		Requests: map[string]*structpb.Value{"cpu": structpb.NewNumberValue(2)},
	}
	for _, tc := range []struct {
		name       string
		pod        *schedulingv1.Pod
		known, now map[string]string
		want       string
		asks       int // for the node as it is now
	}{
		{"a label that went", selecting, fast, none, "NodeAffinity", 1},
		{"also where an affinity asks for it", required, fast, none, "NodeAffinity", 1},
		{"a label that came", selecting, none, fast, "", 1},
		{"a pod that asks for no label is no reason to ask", plain, none, fast, "", 0},
		{"neither is one that asks for the node by its name, which never changes", pinned, none, none, "", 0},
		{"a refusal is", large, none, none, "OutOfcpu", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked := 0
			s := &Pods{cfg: Config{NodeOf: func(_ context.Context, fresh bool) (*nodev1.Node, error) {
				if !fresh {
					return labelled(tc.known), nil
				}
				asked++
				return labelled(tc.now), nil
			}}}
			verdict, err := s.check(t.Context(), "uid-p", tc.pod)
			if err != nil || verdict.Reason != tc.want || asked != tc.asks {
				t.Errorf("check = %+v, %v, want %q; asked %d times", verdict, err, tc.want, asked)
			}
		})
	}
}
