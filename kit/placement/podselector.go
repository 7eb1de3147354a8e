package placement

import (
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/windlass-dev/windlass/kit/object"
)

// ParsePodSelector returns a selector of pods as Kubernetes reads it where a missing one selects nothing and an empty
// one everything: that of budgets and of pod affinity. (resource.LabelSelector is for owners, whose empty selector
// selects nothing.) Errors are wrong fields below path.
func ParsePodSelector(s *metav1.LabelSelector, path string) (labels.Selector, []object.Fault) {
	if s != nil && len(s.GetMatchLabels()) == 0 && len(s.GetMatchExpressions()) == 0 {
		return labels.Everything(), nil
	}
	return object.LabelSelector(s, path)
}

// PodSelector is ParsePodSelector for a selector that was checked when it was stored; one that cannot be read selects
// nothing.
func PodSelector(s *metav1.LabelSelector) labels.Selector {
	selector, _ := ParsePodSelector(s, "")
	return selector
}

// BudgetSelects reports whether a budget is for pods with these labels.
func BudgetSelects(b *schedulingv1.PodDisruptionBudget, set map[string]string) bool {
	return PodSelector(b.GetSpec().GetSelector()).Matches(labels.Set(set))
}
