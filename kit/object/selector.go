package object

import (
	kmeta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// LabelSelector parses a selector of labels. An empty or missing one matches nothing, which is the rule for machine
// sets. The faults are invalid fields below path.
func LabelSelector(s *metav1.LabelSelector, path string) (labels.Selector, []Fault) {
	if len(s.GetMatchLabels()) == 0 && len(s.GetMatchExpressions()) == 0 {
		return labels.Nothing(), nil
	}
	k := &kmeta.LabelSelector{MatchLabels: s.GetMatchLabels()}
	for _, e := range s.GetMatchExpressions() {
		k.MatchExpressions = append(k.MatchExpressions, kmeta.LabelSelectorRequirement{
			Key: e.GetKey(), Operator: kmeta.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues(),
		})
	}
	sel, err := kmeta.LabelSelectorAsSelector(k)
	if err != nil {
		return labels.Nothing(), []Fault{{Path: path, Description: err.Error()}}
	}
	return sel, nil
}
