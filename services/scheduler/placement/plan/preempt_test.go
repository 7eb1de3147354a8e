package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

func ranking(priority int32) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Spec.Priority = proto.Int32(priority) }
}

// running returns a pod that runs on a node since a second, and asks for some CPU.
func running(name, node, cpu string, priority int32, since int64, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := newPod(name, append(change, on(node), asking("cpu", cpu), ranking(priority))...)
	p.Metadata.Uid = name
	p.Status = &schedulingv1.PodStatus{StartTime: &timestamppb.Timestamp{Seconds: since}}
	return p
}

func called(name string) func(*schedulingv1.Pod) {
	return func(p *schedulingv1.Pod) { p.Metadata.Name = name }
}

func budget(name, app string, allowed int32) *schedulingv1.PodDisruptionBudget {
	return &schedulingv1.PodDisruptionBudget{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: &schedulingv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
		Status: &schedulingv1.PodDisruptionBudgetStatus{DisruptionsAllowed: proto.Int32(allowed)},
	}
}

// outline writes a preemption as "node: victim victim!", with a mark where a budget is exceeded.
func outline(p *Preemption) string {
	if p == nil {
		return "none"
	}
	out := p.Node + ":"
	for _, v := range p.Victims {
		out += " " + v.Key.Name
		if v.Budget != "" {
			out += "!"
		}
	}
	return out
}

