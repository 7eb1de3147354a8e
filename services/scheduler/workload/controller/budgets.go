package controller

import (
	"sync"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

// selectors holds the selectors of all budgets: each change of a pod is matched with those of its namespace, and to
// parse a selector takes longer than to match it. It is safe for concurrent use.
type selectors struct {
	mu     sync.Mutex
	parsed map[string]map[string]labels.Selector // by namespace and name of the budget
}

// changed keeps the selector of a budget. One that only has a new status keeps its selector.
func (s *selectors) changed(ch resource.Change[*schedulingv1.PodDisruptionBudget]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	budgets := s.parsed[ch.Key.Namespace]
	if ch.Deleted {
		if delete(budgets, ch.Key.Name); len(budgets) == 0 {
			delete(s.parsed, ch.Key.Namespace)
		}
		return
	}
	is := ch.Object.GetSpec().GetSelector()
	if _, known := budgets[ch.Key.Name]; known && proto.Equal(ch.Previous.GetSpec().GetSelector(), is) {
		return
	}
	if budgets == nil {
		if s.parsed == nil {
			s.parsed = map[string]map[string]labels.Selector{}
		}
		budgets = map[string]labels.Selector{}
		s.parsed[ch.Key.Namespace] = budgets
	}
	budgets[ch.Key.Name] = placement.PodSelector(is)
}

// matching returns the keys of the budgets of a namespace that select one of several sets of labels.
func (s *selectors) matching(namespace string, sets ...map[string]string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, selector := range s.parsed[namespace] {
		for _, set := range sets {
			if selector.Matches(labels.Set(set)) {
				out = append(out, object.Key{Namespace: namespace, Name: name}.String())
				break
			}
		}
	}
	return out
}
