package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"

	volumes "github.com/windlass-dev/windlass/services/scheduler/volume/plan"
)

// TestALiveExplanationIsThatOfAFreshComputation explains pods among those that a queue has placed, and in a cluster
// that is made from the same objects.
func TestALiveExplanationIsThatOfAFreshComputation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		profile, supposed := Policy(s.policy), Policy(&schedulingv1.Policy{AlwaysCheckAllPredicates: proto.Bool(true)})
		q := NewQueue(s.cluster(), Profiles{DefaultScheduler: profile})
		q.turn = rapid.Uint64Range(0, 7).Draw(t, "turn")
		all, turn := s, uint64(0)
		all.bound = slices.Clone(s.bound)
		n := rapid.IntRange(0, len(s.pods)).Draw(t, "placed")
		for _, d := range placeAll(q.Cluster, profile, s.pods[:n], &turn) {
			if d.Node != "" {
				bound := proto.CloneOf(d.Pod)
				bound.Spec.NodeName = d.Node
				all.bound = append(all.bound, bound)
			}
		}
		for _, pod := range slices.Concat(s.pods[n:], all.bound) {
			for _, other := range []*Profile{nil, supposed} {
				p := profile
				if other != nil {
					p = other
				}
				got := q.Explain(other, pod, nil).Response()
				got.Placement = nil
				if diff := cmp.Diff(Explain(all.cluster(), p, pod, q.turn), got, protocmp.Transform()); diff != "" {
					t.Fatalf("%s (-fresh +live):\n%s", pod.GetMetadata().GetName(), diff)
				}
			}
		}
	})
}

// TestWhatAVerdictSaysWouldHaveNodesFit makes each of the changes.
func TestWhatAVerdictSaysWouldHaveNodesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scenes().Draw(t, "scene")
		pod := s.pods[0]
		for _, c := range Explain(s.cluster(), Policy(s.policy), pod, 0).GetChanges() {
			changed, then := s, proto.CloneOf(pod)
			switch text := c.GetChange(); {
			case strings.HasPrefix(text, "tolerate the taint "):
				key, effect, _ := strings.Cut(strings.TrimPrefix(text, "tolerate the taint "), ":")
				key, _, _ = strings.Cut(key, "=")
				bearing(key, effect)(then)
			case strings.HasPrefix(text, "free "):
				then.Spec.Containers[0].Resources.Requests = nil
				changed.nodes = nil
				for _, n := range s.nodes {
					n = proto.CloneOf(n)
					having("cpu", "100")(n)
					having("pods", "1000")(n)
					changed.nodes = append(changed.nodes, n)
				}
			case strings.Contains(text, "uncordoned"):
				changed.nodes = nil
				for _, n := range s.nodes {
					n = proto.CloneOf(n)
					n.Spec.Unschedulable = nil
					changed.nodes = append(changed.nodes, n)
				}
			default:
				continue
			}
			fit := 0
			for _, v := range Explain(changed.cluster(), Policy(s.policy), then, 0).GetNodes() {
				if v.GetFits() {
					fit++
				} else if slices.Contains(c.GetExamples(), v.GetNode()) && len(pod.GetSpec().GetTopologySpreadConstraints()) == 0 {
					t.Fatalf("after %q, %s does not fit: %v", c.GetChange(), v.GetNode(), v.GetFailures())
				}
			}
			if len(pod.GetSpec().GetTopologySpreadConstraints()) == 0 && fit < int(c.GetNodeCount()) {
				t.Fatalf("after %q %d nodes fit, not %d", c.GetChange(), fit, c.GetNodeCount())
			}
		}
	})
}