func TestWhoIsPreempted(t *testing.T) {
	important := newPod("p", asking("cpu", "2"), ranking(10))
	leaving := func(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = timestamppb.New(start) }
	for _, tt := range []struct {
		name    string
		cluster *Cluster
		budgets []*schedulingv1.PodDisruptionBudget
		pod     *schedulingv1.Pod
		want    string
	}{
		{
			"pods of the same priority are not", clusterOf(newNode("a")).with(running("x", "a", "4", 10, 1)), nil, important,
			"none",
		},
		{
			"no more pods than needed", clusterOf(newNode("a")).with(running("x", "a", "1", 0, 1), running("y", "a", "2", 0, 2),
				running("z", "a", "1", 0, 3)), nil, important, "a: y",
		},
		{
			"the less important first", clusterOf(newNode("a")).with(running("x", "a", "2", 5, 1), running("y", "a", "2", 1, 2)),
			nil, important, "a: y",
		},
		{
			"the younger first", clusterOf(newNode("a")).with(running("x", "a", "2", 1, 9), running("y", "a", "2", 1, 2)), nil,
			important, "a: x",
		},
		{
			"the node whose victims are least important", clusterOf(newNode("a"), newNode("b")).with(
				running("x", "a", "4", 5, 1), running("y", "b", "2", 1, 1), running("z", "b", "2", 1, 1),
				running("w", "b", "0", 1, 1)), nil, important, "b: z",
		},
		{
			"a budget rather than a priority is kept", clusterOf(newNode("a"), newNode("b")).with(
				running("x", "a", "4", 5, 1), running("y", "b", "4", 1, 1, carrying("app", "db"))),
			[]*schedulingv1.PodDisruptionBudget{budget("db", "db", 0)},
			important, "a: x",
		},
		{
			"a budget is exceeded if nothing else helps", clusterOf(newNode("b")).with(
				running("y", "b", "4", 1, 1, carrying("app", "db"))),
			[]*schedulingv1.PodDisruptionBudget{budget("db", "db", 0)},
			important, "b: y!",
		},
		{
			"within a node, the pods without an exhausted budget", clusterOf(newNode("a")).with(
				running("x", "a", "2", 1, 9, carrying("app", "db")), running("y", "a", "2", 1, 1)),
			[]*schedulingv1.PodDisruptionBudget{budget("db", "db", 0)},
			important, "a: y",
		},
		{
			"pods that leave anyway are not victims", clusterOf(newNode("a"), newNode("b")).with(
				running("x", "a", "4", 0, 1), running("y", "b", "4", 10, 1, leaving)), nil, important, "b:",
		},
		{
			"where the node's own state keeps the pod out no eviction helps",
			clusterOf(newNode("a", tainted("k", "v", "NoSchedule")), newNode("b", cordoned)).with(running("x", "a", "4", 0, 1),
				running("y", "b", "4", 0, 1)), nil, important, "none",
		},
		{
			"where the node is too small no eviction helps", clusterOf(newNode("a", having("cpu", "1"))).with(
				running("x", "a", "1", 0, 1)), nil, important, "none",
		},
		{
			"a pod that keeps others away", clusterOf(newNode("a")).with(
				running("x", "a", "0", 0, 1, carrying("app", "web"))),
			nil, newPod("p", carrying("app", "web"), keepingApart, ranking(10)), "a: x",
		},
		{
			"a pod with the host port", clusterOf(newNode("a")).with(running("x", "a", "0", 0, 1, taking(80)),
				running("y", "a", "1", 0, 1)), nil, newPod("p", taking(80), ranking(1)), "a: x",
		},
		{
			"pods of a crowded domain", clusterOf(newNode("a", labelled("zone", "1")), newNode("b", labelled("zone", "2"),
				having("cpu", "0"))).with(running("x", "a", "0", 0, 1, carrying("app", "web")), running("y", "a", "0", 0, 1)),
			nil, newPod("p", asking("cpu", "1"), carrying("app", "web"), ranking(1),
				spreading(over("zone", doNotSchedule, nil))), "a: x",
		},
		{
			"never, if the class says so", clusterOf(newNode("a")).with(running("x", "a", "4", 0, 1)), nil,
			newPod("p", asking("cpu", "2"), ranking(10), func(p *schedulingv1.Pod) {
				p.Spec.PreemptionPolicy = proto.String(preemptNever)
			}), "none",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, b := range tt.budgets {
				tt.cluster.AddBudget(b)
			}
			got, _ := Preempt(tt.cluster, Policy(nil), tt.pod)
			if diff := cmp.Diff(tt.want, outline(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreemptionHelpsAndIsMinimal checks that the pod fits without the victims, and not if one of them stays; that all
// of them are less important; and that the decision changes nothing.
func TestPreemptionHelpsAndIsMinimal(t *testing.T) {
	helped := 0
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		for _, p := range slices.Concat(s.bound, s.pods) {
			ranking(rapid.Int32Range(0, 2).Draw(t, "priority"))(p)
		}
		c, profile := s.cluster(), Policy(s.policy)
		for _, app := range []string{"web", "db"} {
			c.AddBudget(budget(app, app, rapid.Int32Range(0, 1).Draw(t, "allowed")))
		}
		for _, p := range s.pods {
			var turn uint64
			before := Explain(c, profile, p, 0)
			got, why := Preempt(c, profile, p)
			after := Explain(c, profile, p, 0)
			if !proto.Equal(before, after) {
				t.Fatalf("the decision changes the cluster:\n%s", cmp.Diff(before.String(), after.String()))
			}
			if before.GetBest() != "" || got == nil {
				if d := placeAll(c, profile, []*schedulingv1.Pod{p}, &turn)[0]; d.Node != before.GetBest() {
					t.Fatalf("%s goes to %q, explained %q", p.GetMetadata().GetName(), d.Node, before.GetBest())
				}
				continue
			}
			helped++
			fits := func(staying int) bool {
				victims := map[string]int{}
				for i, v := range got.Victims {
					victims[v.Key.Name] = i + 1
					if v.Priority >= p.GetSpec().GetPriority() {
						t.Fatalf("%s is as important", v.Key)
					}
				}
				c2 := s.cluster()
				for key := range c.pods { // those that were placed before
					if b := c.pods[key]; c2.pods[key] == nil {
						i := slices.IndexFunc(s.pods, func(o *schedulingv1.Pod) bool { return o.GetMetadata().GetName() == key.name })
						c2.bind(s.pods[i], b.nodeName)
					}
				}
				for name, i := range victims {
					if i-1 != staying {
						c2.RemovePod("default", name)
					}
				}
				for _, v := range Explain(c2, profile, p, 0).GetNodes() {
					if v.GetNode() == got.Node {
						return v.GetFits()
					}
				}
				t.Fatalf("there is no node %s", got.Node)
				return false
			}
			if !fits(-1) {
				t.Fatalf("%s does not fit on %s: %s", p.GetMetadata().GetName(), outline(got), why)
			}
			for i := range got.Victims {
				if fits(i) {
					t.Fatalf("%s fits on %s without the eviction of victim %d", p.GetMetadata().GetName(), outline(got), i)
				}
			}
		}
	})
	if helped == 0 {
		t.Error("no pod preempted others")
	}
}

// TestTheRoomOfVictimsIsReserved follows a preemption through the queue, to the binding after the victim has left.
func TestTheRoomOfVictimsIsReserved(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	victim := running("victim", "a", "4", 0, 1)
	q.AddPod(victim)
	p := waiting("1", asking("cpu", "2"), ranking(10))
	q.AddPod(p)
	first := q.Next(start)
	if len(first.Do) != 2 || first.Do[0].Verb != StorePending || first.Do[1].Verb != EvictVictims ||
		first.Do[0].Nominated() != "a" || outline(first.Do[1].Preempts) != "a: victim" {
		t.Fatalf("Next = %+v", first.Do)
	}
	if !strings.Contains(first.Do[0].Message, "victim (priority 0)") {
		t.Errorf("the message does not say whom: %s", first.Do[0].Message)
	}
	stored := proto.CloneOf(p)
	stored.Status = &schedulingv1.PodStatus{NominatedNodeName: "a", Conditions: []*schedulingv1.PodCondition{
		{Type: PodScheduled, Status: "False", Message: proto.String(first.Do[0].Message)},
	}}
	q.AddPod(stored)
	q.AddPod(waiting("2", asking("cpu", "2"), called("small")))
	gone := proto.CloneOf(victim)
	gone.Metadata.DeletionTimestamp = timestamppb.New(start)
	q.AddPod(gone)
	for range 3 { // the victim terminates
		for _, a := range q.Next(start.Add(longestPause)).Do {
			if a.Verb == BindPod || a.Verb == EvictVictims {
				t.Fatalf("while the victim terminates: %+v", a)
			}
		}
	}
	q.AddPod(waiting("3", asking("cpu", "3"), called("other"))) // less important, for the same room
	q.RemovePod(object.KeyOf(victim))
	bindings := ""
	for range 3 {
		for _, a := range q.Next(start.Add(3 * longestPause)).Do {
			if a.Verb == BindPod {
				bindings += fmt.Sprintf("%s to %s; ", a.Pod.GetMetadata().GetName(), a.Node)
			}
		}
	}
	if want := "p to a; small to a; "; bindings != want {
		t.Errorf("bound %q, want %q", bindings, want)
	}
}

// BenchmarkPreemptAgainstBudgets compares 1,000 nodes whose pods 500 exhausted budgets select, which takes the longest:
// no node is good enough to end the search.
func BenchmarkPreemptAgainstBudgets(b *testing.B) {
	c := NewCluster()
	for i := range 1000 {
		c.AddNode(newNode(fmt.Sprintf("n%03d", i)))
	}
	for i := range 500 {
		c.AddBudget(budget(fmt.Sprint("b", i), "x", 0))
	}
	for i := range 2000 {
		c.AddPod(running(fmt.Sprint("p", i), fmt.Sprintf("n%03d", i%1000), "1500m", 0, 0, func(p *schedulingv1.Pod) {
			p.Metadata.Labels = map[string]string{"app": "x"}
		}))
	}
	for b.Loop() {
		if p, _ := Preempt(c, Policies(nil).Of(nil), newPod("new", asking("cpu", "3"), ranking(100))); p == nil {
			b.Fatal("no preemption")
		}
	}
}
