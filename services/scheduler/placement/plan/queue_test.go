package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// waiting returns a pod of a uid that needs a node.
func waiting(uid string, change ...func(*schedulingv1.Pod)) *schedulingv1.Pod {
	return newPod("p", append([]func(*schedulingv1.Pod){carrying("app", "a"), func(p *schedulingv1.Pod) {
		p.Metadata.Uid, p.Metadata.Generation, p.Spec.SchedulerName = uid, 1, DefaultScheduler
		p.Status = &schedulingv1.PodStatus{Phase: proto.String(placement.Pending)}
	}}, change...)...)
}

// stuckOn returns a queue without nodes that has found none for a pod.
func stuckOn(t *testing.T, pod *schedulingv1.Pod) *Queue {
	t.Helper()
	q := NewQueue(NewCluster(), only(nil))
	q.AddPod(pod)
	if p := q.Next(start); len(p.Held) != 1 || tries(q) {
		t.Fatalf("Next = %v; the pod is to wait", p)
	}
	return q
}

// tries reports whether a queue decides about pods now.
func tries(q *Queue) bool { return len(q.Next(start.Add(longestPause)).Held) > 0 }

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

// TestAChangeWakesThePodsThatItMayHelpAlone has a pod that one rule keeps from the only node. What is tried again still
// finds no node, since the changes here are not those that it waits for, but of their kind.
func TestAChangeWakesThePodsThatItMayHelpAlone(t *testing.T) {
	notReady := func(n *nodev1.Node) {
		n.Status.Conditions = []*nodev1.NodeCondition{{Type: "Ready", Status: "False"}}
	}
	short := func(n *nodev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, &nodev1.NodeCondition{Type: "DiskPressure", Status: "True"})
	}
	wanting := func(f ...func(*schedulingv1.Pod)) *schedulingv1.Pod { return waiting("1", f...) }
	region := &schedulingv1.Policy{Predicates: []*schedulingv1.PredicatePolicy{{
		Name: "Region", Argument: &schedulingv1.PredicateArgument{
			LabelsPresence: &schedulingv1.LabelsPresence{Labels: []string{"region"}, Presence: proto.Bool(true)},
		},
	}}}
	service := load(t, "004-42", &schedulingv1.Policy{}) // service affinity by the label city
	elsewhere := func(p *schedulingv1.Pod) {             // or it would be the first of its group
		p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].Namespaces = []string{"other"}
	}
	away := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "away", "gone" }
	for what, tc := range map[string]struct {
		node   *nodev1.Node
		pod    *schedulingv1.Pod
		beside *schedulingv1.Pod // on the node; nil for none
		policy *schedulingv1.Policy
		wakes  []string
	}{
		"there is no node":          {nil, wanting(), nil, nil, nil},
		"the node is not ready":     {newNode("a", notReady), wanting(), nil, nil, []string{"state"}},
		"the node is short of disk": {newNode("a", short), wanting(), nil, nil, []string{"state"}},
		"its labels are others":     {newNode("a"), wanting(selecting("zone", "us")), nil, nil, []string{"labels"}},
		"it lacks a label":          {newNode("a"), wanting(), nil, region, []string{"labels"}},
		"it has a taint": {
			newNode("a", tainted("k", "v", "NoSchedule")), wanting(), nil, nil,
			[]string{"taints"},
		},
		"it is too small": {newNode("a"), wanting(asking("cpu", "99")), nil, nil, []string{"size", "left"}},
		"a pod on it must be away": {
			newNode("a"), wanting(keepingApart), newPod("b", on("a")), nil,
			[]string{"labels", "came", "left"},
		},
		"a pod on it must be there": {
			newNode("a"), wanting(stayingNear, elsewhere), nil, nil,
			[]string{"labels", "came", "left"},
		},
		"it is in no domain of the spread": {
			newNode("a"), wanting(spreading(over("zone", doNotSchedule, nil))), nil, nil,
			[]string{"labels", "taints", "came", "left"},
		},
		"its service runs elsewhere": {
			newNode("a"), wanting(), newPod("b", carrying("app", "a"), on("c")), service,
			[]string{"labels", "came", "left", "selection"},
		},
	} {
		events := map[string]func(q *Queue){
			"labels": func(q *Queue) { q.AddNode(with(tc.node, labelled("other", "1"))) },
			"taints": func(q *Queue) { q.AddNode(with(tc.node, tainted("other", "", "NoSchedule"))) },
			"state": func(q *Queue) {
				q.AddNode(with(tc.node, func(n *nodev1.Node) {
					n.Status.Conditions = append(n.Status.Conditions, &nodev1.NodeCondition{Type: "PIDPressure", Status: "True"})
				}))
			},
			"size": func(q *Queue) { q.AddNode(with(tc.node, having("memory", "1Gi"))) },
			"annotations": func(q *Queue) {
				q.AddNode(with(tc.node, func(n *nodev1.Node) { n.Metadata.Annotations = map[string]string{"a": "b"} }))
			},
			"came":      func(q *Queue) { q.AddPod(newPod("came", carrying("app", "z"), on("elsewhere"))) },
			"left":      func(q *Queue) { q.RemovePod(object.Key{Namespace: "default", Name: "away"}) },
			"selection": func(q *Queue) { q.AddService(serviceOf("other")) },
		}
		if tc.node == nil {
			for _, name := range []string{"labels", "taints", "state", "size", "annotations"} {
				delete(events, name)
			}
		}
		for event, happens := range events {
			t.Run(what+", "+event, func(t *testing.T) {
				c := clusterOf()
				c.withService(map[string]string{"app": "a"})
				c.AddNode(newNode("c", labelled("city", "x"), notReady))
				if tc.node == nil {
					c.RemoveNode("c")
				} else {
					c.AddNode(tc.node)
				}
				q := NewQueue(c, only(tc.policy))
				q.AddPod(newPod("away", away))
				if tc.beside != nil {
					q.AddPod(tc.beside)
				}
				q.AddPod(tc.pod)
				if p := q.Next(start); len(p.Held) != 1 || tries(q) {
					t.Fatalf("Next = %+v; the pod is to wait", p)
				}
				happens(q)
				want := slices.Contains(tc.wakes, event) || tc.node != nil && event == "state" // node c is not ready
				if tries(q) != want {
					t.Errorf("it is tried again: %v, want %v", !want, want)
				}
			})
		}
		t.Run(what+", what may help any pod", func(t *testing.T) {
			for event, happens := range map[string]func(q *Queue){
				"a node comes":   func(q *Queue) { q.AddNode(newNode("new", notReady)) },
				"a node leaves":  func(q *Queue) { q.RemoveNode("c") },
				"another policy": func(q *Queue) { q.SetProfiles(only(tc.policy)) },
			} {
				c := clusterOf()
				if tc.node != nil {
					c.AddNode(with(tc.node, notReady))
				}
				q := NewQueue(c, only(tc.policy))
				q.AddPod(tc.pod)
				if q.Next(start); tries(q) {
					t.Fatal("it does not wait")
				}
				if happens(q); !tries(q) {
					t.Errorf("%s: it is not tried again", event)
				}
			}
		})
	}
}

