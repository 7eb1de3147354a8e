package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func minAvailable(v any) *schedulingv1.PodDisruptionBudget {
	b := budget()
	b.Spec.MinAvailable = amount(v)
	return b
}

func maxUnavailable(v any) *schedulingv1.PodDisruptionBudget {
	b := budget()
	b.Spec.MaxUnavailable = amount(v)
	return b
}

func budget() *schedulingv1.PodDisruptionBudget {
	return &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "b", Generation: 1},
		Spec:     &schedulingv1.PodDisruptionBudgetSpec{Selector: selector()},
	}
}

// allowed marks pods as ones whose eviction was allowed some time ago.
func allowed(b *schedulingv1.PodDisruptionBudget, ago time.Duration,
	names ...string,
) *schedulingv1.PodDisruptionBudget {
	b.Status = &schedulingv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]*timestamppb.Timestamp{}}
	for _, n := range names {
		b.Status.DisruptedPods[n] = at(start.Add(-ago))
	}
	return b
}

func TestBudget(t *testing.T) {
	set := replicaSet(3)
	three := func(states ...change) (out []*schedulingv1.Pod) {
		for i := range 3 {
			var more []change
			if i < len(states) {
				more = states[i : i+1]
			}
			out = append(out, pod(fmt.Sprintf("p%d", i), set, more...))
		}
		return out
	}
	loose := func() (out []*schedulingv1.Pod) { return []*schedulingv1.Pod{pod("p0", nil), pod("p1", nil)} }
	for _, c := range []struct {
		name                                 string
		budget                               *schedulingv1.PodDisruptionBudget
		pods                                 []*schedulingv1.Pod
		expected, desired, healthy, disrupts int
		reason                               string
	}{
		{"one of three may go", minAvailable(2), three(), 3, 2, 3, 1, "SufficientPods"},
		{"none may go while one is not ready", minAvailable(2), three(unready), 3, 2, 2, 0, "InsufficientPods"},
		{"a pod on its way out is not healthy", minAvailable(2), three(leaving), 3, 2, 2, 0, "InsufficientPods"},
		{"a percentage that must stay is rounded up", minAvailable("50%"), three(), 3, 2, 3, 1, "SufficientPods"},
		{"a percentage that may go is rounded up", maxUnavailable("50%"), three(), 3, 1, 3, 2, "SufficientPods"},
		{"the owner says how many there should be", maxUnavailable(1), three()[:2], 3, 2, 2, 0, "InsufficientPods"},
		{
			"pods whose eviction was allowed are as good as gone", allowed(minAvailable(1), time.Minute, "p0"), three(), 3, 1, 2,
			1, "SufficientPods",
		},
		{
			"one that is still there after two minutes counts again", allowed(minAvailable(1), 2*time.Minute, "p0"), three(), 3,
			1, 3, 2, "SufficientPods",
		},
		{"pods without a controller count where a number must stay", minAvailable(1), loose(), 2, 1, 2, 1, "SufficientPods"},
		{"pods without a controller count for nothing otherwise", maxUnavailable(1), loose(), 0, 0, 2, 0, "InsufficientPods"},
		{"pods that ended do not count", minAvailable(2), three(phase("Succeeded")), 2, 2, 2, 0, "InsufficientPods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := plan.Budget(plan.BudgetView{Now: start, Budget: c.budget, Pods: c.pods, Scales: map[string]plan.Scale{
				"rs": plan.ScaleOfSet(set),
			}}).Status
			got := []int32{s.GetExpectedPods(), s.GetDesiredHealthy(), s.GetCurrentHealthy(), s.GetDisruptionsAllowed()}
			if d := cmp.Diff([]int32{int32(c.expected), int32(c.desired), int32(c.healthy), int32(c.disrupts)}, got); d != "" {
				t.Errorf("expected, desired, healthy, allowed: %s", d)
			}
			if r := object.FindCondition(s.GetConditions(), "DisruptionAllowed").GetReason(); r != c.reason {
				t.Errorf("reason %s, want %s", r, c.reason)
			}
		})
	}
}

func TestBudgetThatNeverAllowsAnythingSaysSo(t *testing.T) {
	set := replicaSet(2)
	for want, b := range map[string]*schedulingv1.PodDisruptionBudget{
		"maxUnavailable 0": maxUnavailable(0), "minAvailable 100%": minAvailable("100%"), "minAvailable 2": minAvailable(2),
	} {
		v := plan.BudgetView{
			Now: start, Budget: b, Pods: []*schedulingv1.Pod{pod("a", set), pod("b", set)},
			Scales: map[string]plan.Scale{"rs": plan.ScaleOfSet(set)},
		}
		c := object.FindCondition(plan.Budget(v).Status.GetConditions(), plan.DisruptionAllowed)
		if c.GetStatus() != "False" ||
			!strings.Contains(c.GetMessage(), "with "+want+" this budget never allows a disruption") {
			t.Errorf("%s: %s %q", want, c.GetStatus(), c.GetMessage())
		}
	}
}

func TestBudgetOfUnknownOwnersAllowsNothing(t *testing.T) {
	p := plan.Budget(plan.BudgetView{Now: start, Budget: maxUnavailable(1), Pods: []*schedulingv1.Pod{
		pod("a", replicaSet(1)),
	}})
	if c := object.FindCondition(p.Status.GetConditions(), plan.DisruptionAllowed); c.GetReason() != "SyncFailed" ||
		p.Status.GetDisruptionsAllowed() != 0 {
		t.Errorf("%s, %d allowed", c.GetReason(), p.Status.GetDisruptionsAllowed())
	}
}

func TestBudgetCountsADeploymentOnce(t *testing.T) {
	old, next := replicaSetNamed("old"), replicaSetNamed("next")
	scale := plan.ScaleOfDeployment(deployment(4, "v1", 1, 1))
	p := plan.Budget(plan.BudgetView{
		Now: start, Budget: maxUnavailable(1), Pods: []*schedulingv1.Pod{pod("a", old), pod("b", next)},
		Scales: map[string]plan.Scale{"old": scale, "next": scale},
	})
	if got := p.Status.GetExpectedPods(); got != 4 {
		t.Errorf("expects %d pods, want those of the deployment", got)
	}
}

func TestBudgetSelectors(t *testing.T) {
	none, all := budget(), budget()
	none.Spec.Selector, all.Spec.Selector = nil, &metav1.LabelSelector{}
	if placement.BudgetSelects(none, web) || !placement.BudgetSelects(all, nil) ||
		!placement.BudgetSelects(budget(), web) || placement.BudgetSelects(budget(), nil) {
		t.Error("no selector matches nothing, an empty one everything, others what they say")
	}
}

func TestBudgetNeverAllowsMoreThanAreHealthyBeyondTheGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := replicaSet(rapid.IntRange(0, 6).Draw(t, "want"))
		b := maxUnavailable(rapid.IntRange(0, 4).Draw(t, "most"))
		if rapid.Bool().Draw(t, "least") {
			b = minAvailable(fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, "percent")))
		}
		var pods []*schedulingv1.Pod
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			pods = append(pods, drawPod(t, i, set))
		}
		s := plan.Budget(plan.BudgetView{Now: start, Budget: b, Pods: pods, Scales: map[string]plan.Scale{
			"rs": plan.ScaleOfSet(set),
		}}).Status
		if a := s.GetDisruptionsAllowed(); a < 0 || a > 0 && s.GetCurrentHealthy()-a < s.GetDesiredHealthy() {
			t.Fatalf("allows %d of %d healthy, where %d must stay", a, s.GetCurrentHealthy(), s.GetDesiredHealthy())
		}
	})
}
