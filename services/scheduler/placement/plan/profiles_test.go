package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// rankedBy returns a policy with one priority, and the name of the scheduler that it is for.
func rankedBy(name, priority string) *schedulingv1.Policy {
	return &schedulingv1.Policy{
		Metadata:   &metav1.ObjectMeta{Name: name},
		Priorities: []*schedulingv1.PriorityPolicy{{Name: priority, Weight: proto.Int32(1)}},
	}
}

func of(scheduler string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) {
		p.Metadata.Uid, p.Metadata.Generation, p.Spec.SchedulerName = "uid-"+p.GetMetadata().GetName(), 1, scheduler
	}
}

// placed returns the nodes that a queue chooses now, and has the bindings written.
func placed(q *Queue) map[string]string {
	out := map[string]string{}
	var outcomes []Outcome
	for _, a := range q.Next(start).Do {
		if a.Verb != BindPod {
			continue
		}
		out[a.Pod.GetMetadata().GetName()] = a.Node
		bound := object.Clone(a.Pod)
		bound.Spec.NodeName = a.Node
		outcomes = append(outcomes, Outcome{Action: a, Now: bound})
	}
	q.Done(start, outcomes)
	return out
}

func TestEachSchedulerPlacesByItsOwnPolicy(t *testing.T) {
	c := clusterOf(newNode("empty"), newNode("used"))
	c.AddPod(newPod("there", on("used"), asking("cpu", "200m")))
	q := NewQueue(c, Policies([]*schedulingv1.Policy{
		rankedBy("default", "LeastRequestedPriority"), rankedBy("packing", "MostRequestedPriority"),
	}))
	want := map[string]string{}
	for i := range 6 { // turn by turn, so that each placement is seen by the other policy
		name, scheduler, node := fmt.Sprintf("p%d", i), DefaultScheduler, "empty"
		if i%2 == 1 {
			scheduler, node = "packing", "used"
		}
		want[name] = node
		q.AddPod(newPod(name, of(scheduler), asking("cpu", "10m")))
	}
	q.AddPod(newPod("other", of("elsewhere")))
	if got := placed(q); !maps.Equal(got, want) {
		t.Errorf("placed on %v, want %v", got, want)
	}
}

// What one policy places is seen by the others, also by their classes of pods that are kept.
func TestSchedulersOfOneProcessDoNotOvercommit(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a"), newNode("b")), Policies([]*schedulingv1.Policy{
		rankedBy("one", "LeastRequestedPriority"), rankedBy("two", "MostRequestedPriority"),
	}))
	used := map[string]int{}
	for i := range 40 {
		q.AddPod(newPod(fmt.Sprintf("p%d", i), of([]string{"one", "two", DefaultScheduler}[i%3]), asking("cpu", "300m")))
		for _, node := range placed(q) {
			used[node]++
		}
	}
	if want := map[string]int{"a": 13, "b": 13}; !maps.Equal(used, want) {
		t.Errorf("pods of 300m on nodes of four cores: %v", used)
	}
}

func TestAPolicyThatComesOrGoesTakesAndLeavesThePodsOfItsScheduler(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), Policies(nil))
	pods := []*schedulingv1.Pod{newPod("first", of("batch")), newPod("second", of("batch"))}
	take := func(policies []*schedulingv1.Policy, pods ...*schedulingv1.Pod) (changed []string) {
		for name, is := range q.SetProfiles(Policies(policies)) {
			if is {
				changed = append(changed, name)
			}
		}
		for _, pod := range pods {
			q.AddPod(pod)
		}
		return changed
	}
	q.AddPod(pods[0])
	if got := placed(q); len(got) > 0 {
		t.Fatalf("without its policy it is placed: %v", got)
	}
	batch := []*schedulingv1.Policy{rankedBy("batch", "MostRequestedPriority")}
	if changed := take(batch, pods[0]); !slices.Equal(changed, []string{"batch"}) {
		t.Errorf("changed: %v", changed)
	}
	if got := placed(q); got["first"] != "a" {
		t.Errorf("with its policy it is placed on %v", got)
	}
	q.AddPod(pods[1])
	if changed := take(nil, pods[1]); !slices.Equal(changed, []string{"batch"}) {
		t.Errorf("changed: %v", changed)
	}
	pods[1].Metadata.CreationTimestamp = nil
	p := q.Next(start.Add(time.Hour))
	if len(p.Do) != 1 || p.Do[0].Verb != StoreUnseen {
		t.Errorf("without its policy: %v", p)
	}
}