// with returns a node with changes.
func with(n *nodev1.Node, change ...func(*nodev1.Node)) *nodev1.Node {
	out := proto.CloneOf(n)
	for _, f := range change {
		f(out)
	}
	return out
}

func serviceOf(name string) *schedulingv1.Service {
	return &schedulingv1.Service{
		Metadata: &metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:     &schedulingv1.ServiceSpec{Selector: map[string]string{"app": name}},
	}
}

func TestWhatAPodLeavesIsForThoseThatItKeptOut(t *testing.T) {
	bound := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.NodeName = "other", "node" }
	status := func(p *schedulingv1.Pod) {
		p.Status.Conditions = []*schedulingv1.PodCondition{{Type: "Ready", Status: "True"}}
	}
	ended := func(p *schedulingv1.Pod) { p.Status.Phase = proto.String(placement.Failed) }
	large := asking("cpu", "3")
	huge := asking("cpu", "99")
	other := func(f ...func(*schedulingv1.Pod)) *schedulingv1.Pod { return waiting("2", append(f, bound, large)...) }
	another := func(p *schedulingv1.Pod) { p.Metadata.Name, p.Spec.SchedulerName = "other", "another" }
	for what, tc := range map[string]struct {
		stuck       *schedulingv1.Pod
		before, now *schedulingv1.Pod // of another pod; nil if it is not there
		want        bool
	}{
		"a pod that ran is gone":             {waiting("1", huge), other(), nil, true},
		"a pod that ran has ended":           {waiting("1", huge), other(), other(ended), true},
		"it is gone after it had ended":      {waiting("1", huge), other(ended), nil, false},
		"a pod that waited is gone":          {waiting("1", huge), waiting("2", another), nil, false},
		"a pod that runs becomes ready":      {waiting("1", keepingApart), other(), other(status), false},
		"no matter to one without terms":     {waiting("1", huge), other(), other(carrying("app", "b")), false},
		"and it may leave more room":         {waiting("1", huge), other(), waiting("3", bound), true},
		"another of its name is on the node": {waiting("1", keepingApart), other(), waiting("3", bound), true},
	} {
		t.Run(what, func(t *testing.T) {
			q := NewQueue(clusterOf(newNode("node")), only(nil))
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

// TestPausesOfAPodGrow has a change that may help a pod come all the time.
func TestPausesOfAPodGrow(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	q.AddPod(waiting("1", asking("cpu", "99")))
	now, tried := start, []time.Time{}
	for i := 0; now.Before(start.Add(2 * time.Minute)); i++ {
		if i > 1000 {
			t.Fatal("it is tried without a pause")
		}
		q.AddNode(newNode("a", having("memory", fmt.Sprint(i+1))))
		p := q.Next(now)
		if len(p.Held) > 0 {
			tried = append(tried, now)
			continue
		}
		if !p.Wake.After(now) {
			t.Fatalf("at %v it waits until %v", now, p.Wake)
		}
		now = p.Wake
	}
	expected := time.Duration(0)
	for i := range tried[1:] {
		if pause := tried[i+1].Sub(tried[i]); pause < expected/2 || pause > expected+pauseStep {
			t.Errorf("pause %d is %v, want %v to %v", i+1, pause, expected/2, expected)
		}
		expected = max(shortestPause, min(2*expected, longestPause))
	}
	if len(tried) < 12 {
		t.Errorf("tried %d times in two minutes", len(tried))
	}
	quiet := now.Add(time.Hour)
	for i := range 2 {
		q.AddNode(newNode("a", having("memory", fmt.Sprint(i+3, "Gi"))))
		if held := q.Next(quiet).Held; len(held) != 1 {
			t.Errorf("after an hour without a try it is not tried at once")
		}
	}
}

// TestPodsThatFailedTogetherAreSpread wakes pods that failed in one decision, after some tries.
func TestPodsThatFailedTogetherAreSpread(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	for i := range 200 {
		q.AddPod(waiting("1", asking("cpu", "99"), func(p *schedulingv1.Pod) { p.Metadata.Name = fmt.Sprint(i) }))
	}
	q.Next(start)
	now, rounds, most := start, 0, 0
	for i := range 8 {
		q.AddNode(newNode("a", having("memory", fmt.Sprint(i+1))))
		for rounds, most = 0, 0; ; {
			p := q.Next(now)
			if len(p.Held) > 0 {
				rounds, most = rounds+1, max(most, len(p.Held))
				continue
			}
			if p.Wake.IsZero() {
				break
			}
			now = p.Wake
		}
	}
	if rounds < 10 || most > 50 {
		t.Errorf("200 pods came back in %d rounds of at most %d", rounds, most)
	}
}

// TestNewPodsDoNotWaitBehindStuckOnes wakes many old pods, and a new one comes.
func TestNewPodsDoNotWaitBehindStuckOnes(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a")), only(nil))
	for i := range 3 * mostAtOnce {
		q.AddPod(waiting("1", asking("cpu", "99"), func(p *schedulingv1.Pod) {
			p.Metadata.Name, p.Metadata.CreationTimestamp = fmt.Sprint(i), &timestamppb.Timestamp{Seconds: 1}
		}))
	}
	for len(q.Next(start).Held) > 0 {
	}
	q.AddNode(newNode("a", having("memory", "1Gi")))
	q.AddPod(waiting("2", func(p *schedulingv1.Pod) {
		p.Metadata.Name, p.Metadata.CreationTimestamp = "new", &timestamppb.Timestamp{Seconds: 2}
	}))
	p := q.Next(start.Add(longestPause))
	if len(p.Do) == 0 || p.Do[0].Verb != BindPod || p.Do[0].Pod.GetMetadata().GetName() != "new" {
		t.Errorf("the new pod is not placed: %d actions", len(p.Do))
	}
	if len(p.Held) == 0 || len(p.Held) > retriesBeside {
		t.Errorf("%d pods are tried again beside it, want 1 to %d", len(p.Held), retriesBeside)
	}
	if p = q.Next(start.Add(longestPause)); len(p.Held) != mostAtOnce {
		t.Errorf("without a new pod %d are tried again", len(p.Held))
	}
}

// TestAStuckPodWhoseBindingFailedIsPlacedAgain has its node change a taint, which no other change would bring back.
func TestAStuckPodWhoseBindingFailedIsPlacedAgain(t *testing.T) {
	q := NewQueue(clusterOf(newNode("a", tainted("k", "", "NoSchedule"))), only(nil))
	pod := waiting("1")
	q.AddPod(pod)
	q.Next(start)
	q.AddNode(newNode("a"))
	now := start.Add(longestPause)
	p := q.Next(now)
	if len(p.Do) != 1 || p.Do[0].Verb != BindPod {
		t.Fatalf("the pod is not bound: %+v", p)
	}
	q.Done(now, []Outcome{{Action: p.Do[0], Result: Changed, Now: pod}})
	if p = q.Next(now); len(p.Do) != 1 || p.Do[0].Verb != BindPod {
		t.Errorf("the pod is not bound again: %+v", p)
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
			q := NewQueue(clusterOf(newNode("node")), only(nil))
			q.AddPod(waiting("2", asking("cpu", "99"), func(p *schedulingv1.Pod) { p.Metadata.Name = "other" }))
			q.Next(now)
			for i := range 3 {
				placed := proto.CloneOf(pod)
				placed.Spec.NodeName = "node"
				q.Cluster.AddPod(placed)
				o := Outcome{Action: Action{BindPod, Decision{Pod: pod, Node: "node"}}, Result: tc.result}
				q.Done(now, []Outcome{o})
				now = now.Add(longestPause)
				if held := q.Next(now).Held; len(held) != 1 || held[0].Pod.GetMetadata().GetName() != "other" {
					t.Errorf("after refusal %d these are tried again: %v, want the other pod alone", i+1, held)
				}
			}
		})
	}
}

// TestAPlanIsOfABoundedSize has more pods than are placed at once: the plan asks for the next decision at once.
func TestAPlanIsOfABoundedSize(t *testing.T) {
	q := NewQueue(NewCluster(), only(nil))
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

// only returns the profiles of a cluster with one policy.
func only(policy *schedulingv1.Policy) Profiles { return Profiles{DefaultScheduler: Policy(policy)} }
