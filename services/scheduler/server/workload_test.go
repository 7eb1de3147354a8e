package server

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// TestAPlanForAnObjectWithoutANamespaceIsForThatOfTheRequest asks with the right in that namespace alone: the default
// namespace is another one.
func TestAPlanForAnObjectWithoutANamespaceIsForThatOfTheRequest(t *testing.T) {
	s := follow(t)
	for given, want := range map[string]string{"": "dev", "prod": "prod"} {
		budget := &schedulingv1.PodDisruptionBudget{
			Metadata: &metav1.ObjectMeta{Namespace: given, Name: "b"}, Spec: &schedulingv1.PodDisruptionBudgetSpec{},
		}
		got, _ := subject(t.Context(), s.Tables.Budgets, budget, "dev", "") // its spec may be incomplete
		if got.GetMetadata().GetNamespace() != want {
			t.Errorf("namespace %q: planned in %q, want %q", given, got.GetMetadata().GetNamespace(), want)
		}
	}
}