func TestAVerdictSaysWhatWouldHaveToChange(t *testing.T) {
	infra := tainted("dedicated", "infra", "NoSchedule")
	for name, tt := range map[string]struct {
		cluster *Cluster
		pod     *schedulingv1.Pod
		want    []string
	}{
		"the node that lacks the least": {
			clusterOf(newNode("a", having("cpu", "1")), newNode("b"), newNode("c", having("cpu", "1"))), newPod("p",
				asking("cpu", "4500m"), asking("memory", "9Gi")),
			[]string{"free 500m cpu and 1Gi memory on b, which lacks the least; 3 of a, b, c"},
		},
		"taints, each by itself": {
			clusterOf(newNode("a", infra), newNode("b", infra), newNode("c", infra, tainted("x", "", "NoExecute")),
				newNode("d", tainted("x", "", "NoExecute"))), newPod("p"),
			[]string{"tolerate the taint dedicated=infra:NoSchedule; 2 of a, b", "tolerate the taint x:NoExecute; 1 of d"},
		},
		"a node with two obstacles has no single change": {
			clusterOf(newNode("a", infra, having("cpu", "1"))), newPod("p", asking("cpu", "2")), nil,
		},
		"labels and cordons": {
			clusterOf(newNode("a", cordoned, labelled("disk", "ssd")), newNode("b")), newPod("p", selecting("disk", "ssd")),
			[]string{"the node gets the label disk=ssd; 1 of b", "the node is uncordoned; 1 of a"},
		},
	} {
		var got []string
		for _, c := range Explain(tt.cluster, Policy(nil), tt.pod, 0).GetChanges() {
			got = append(got, fmt.Sprintf("%s; %d of %s", c.GetChange(), c.GetNodeCount(), strings.Join(c.GetExamples(), ", ")))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAVerdictIsBounded has each of many nodes fail for a reason of its own.
func TestAVerdictIsBounded(t *testing.T) {
	c := NewCluster()
	for i := range 500 {
		c.AddNode(newNode(fmt.Sprint("node-", i), tainted(fmt.Sprint("key-", i), "v", "NoSchedule")))
	}
	d := place(c, newPod("p"))
	if o := d.Verdict.Obstacles; len(o) != mostReasons+1 || o[mostReasons].GetNodeCount() != 500-mostReasons ||
		len(d.Verdict.Changes) != mostChanges || !strings.Contains(d.Message, "and 484 further reasons") {
		t.Errorf("%d obstacles, %d changes, %s", len(o), len(d.Verdict.Changes), d.Message)
	}
	for _, o := range place(clusterOf(newNode("a", cordoned), newNode("b", cordoned), newNode("c", cordoned),
		newNode("d", cordoned)), newPod("p")).Verdict.Obstacles {
		if len(o.GetExamples()) != mostExamples || o.GetNodeCount() != 4 {
			t.Errorf("%v", o)
		}
	}
}

// TestPodsAlikeShareAVerdict bounds what 10,000 pods that wait keep.
func TestPodsAlikeShareAVerdict(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a", cordoned)), Policies(nil))
	for i := range 100 {
		q.AddPod(newPod(fmt.Sprint("p-", i)))
	}
	q.Next(start)
	var one *schedulingv1.ExplainPodResponse_Obstacle
	for _, s := range q.stuck {
		if one == nil {
			one = s.verdict.Obstacles[0]
		}
		if s.verdict.Obstacles[0] != one {
			t.Fatal("a pod has a verdict of its own")
		}
	}
	if len(q.stuck) != 100 {
		t.Errorf("%d pods wait", len(q.stuck))
	}
}

func TestItIsKnownSinceWhenAPodWaitsAndForWhat(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a", having("cpu", "1"))), Policies(nil))
	pod := newPod("p", asking("cpu", "2"))
	q.AddPod(pod)
	q.Next(start)
	later := start.Add(time.Hour)
	q.AddNode(newNode("a", having("cpu", "1500m")))
	q.Next(later)
	out := q.Explain(nil, pod, nil).Response()
	p := out.GetPending()
	if !p.GetSinceTime().AsTime().Equal(start) || !p.GetLastTryTime().AsTime().Equal(later) || p.GetNextTryTime() != nil ||
		!strings.Contains(p.GetWaitsFor(), "a pod leaves a node") || strings.Contains(p.GetWaitsFor(), "taints") ||
		len(p.GetChanges()) != 1 || p.GetMessage() != out.GetMessage() {
		t.Errorf("%v", out)
	}
	q.AddNode(newNode("a", having("cpu", "3")))
	out = q.Explain(nil, pod, nil).Response()
	if out.GetBest() != "a" || len(out.GetPending().GetObstacles()) != 1 {
		t.Errorf("a node fits since the last try: %v", out)
	}
	changed := proto.CloneOf(pod)
	changed.Metadata.Labels = map[string]string{"new": "yes"}
	if p := q.Explain(nil, changed, nil).Response().GetPending(); p != nil {
		t.Errorf("what was tried is another form of the pod: %v", p)
	}
}

// bindAll places the pods of a queue and has all bindings stored.
func bindAll(q *Queue, now time.Time) {
	var outcomes []Outcome
	for _, a := range q.Next(now).Do {
		if a.Verb == BindPod {
			bound := proto.CloneOf(a.Pod)
			bound.Spec.NodeName = a.Node
			outcomes = append(outcomes, Outcome{Action: a, Now: bound})
		}
	}
	q.Done(now, outcomes)
}

// TestAPlacementIsExplainedAsItWas has the cluster change after a pod was placed.
func TestAPlacementIsExplainedAsItWas(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a", having("cpu", "8")), newNode("b"), newNode("c", having("cpu", "1"))),
		Policies(nil))
	pod := newPod("p", asking("cpu", "2"), asking("memory", "1Gi"), func(p *schedulingv1.Pod) { p.Metadata.Uid = "u" })
	q.AddPod(pod)
	before := q.Explain(nil, pod, nil).Response()
	bindAll(q, start)
	bound := proto.CloneOf(pod)
	bound.Spec.NodeName = "a"
	q.AddPod(newPod("large", asking("cpu", "6"), on("a")))
	q.RemoveNode("b")
	got := q.Explain(nil, bound, nil).Response().GetPlacement()
	want := &schedulingv1.ExplainPodResponse_Placement{
		PlaceTime: got.GetPlaceTime(), FittingCount: 2, BestCount: 1, Chosen: before.GetNodes()[0],
		Next: before.GetNodes()[1],
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || !got.GetPlaceTime().AsTime().Equal(start) ||
		got.GetChosen().GetNode() != "a" || got.GetNext().GetNode() != "b" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, change := range map[string]func(*schedulingv1.Pod){
		"another pod of the name": func(p *schedulingv1.Pod) { p.Metadata.Uid = "v" },
		"another node":            on("b"),
	} {
		other := proto.CloneOf(bound)
		if change(other); q.Explain(nil, other, nil).Response().GetPlacement().GetUnknown() == "" {
			t.Errorf("%s has the scores of the one before", name)
		}
	}
	if q.RemovePod(object.KeyOf(pod)); len(q.choices.of) != 0 {
		t.Error("the placement of a pod that is gone is kept")
	}
}

func TestTheLastPlacementsAreRemembered(t *testing.T) {
	c := newChoices(2)
	known := func() (out []string) {
		for k := range c.of {
			out = append(out, k.Name)
		}
		slices.Sort(out)
		return out
	}
	add := func(name string) { c.add(start, newPod(name), &choice{}) }
	for _, name := range []string{"p", "q", "r"} {
		add(name)
	}
	if got := known(); !slices.Equal(got, []string{"q", "r"}) {
		t.Errorf("%q are known", got)
	}
	add("r") // another pod of the name: the place of the one before does not end it
	add("s")
	if got := known(); !slices.Equal(got, []string{"r", "s"}) || len(c.order) != 2 {
		t.Errorf("%q are known", got)
	}
	c.remove(object.Key{Namespace: "default", Name: "r"})
	add("t")
	add("u")
	if got := known(); !slices.Equal(got, []string{"t", "u"}) {
		t.Errorf("%q are known", got)
	}
}

// TestABoundPodIsBestWhereItIsAmongEquals does not name another node that is no better.
func TestABoundPodIsBestWhereItIsAmongEquals(t *testing.T) {
	for _, node := range []string{"a", "b", "c"} {
		pod := newPod("p", asking("cpu", "1"), on(node))
		got := Explain(clusterOf(newNode("a"), newNode("b"), newNode("c")).with(pod), Policy(nil), pod, 1)
		if got.GetBest() != node || got.GetNodes()[0].GetNode() != node {
			t.Errorf("of a pod on %s, %s is best", node, got.GetBest())
		}
	}
}

// answered has the extender "one" leave some nodes, and rank one of them with 10.
func answered(t *testing.T, in *Inquiry, leaves []string, best string) *Inquiry {
	t.Helper()
	for questions := in.Ask(); len(questions) > 0; questions = in.Ask() {
		a := Answer{Question: questions[0], Nodes: leaves}
		if a.Verb == RankNodes {
			a.Scores = []NodeScore{{best, 10}}
		}
		if fault := in.Take(a); fault != "" {
			t.Fatal(fault)
		}
	}
	return in
}

// TestALiveExplanationHasWhatExtendersSaid changes the cluster while the extender is asked.
func TestALiveExplanationHasWhatExtendersSaid(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a"), newNode("b"), newNode("c"), newNode("d", cordoned), newNode("e")),
		only(extenders(t, extender("one", map[string]any{"prioritizeVerb": "rank", "weight": 1000}))))
	pod := newWaiting("p")
	in := q.Inquire(nil, pod)
	if in == nil {
		t.Fatal("no extender is responsible for the pod")
	}
	if out := q.Explain(nil, pod, nil).Response(); out.GetExtenders()[0].GetAsked() ||
		!strings.Contains(out.GetMessage(), "not asked") {
		t.Errorf("without asking: %v", out)
	}
	answered(t, in, []string{"b", "c", "e"}, "c")
	q.AddNode(newNode("d"))
	q.RemoveNode("e")
	out := q.Explain(nil, pod, in).Response()
	if out.GetBest() != "c" || out.GetNodes()[0].GetTotal() != out.GetNodes()[1].GetTotal()+10_000 {
		t.Errorf("%v", out)
	}
	reasons := map[string]string{}
	for _, v := range out.GetNodes() {
		for _, f := range v.GetFailures() {
			reasons[v.GetNode()] += f.GetReason()
		}
	}
	if diff := cmp.Diff(map[string]string{
		"a": "node(s) were rejected by the extender https://one", "d": "node(s) fit only since the extenders were asked",
	}, reasons); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	q.AddNode(newNode("c", cordoned))
	q.AddNode(newNode("b", cordoned))
	out = q.Explain(nil, pod, in).Response()
	if want := []string{
		"node(s) were unschedulable", "node(s) fit only since the extenders were asked",
		"node(s) were rejected by the extender https://one",
	}; out.GetBest() != "" || !slices.Equal(reasonsOf(out.GetObstacles()), want) {
		t.Errorf("%q", reasonsOf(out.GetObstacles()))
	}
	q.SetProfiles(only(extenders(t, extender("other", nil), extender("one", nil))))
	if out = q.Explain(nil, pod, in).Response(); len(out.GetExtenders()) != 2 || out.GetExtenders()[0].GetAsked() {
		t.Errorf("after a change of the policy: %v", out.GetExtenders())
	}
	q.SetProfiles(Policies(nil))
	if q.Inquire(nil, pod) != nil {
		t.Error("a policy without extenders has some asked")
	}
}

func reasonsOf(obstacles []*schedulingv1.ExplainPodResponse_Obstacle) (out []string) {
	for _, o := range obstacles {
		out = append(out, o.GetReason())
	}
	return out
}

// TestAPlacementHasTheScoresOfExtenders has an extender decide, and change its mind later.
func TestAPlacementHasTheScoresOfExtenders(t *testing.T) {
	c := converse(t, extenders(t, extender("one", map[string]any{"prioritizeVerb": "rank", "weight": 1000})),
		newNode("a"), newNode("b"), newNode("c"))
	c.answer = func(a *Answer) {
		if a.Verb == FilterNodes {
			a.Nodes = []string{"a", "b"}
		} else {
			a.Scores = []NodeScore{{"b", 7}, {"a", 2}}
		}
	}
	pod := newWaiting("p")
	c.AddPod(pod)
	if nodes, _ := c.run(); nodes["p"] != "b" {
		t.Fatalf("%v", nodes)
	}
	pod = proto.CloneOf(pod)
	pod.Spec.NodeName = "b"
	in := answered(t, c.Inquire(nil, pod), []string{"a", "c"}, "a")
	out := c.Explain(nil, pod, in).Response()
	p := out.GetPlacement()
	if p.GetFittingCount() != 2 || p.GetBestCount() != 1 || p.GetChosen().GetNode() != "b" ||
		p.GetNext().GetNode() != "a" || p.GetChosen().GetTotal() != p.GetNext().GetTotal()+5000 {
		t.Errorf("%v", p)
	}
	last := p.GetChosen().GetScores()[len(p.GetChosen().GetScores())-1]
	if last.GetPriority() != "https://one" || last.GetScore() != 7 || last.GetWeighted() != 7000 {
		t.Errorf("%v", last)
	}
	if out.GetBest() != "a" {
		t.Errorf("now it would go to %q", out.GetBest())
	}
}

// TestAnExplanationLeavesTheStorageAsItWas explains pods whose claims the queue has given volumes, and one whose claim
// gets one with its node.
func TestAnExplanationLeavesTheStorageAsItWas(t *testing.T) {
	slow := classOf("slow", volumes.NoProvisioner, volumes.WaitForFirstConsumer)
	objects := func() []object.Object {
		return []object.Object{
			slow, claimOf("c", "slow", "1Gi"), claimOf("d", "slow", "1Gi"), volumeOf("v", "slow", "1Gi", host, "a"),
			volumeOf("w", "slow", "1Gi", host, "b"),
		}
	}
	q := NewQueue(clusterOf(newNode("a"), newNode("b")).stocked(objects()...), Policies(nil))
	placed, waits := newPod("p", claiming("c")), newPod("q", claiming("d"))
	for _, pod := range []*schedulingv1.Pod{placed, waits} {
		pod.Metadata.Uid = pod.GetMetadata().GetName()
	}
	q.AddPod(placed)
	p := q.Next(start)
	if len(p.Do) != 2 || p.Do[0].Verb != BindClaims {
		t.Fatalf("%v", p)
	}
	node := p.Do[1].Node
	bound := proto.CloneOf(placed)
	bound.Spec.NodeName = node
	q.Done(start, []Outcome{{Action: p.Do[1], Now: bound}})
	version, users := q.stock.version, len(q.stock.users)
	for range 2 {
		for _, supposed := range []*Profile{nil, Policy(&schedulingv1.Policy{NoPriorities: true})} {
			if out := q.Explain(supposed, bound, nil).Response(); out.GetBest() != node || out.GetNodes()[1].GetFailures()[0].
				GetPart() != checkVolumeBinding {
				t.Errorf("the bound pod: %v", out)
			}
			if out := q.Explain(supposed, waits, nil).Response(); out.GetBest() == "" || out.GetBest() == node {
				t.Errorf("the other pod: %v", out)
			}
			missing := newPod("m", claiming("x"))
			if out := q.Explain(supposed, missing, nil).Response(); !strings.Contains(out.GetRefused(), "not found") ||
				out.GetMessage() != out.GetRefused() || len(out.GetChanges()) > 0 {
				t.Errorf("a pod without its claim: %v", out)
			}
		}
	}
	if q.stock.version != version || len(q.stock.users) != users {
		t.Errorf("version %d and %d claims in use, not %d and %d", q.stock.version, len(q.stock.users), version, users)
	}
	q.AddPod(waits)
	if p := q.Next(start); len(p.Do) != 2 || p.Do[1].Node == node {
		t.Errorf("the other pod after that: %v", p)
	}
}
