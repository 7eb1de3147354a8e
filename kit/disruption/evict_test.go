package disruption

import (
	"strings"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func pod(phase, ready string) *schedulingv1.Pod {
	return &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "web", CreationTimestamp: &timestamppb.Timestamp{Seconds: 100}},
		Status: &schedulingv1.PodStatus{Phase: proto.String(phase), Conditions: []*schedulingv1.PodCondition{
			{Type: "Ready", Status: ready},
		}},
	}
}

func budget(allowed, healthy, desired int32,
	f ...func(*schedulingv1.PodDisruptionBudget),
) *schedulingv1.PodDisruptionBudget {
	b := &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Name: "web-pdb", Generation: 2}, Spec: &schedulingv1.PodDisruptionBudgetSpec{},
		Status: &schedulingv1.PodDisruptionBudgetStatus{
			ObservedGeneration: proto.Int32(2), DisruptionsAllowed: &allowed, CurrentHealthy: &healthy, DesiredHealthy: &desired,
		},
	}
	for _, change := range f {
		change(b)
	}
	return b
}

func TestEvict(t *testing.T) {
	paidAt := func(seconds int64) func(*schedulingv1.PodDisruptionBudget) {
		return func(b *schedulingv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]*timestamppb.Timestamp{"web": {Seconds: seconds}}
		}
	}
	always := func(b *schedulingv1.PodDisruptionBudget) {
		b.Spec.UnhealthyPodEvictionPolicy = proto.String("AlwaysAllow")
	}
	stale := func(b *schedulingv1.PodDisruptionBudget) { b.Metadata.Generation = 3 }
	deleting := pod("Running", "True")
	deleting.Metadata.DeletionTimestamp = timestamppb.Now()
	running := pod("Running", "True")
	unready := pod("Running", "False")
	for name, c := range map[string]struct {
		pod     *schedulingv1.Pod
		budgets []*schedulingv1.PodDisruptionBudget
		want    Verdict
		why     string
	}{
		"without a budget a pod may go": {running, nil, Delete, ""},
		"a budget pays for one that works": {running, []*schedulingv1.PodDisruptionBudget{
			budget(1, 3, 2),
		}, Spend, ""},
		"a budget that has nothing left refuses": {running, []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2),
		}, Refuse, "The disruption budget web-pdb needs 2 healthy pods and has 2 currently"},
		"a budget that was changed must be counted first": {running, []*schedulingv1.PodDisruptionBudget{
			budget(1, 3, 2, stale),
		}, Refuse, "is still being processed"},
		"a pod with two budgets is not evicted": {running, []*schedulingv1.PodDisruptionBudget{
			budget(1, 3, 2), budget(1, 3, 2),
		}, Ambiguous, "more than one"},
		"one that is pending may go": {pod("Pending", "False"), []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2),
		}, Delete, ""},
		"one that has ended may go": {
			pod("Succeeded", "False"),
			[]*schedulingv1.PodDisruptionBudget{budget(0, 2, 2)},
			Delete, "",
		},
		"one that goes already may go": {deleting, []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2),
		}, Delete, ""},
		"one that is not ready may go where enough others are": {unready, []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2),
		}, Delete, ""},
		"but not where they are too few": {unready, []*schedulingv1.PodDisruptionBudget{
			budget(0, 1, 2),
		}, Refuse, "has 1 currently"},
		"unless that is always allowed": {unready, []*schedulingv1.PodDisruptionBudget{
			budget(0, 1, 2, always),
		}, Delete, ""},
		"a budget pays once for a pod": {running, []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2, paidAt(101)),
		}, Delete, ""},
		"what it paid for an earlier pod of the name is gone": {running, []*schedulingv1.PodDisruptionBudget{
			budget(0, 2, 2, paidAt(100)),
		}, Refuse, "has 2 currently"},
	} {
		if v, why := Evict(c.pod, c.budgets); v != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %v, %q", name, v, why)
		}
	}
}

func TestSpentTakesOneAndRemembersThePod(t *testing.T) {
	b := budget(2, 4, 2)
	Spent(b, "web", time.Unix(500, 0))
	if b.GetStatus().GetDisruptionsAllowed() != 1 || b.GetStatus().GetDisruptedPods()["web"].GetSeconds() != 500 {
		t.Errorf("budget %v", b)
	}
}
