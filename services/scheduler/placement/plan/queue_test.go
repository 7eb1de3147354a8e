package plan

import (
	"fmt"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// waiting returns a pod of a uid that needs a node.
func waiting(uid string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	return newPod("p", append([]func(*schedulingv1.Pod){carrying("app", "a"), func(p *schedulingv1.Pod) {
		p.Metadata.Uid, p.Metadata.Generation, p.Spec.SchedulerName = uid, 1, defaultScheduler
		p.Status = &schedulingv1.PodStatus{Phase: proto.String(placement.Pending)}
	}}, change...)...)
}

// stuckOn returns a queue without nodes that has found none for a pod.
func stuckOn(t *testing.T, pod *schedulingv1.Pod) *Queue {
	t.Helper()
	q := NewQueue(NewCluster(), Policy(nil))
	q.AddPod(pod)
	if p := q.Next(start); len(p.Held) != 1 || tries(q) {
		t.Fatalf("Next = %v; the pod is to wait", p)
	}
	return q
}

// tries reports whether a queue decides about pods now.
func tries(q *Queue) bool { return len(q.Next(start.Add(retryPause)).Held) > 0 }

func keepingApart(p *schedulingv1.Pod) {
	p.Spec.Affinity = &schedulingv1.Affinity{PodAntiAffinity: &schedulingv1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []*schedulingv1.PodAffinityTerm{
			{TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{}},
		},
	}}
}

func stayingNear(p *schedulingv1.Pod) {
	keepingApart(p)
	terms := p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	p.Spec.Affinity = &schedulingv1.Affinity{
		PodAffinity: &schedulingv1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms},
	}
}

func TestAPodThatFitsNowhereIsTriedAgainWhenItAsksForSomethingElse(t *testing.T) {
	for what, tc := range map[string]struct {
		now  *schedulingv1.Pod
		want bool
	}{
		"its status changed": {waiting("1", func(p *schedulingv1.Pod) {
			p.Status.Conditions = []*schedulingv1.PodCondition{{Type: PodScheduled, Status: "False"}}
		}), false},
		"another pod of its name":              {waiting("2"), true},
		"another spec":                         {waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Generation = 2 }), true},
		"other labels, which keep others away": {waiting("1", carrying("app", "b")), true},
		"it is being deleted": {waiting("1", func(p *schedulingv1.Pod) {
			p.Metadata.Generation, p.Metadata.DeletionTimestamp = 2, &timestamppb.Timestamp{Seconds: 1}
		}), false},
	} {
		t.Run(what, func(t *testing.T) {
			q := stuckOn(t, waiting("1"))
			if q.AddPod(tc.now); tries(q) != tc.want {
				t.Errorf("it is placed again: %v, want %v", !tc.want, tc.want)
			}
		})
	}
}

func TestOnlyWhatCanHelpHasPodsTriedAgain(t *testing.T) {
	bound := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "other", "node" }
	status := func(p *schedulingv1.Pod) {
		p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}}
	}
	ended := func(p *schedulingv1.Pod) { p.Status.Phase = proto.String(placement.Failed) }
	other := func(f ...func(*schedulingv1.Pod)) *schedulingv1.Pod { return waiting("2", append(f, bound)...) }
	gated := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.SchedulerName = "other", "another" }
	for what, tc := range map[string]struct {
		stuck       *schedulingv1.Pod
		before, now *schedulingv1.Pod // of another pod; nil if it is not there
		want        bool
	}{
		"a pod that ran is gone":             {waiting("1"), other(), nil, true},
		"a pod that ran has ended":           {waiting("1"), other(), other(ended), true},
		"it is gone after it had ended":      {waiting("1"), other(ended), nil, false},
		"a pod that waited is gone":          {waiting("1"), waiting("2", gated), nil, false},
		"a pod that runs becomes ready":      {waiting("1", keepingApart), other(), other(status), false},
		"it has other labels":                {waiting("1", keepingApart), other(), other(carrying("app", "b")), true},
		"no matter to one without terms":     {waiting("1"), other(), other(carrying("app", "b")), false},
		"a pod that came may be company":     {waiting("1", stayingNear), nil, other(), true},
		"another of its name is on the node": {waiting("1", keepingApart), other(), waiting("3", bound), true},
		"and it may leave more room":         {waiting("1"), other(), waiting("3", bound), true},
	} {
		t.Run(what, func(t *testing.T) {
			q := NewQueue(NewCluster(), Policy(nil))
			if tc.before != nil {
				q.AddPod(tc.before)
			}
			q.AddPod(tc.stuck)
			if tries(q); tries(q) {
				t.Fatal("it does not wait")
			}
			if tc.now != nil {
				q.AddPod(tc.now)
			} else {
				q.RemovePod(object.Key{Namespace: "default", Name: "other"})
			}
			if tries(q) != tc.want {
				t.Errorf("it is tried again: %v, want %v", !tc.want, tc.want)
			}
		})
	}
}

func TestWhatARefusedBindingLeavesFreeIsForOthers(t *testing.T) {
	for what, tc := range map[string]struct {
		result Result
	}{
		"the pod is bound elsewhere": {Changed},
		"the pod cannot be stored":   {Invalid},
	} {
		t.Run(what, func(t *testing.T) {
			pod, now := waiting("1"), start
			q := NewQueue(NewCluster(), Policy(nil))
			q.AddPod(waiting("2", func(p *schedulingv1.Pod) { p.Metadata.Name = "other" }))
			q.Next(now)
			for i := range 3 {
				placed := proto.CloneOf(pod)
				placed.Spec.NodeName = "node"
				q.Cluster.AddPod(placed)
				o := Outcome{Action: Action{BindPod, Decision{Pod: pod, Node: "node"}}, Result: tc.result}
				q.Done(now, []Outcome{o})
				now = now.Add(retryPause)
				if held := q.Next(now).Held; len(held) != 1 || held[0].Pod.GetMetadata().GetName() != "other" {
					t.Errorf("after refusal %d these are tried again: %v, want the other pod alone", i+1, held)
				}
			}
		})
	}
}

// TestAPlanIsOfABoundedSize has more pods than are placed at once: the plan asks for the next decision at once.
func TestAPlanIsOfABoundedSize(t *testing.T) {
	q := NewQueue(NewCluster(), Policy(nil))
	for i := range mostAtOnce + 1 {
		q.AddPod(waiting("1", func(p *schedulingv1.Pod) { p.Metadata.Name = fmt.Sprint(i) }))
	}
	for i, want := range []int{mostAtOnce, 1, 0} {
		p := q.Next(start)
		if again := want > 0; len(p.Held) != want || p.Wake.Equal(start) != again {
			t.Errorf("decision %d is about %d pods, want %d; again at %v", i, len(p.Held), want, p.Wake)
		}
	}
}
