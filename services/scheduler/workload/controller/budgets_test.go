package controller

import (
	"slices"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

type budgetChange = resource.Change[*schedulingv1.PodDisruptionBudget]

// budgetOf returns a budget of pods with a label app; without one it selects nothing.
func budgetOf(name, app string) *schedulingv1.PodDisruptionBudget {
	b := &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: &schedulingv1.PodDisruptionBudgetSpec{},
	}
	if app != "" {
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	return b
}

func TestSelectorsAreThoseOfTheBudgets(t *testing.T) {
	var s selectors
	web, db := map[string]string{"app": "web"}, map[string]string{"app": "db"}
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	change := func(was, is *schedulingv1.PodDisruptionBudget, deleted bool) {
		s.changed(budgetChange{Key: object.KeyOf(is), Object: is, Previous: was, Existed: was != nil, Deleted: deleted})
	}
	expect("without budgets", s.matching("default", web))
	a, b, none := budgetOf("a", "web"), budgetOf("b", "web"), budgetOf("none", "")
	change(nil, a, false)
	change(nil, b, false)
	change(nil, none, false)
	expect("two budgets", s.matching("default", web), "default/a", "default/b")
	expect("of another namespace", s.matching("other", web))
	expect("other pods", s.matching("default", db))
	expect("one of two sets of labels", s.matching("default", db, web), "default/a", "default/b")
	expect("no labels", s.matching("default"))
	next := budgetOf("a", "db")
	change(a, next, false)
	expect("after a change", s.matching("default", web), "default/b")
	expect("after a change, other pods", s.matching("default", db), "default/a")
	change(next, next, true)
	change(b, b, true)
	change(none, none, true)
	expect("without budgets again", s.matching("default", web, db))
	if len(s.parsed) > 0 {
		t.Errorf("selectors are left: %v", s.parsed)
	}
}

// TestASelectorIsParsedOncePerVersion replaces a parsed selector: only a budget with another selector is parsed again.
func TestASelectorIsParsedOncePerVersion(t *testing.T) {
	var s selectors
	web := map[string]string{"app": "web"}
	was := budgetOf("a", "web")
	s.changed(budgetChange{Key: object.KeyOf(was), Object: was})
	s.parsed["default"]["a"] = labels.Nothing()
	is := budgetOf("a", "web")
	is.Status = &schedulingv1.PodDisruptionBudgetStatus{DisruptionsAllowed: proto.Int32(1)}
	s.changed(budgetChange{Key: object.KeyOf(is), Object: is, Previous: was, Existed: true})
	if got := s.matching("default", web); len(got) > 0 {
		t.Errorf("a change of the status or a pod parses the selector: %q", got)
	}
	other := budgetOf("a", "web")
	other.Spec.Selector.MatchLabels = map[string]string{}
	s.changed(budgetChange{Key: object.KeyOf(other), Object: other, Previous: is, Existed: true})
	if got := s.matching("default", web); len(got) != 1 {
		t.Errorf("a change of the selector is ignored: %q", got)
	}
}

// BenchmarkPodAmongBudgets matches a changed pod with the 100 budgets of its namespace.
func BenchmarkPodAmongBudgets(b *testing.B) {
	var s selectors
	for i := range 100 {
		budget := budgetOf(string(rune('A'+i)), string(rune('A'+i)))
		s.changed(budgetChange{Key: object.KeyOf(budget), Object: budget})
	}
	set := map[string]string{"app": "A"}
	for b.Loop() {
		s.matching("default", set, set)
	}
}
