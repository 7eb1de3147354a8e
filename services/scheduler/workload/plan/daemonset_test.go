package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

func daemonSet() *schedulingv1.DaemonSet {
	return &schedulingv1.DaemonSet{
		Metadata: &metav1.ObjectMeta{Name: "web", Namespace: "default", Uid: "ds", Generation: 1},
		Spec:     &schedulingv1.DaemonSetSpec{Selector: selector(), Template: template("v1")},
	}
}

// hashOf returns the hash of a set's present template.
func hashOf(s *schedulingv1.DaemonSet) string {
	p := plan.DaemonSet(plan.DaemonSetView{Now: start, Set: s, Nodes: []*nodev1.Node{node("a")}})
	return p.Create[0].GetMetadata().GetLabels()[plan.RevisionHashLabel]
}

func daemons(s *schedulingv1.DaemonSet, nodes []*nodev1.Node, pods ...*schedulingv1.Pod) plan.DaemonSetPlan {
	return plan.DaemonSet(plan.DaemonSetView{Now: start, Set: s, Nodes: nodes, Pods: pods})
}

func targets(pods []*schedulingv1.Pod) (out []string) {
	for _, p := range pods {
		out = append(out, plan.TargetNode(p))
	}
	return out
}

func TestDaemonSet(t *testing.T) {
	s := daemonSet()
	now := labelled(plan.RevisionHashLabel, hashOf(s))
	picky := daemonSet()
	picky.Spec.Template.Spec.NodeSelector = map[string]string{"role": "infra"}
	manual := daemonSet()
	manual.Spec.UpdateStrategy = &schedulingv1.DaemonSetUpdateStrategy{Type: "OnDelete"}
	half := daemonSet()
	half.Spec.UpdateStrategy = &schedulingv1.DaemonSetUpdateStrategy{RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
		MaxUnavailable: amount("50%"),
	}}
	ab := []*nodev1.Node{node("a"), node("b")}
	for _, c := range []struct {
		name   string
		plan   plan.DaemonSetPlan
		create []string // nodes
		remove []string
	}{
		{name: "every node gets a pod", plan: daemons(s, ab), create: []string{"a", "b"}},
		{
			name: "a node that has its pod gets no other", plan: daemons(s, ab, pod("x", s, on("a"), now)),
			create: []string{"b"},
		},
		{
			name: "a node that does not match gets none and loses its own",
			plan: daemons(picky, ab, pod("x", picky, on("a"), now)), remove: []string{"x"},
		},
		{name: "a tainted node gets none", plan: daemons(s, []*nodev1.Node{node("a", taint("gpu", "NoSchedule"))})},
		{
			name: "a taint that only keeps new pods away lets the old one stay",
			plan: daemons(s, []*nodev1.Node{node("a", taint("gpu", "NoSchedule"))}, pod("x", s, on("a"), now)),
		},
		{
			name: "a taint that drives pods off takes it", remove: []string{"x"},
			plan: daemons(s, []*nodev1.Node{node("a", taint("gpu", "NoExecute"))}, pod("x", s, on("a"), now)),
		},
		{
			name: "drained, lost and full nodes get their pods", create: []string{"a", "b", "c"},
			plan: daemons(s, []*nodev1.Node{
				node("a", taint(placement.UnschedulableTaint, "NoSchedule")),
				node("b", taint(placement.UnreachableTaint, "NoExecute")),
				node("c", taint(placement.DiskPressureTaint, "NoSchedule")),
			}),
		},
		{name: "a pod that failed is removed first", plan: daemons(s, []*nodev1.Node{node("a")},
			pod("x", s, on("a"), now, phase("Failed"))), remove: []string{"x"}},
		{name: "a pod that failed at once is left for a while", plan: daemons(s, []*nodev1.Node{node("a")},
			pod("x", s, on("a"), now, phase("Failed"), born(start)))},
		{name: "a pod on its way out is waited for", plan: daemons(s, []*nodev1.Node{node("a")},
			pod("x", s, on("a"), now, leaving))},
		{
			name: "of two pods the younger goes", remove: []string{"y"},
			plan: daemons(s, []*nodev1.Node{node("a")}, pod("x", s, on("a"), now), pod("y", s, on("a"), now, born(start))),
		},
		{
			name: "old pods are renewed one at a time", plan: daemons(s, ab, pod("x", s, on("a")), pod("y", s, on("b"))),
			remove: []string{"x"},
		},
		{
			name: "no other is renewed while one is not available",
			plan: daemons(s, ab, pod("x", s, on("a"), now, unready), pod("y", s, on("b"))),
		},
		{
			name: "an old pod that is not available is renewed anyway",
			plan: daemons(s, ab, pod("x", s, on("a"), now, unready), pod("y", s, on("b"), unready)), remove: []string{"y"},
		},
		{
			name: "a percentage is rounded up", remove: []string{"x", "y"},
			plan: daemons(half, append(ab, node("c")), pod("x", half, on("a")), pod("y", half, on("b")),
				pod("z", half, on("c"))),
		},
		{name: "OnDelete renews nothing", plan: daemons(manual, ab, pod("x", manual, on("a")), pod("y", manual, on("b")))},
		{name: "a pod of a lost node is left to others", plan: daemons(s, nil, pod("x", s, on("gone"), now))},
		{
			name: "a pod that waits for a lost node goes", plan: daemons(s, nil, waiting("x", s, "gone")),
			remove: []string{"x"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff([][]string{c.create, c.remove}, [][]string{targets(c.plan.Create), names(c.plan.Delete)}); d != "" {
				t.Errorf("makes on nodes, removes: %s", d)
			}
		})
	}
}

// surging is the strategy that creates new pods beside old ones.
func surging(most any) *schedulingv1.DaemonSetUpdateStrategy {
	return &schedulingv1.DaemonSetUpdateStrategy{RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
		MaxUnavailable: amount(0), MaxSurge: amount(most),
	}}
}

func TestDaemonSetSurges(t *testing.T) {
	surge := func(most any) *schedulingv1.DaemonSet {
		s := daemonSet()
		s.Spec.UpdateStrategy = surging(most)
		return s
	}
	one, half := surge(1), surge("50%")
	now := labelled(plan.RevisionHashLabel, hashOf(one))
	slow := surge(1)
	slow.Spec.MinReadySeconds = proto.Int32(30)
	manual := surge(1)
	manual.Spec.UpdateStrategy.Type = "OnDelete"
	abc := []*nodev1.Node{node("a"), node("b"), node("c")}
	young := map[string]plan.YoungDeaths{"a": {Rounds: 3, Last: start}}
	for _, c := range []struct {
		name   string
		plan   plan.DaemonSetPlan
		create []string // nodes
		remove []string
		held   int
		wake   time.Duration
	}{
		{
			name: "a new pod comes beside an old one, and no old one goes", create: []string{"a"}, held: 2,
			plan: daemons(one, abc, pod("x", one, on("a")), pod("y", one, on("b")), pod("z", one, on("c"))),
		},
		{
			name: "a percentage is rounded up", create: []string{"a", "b"}, held: 1,
			plan: daemons(half, abc, pod("x", half, on("a")), pod("y", half, on("b")), pod("z", half, on("c"))),
		},
		{
			name: "no other node gets a second one while one is not available", held: 2,
			plan: daemons(one, abc[:2], pod("x", one, on("a")), pod("n", one, on("a"), now, unready), pod("y", one, on("b"))),
		},
		{
			name: "the old one goes once the new one is available, and the next node has its turn", remove: []string{"x"},
			create: []string{"b"},
			plan:   daemons(one, abc[:2], pod("x", one, on("a")), pod("n", one, on("a"), now), pod("y", one, on("b"))),
		},
		{
			name: "a new one that is ready but not for long enough is waited for", held: 1, wake: 20 * time.Second,
			plan: daemons(slow, abc[:1], pod("x", slow, on("a")),
				pod("n", slow, on("a"), now, ready(start.Add(-10*time.Second)))),
		},
		{
			name: "an old one that is not available gets a new one beyond the limit", create: []string{"b"}, held: 1,
			plan: daemons(one, abc[:2], pod("x", one, on("a")), pod("n", one, on("a"), now, unready),
				pod("y", one, on("b"), unready)),
		},
		{
			name: "an old one that is not ready goes as soon as there is a new one", remove: []string{"x"},
			plan: daemons(one, abc[:1], pod("x", one, on("a"), unready), pod("n", one, on("a"), now, unready)),
		},
		{
			name: "two old ones are one too many", remove: []string{"y"}, create: []string{"a"},
			plan: daemons(one, abc[:1], pod("x", one, on("a")), pod("y", one, on("a"), born(start))),
		},
		{
			name: "of two old ones the one that is available stays", remove: []string{"x"}, create: []string{"a"},
			plan: daemons(one, abc[:1], pod("x", one, on("a"), unready), pod("y", one, on("a"), born(start))),
		},
		{
			name: "a new one that is on its way out is not counted", create: []string{"a"},
			plan: daemons(one, abc[:1], pod("x", one, on("a")), pod("n", one, on("a"), now, leaving)),
		},
		{
			name: "a new one that failed is removed before the next comes", remove: []string{"n"}, create: []string{"a"},
			plan: daemons(one, abc[:1], pod("x", one, on("a")), pod("n", one, on("a"), now, phase("Failed"))),
		},
		{
			name: "a node whose pods die young waits", held: 1, wake: 4 * time.Second,
			plan: plan.DaemonSet(plan.DaemonSetView{
				Now: start, Set: one, Nodes: abc[:1], Pods: []*schedulingv1.Pod{pod("x", one, on("a"))}, Deaths: young,
			}),
		},
		{
			name: "a node that does not fit loses both", remove: []string{"n", "x"},
			plan: daemons(one, []*nodev1.Node{node("a", taint("gpu", "NoExecute"))}, pod("x", one, on("a")),
				pod("n", one, on("a"), now)),
		},
		{name: "OnDelete creates none", plan: daemons(manual, abc[:1], pod("x", manual, on("a")))},
		{
			name: "without an update there is one pod of a node", remove: []string{"y"},
			plan: daemons(one, abc[:1], pod("x", one, on("a"), now), pod("y", one, on("a"), now, born(start))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := cmp.Diff([][]string{c.create, c.remove}, [][]string{targets(c.plan.Create), names(c.plan.Delete)}); d != "" {
				t.Errorf("creates on nodes, deletes: %s", d)
			}
			if len(c.plan.Held) != c.held || c.wake > 0 && !c.plan.Wake.Equal(start.Add(c.wake)) {
				t.Errorf("%d are held back until %v, want %d until %v: %v", len(c.plan.Held), c.plan.Wake, c.held, c.wake,
					c.plan.Held)
			}
		})
	}
}

// TestASurgingDaemonSetLosesNoAvailablePod plays updates of a template over nodes, with new pods that become ready,
// fail or are deleted at any time: a node with an available pod keeps one, at most as many available old pods as may
// have a new one beside them, and in the end all nodes have one pod of the present template.
func TestASurgingDaemonSetLosesNoAvailablePod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := daemonSet()
		most := rapid.IntRange(1, 3).Draw(t, "most")
		s.Spec.UpdateStrategy = surging(most)
		var nodes []*nodev1.Node
		var pods []*schedulingv1.Pod
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			nodes = append(nodes, node(name))
			p := pod("old-"+name, s, on(name))
			if rapid.IntRange(0, 3).Draw(t, "ready") == 0 {
				unready(p)
			}
			pods = append(pods, p)
		}
		up := func() map[string]bool {
			out := map[string]bool{}
			for _, p := range pods {
				if placement.Active(p) && placement.IsReady(p) {
					out[plan.TargetNode(p)] = true
				}
			}
			return out
		}
		made := 0
		step := func(faults bool) (did bool) {
			before := up()
			p := daemons(s, nodes, pods...)
			for _, gone := range p.Delete {
				leaving(gone)
			}
			for node := range before {
				if !up()[node] {
					t.Fatalf("node %s loses its available pod", node)
				}
			}
			for _, n := range p.Create {
				made++
				n.Metadata.Name, n.Metadata.Uid, n.Metadata.CreationTimestamp = fmt.Sprint("new-", made), fmt.Sprint(made),
					at(start.Add(-time.Hour))
				n.Status = &schedulingv1.PodStatus{Phase: proto.String("Pending")}
				pods = append(pods, n)
			}
			beside := 0
			for _, n := range nodes {
				old, updated := false, false
				for _, p := range pods {
					if plan.TargetNode(p) == n.Metadata.Name && placement.Active(p) {
						isNew := p.GetMetadata().GetLabels()[plan.RevisionHashLabel] != ""
						old, updated = old || !isNew && placement.IsReady(p), updated || isNew && !placement.IsReady(p)
					}
				}
				if old && updated {
					beside++
				}
			}
			if !faults && beside > most {
				t.Fatalf("%d nodes have a new pod beside an available old one, and %d may", beside, most)
			}
			return len(p.Create)+len(p.Delete) > 0
		}
		for range 20 {
			step(false)
			for _, p := range pods {
				switch rapid.IntRange(0, 6).Draw(t, "happens") {
				case 0:
					if p.GetStatus().GetPhase() == "Pending" {
						on(plan.TargetNode(p))(p)
						p.Status.Phase = proto.String("Running")
						ready(start.Add(-time.Minute))(p)
					}
				case 1:
					if p.GetStatus().GetPhase() == "Pending" {
						leaving(p)
					}
				}
			}
			pods = slices.DeleteFunc(pods, func(p *schedulingv1.Pod) bool {
				return p.Metadata.DeletionTimestamp != nil && rapid.Bool().Draw(t, "gone")
			})
		}
		for range 40 { // now all goes well
			pods = slices.DeleteFunc(pods, func(p *schedulingv1.Pod) bool { return p.Metadata.DeletionTimestamp != nil })
			for _, p := range pods {
				if p.GetMetadata().GetLabels()[plan.RevisionHashLabel] != "" {
					on(plan.TargetNode(p))(p)
					p.Status.Phase = proto.String("Running")
					ready(start.Add(-time.Minute))(p)
				}
			}
			if !step(true) {
				break
			}
		}
		for _, p := range pods {
			if p.GetMetadata().GetLabels()[plan.RevisionHashLabel] == "" {
				t.Fatalf("%s is still there", p.Metadata.Name)
			}
		}
		if len(pods) != len(nodes) {
			t.Fatalf("%d pods on %d nodes", len(pods), len(nodes))
		}
	})
}

func TestRevisionsOfADaemonSet(t *testing.T) {
	s := daemonSet()
	s.Spec.RevisionHistoryLimit = proto.Int32(0)
	var revisions []*schedulingv1.ControllerRevision
	view := func(pods ...*schedulingv1.Pod) plan.DaemonSetPlan {
		p := plan.DaemonSet(plan.DaemonSetView{
			Now: start, Set: s, Nodes: []*nodev1.Node{node("a")}, Pods: pods, Revisions: revisions,
		})
		revisions = revisionsAfter(revisions, p.History)
		return p
	}
	first := view()
	hash := first.Create[0].GetMetadata().GetLabels()[plan.RevisionHashLabel]
	if r := first.History.Record; r.GetRevision() != 1 || r.GetMetadata().GetName() != "web-"+hash ||
		r.GetMetadata().GetLabels()[plan.RevisionHashLabel] != hash {
		t.Fatalf("records %v for pods of %q", first.History.Record, hash)
	}
	s.Spec.Template = template("v2")
	second := view(pod("x", s, labelled(plan.RevisionHashLabel, hash)))
	if second.History.Record.GetRevision() != 2 || len(second.History.Forget) != 0 {
		t.Fatalf("while a pod is of the first: %v", second.History)
	}
	back, err := plan.Restore(s, revisions, 0)
	if err != nil || !proto.Equal(back, template("v1")) {
		t.Fatalf("the one before is %v, %v", back, err)
	}
	s.Spec.Template = back
	again := view(pod("x", s, labelled(plan.RevisionHashLabel, hash)))
	if again.History.Record != nil || again.History.Renumber.GetRevision() != 3 || len(again.Delete) != 0 {
		t.Fatalf("back on the first: %v, deletes %v", again.History, names(again.Delete))
	}
	if f := again.History.Forget; len(f) != 1 || f[0].GetRevision() != 2 {
		t.Fatalf("forgets %v, want the second", f)
	}
	s.Spec.Template = template("v2")
	taken := view().History.Record
	s.Status = plan.DaemonRevisionCollided(s.GetStatus())
	revisions = slices.DeleteFunc(revisions, func(r *schedulingv1.ControllerRevision) bool {
		return r.GetMetadata().GetName() == taken.GetMetadata().GetName()
	})
	next := view()
	if n := next.History.Record.GetMetadata().GetName(); n == taken.GetMetadata().GetName() ||
		next.Create[0].GetMetadata().
			GetLabels()[plan.RevisionHashLabel] != next.History.Record.GetMetadata().GetLabels()[plan.RevisionHashLabel] ||
		next.Status.GetCollisionCount() != 1 {
		t.Errorf("after a collision: revision %s, pods %v", n, next.Create[0].GetMetadata().GetLabels())
	}
}

func waiting(name string, s *schedulingv1.DaemonSet, on string) *schedulingv1.Pod {
	p := proto.CloneOf(plan.DaemonSet(plan.DaemonSetView{Now: start, Set: s, Nodes: []*nodev1.Node{node(on)}}).Create[0])
	p.Metadata.Name, p.Status = name, &schedulingv1.PodStatus{Phase: proto.String("Pending")}
	return p
}

func TestDaemonPodAsksForItsNodeAlone(t *testing.T) {
	s := daemonSet()
	s.Spec.Template.Spec.HostNetwork = proto.Bool(true)
	s.Spec.Template.Spec.Affinity = &schedulingv1.Affinity{NodeAffinity: &schedulingv1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &schedulingv1.NodeSelector{
			NodeSelectorTerms: []*schedulingv1.NodeSelectorTerm{{
				MatchExpressions: []*schedulingv1.NodeSelectorRequirement{
					{Key: "role", Operator: "In", Values: []string{"worker"}},
				},
			}},
		},
	}}
	a, b := node("a"), node("b")
	got := daemons(s, []*nodev1.Node{a}).Create[0]
	if !placement.MatchesNode(got.GetSpec(), a) || placement.MatchesNode(got.GetSpec(), b) {
		t.Errorf("affinity %v, want node a alone", got.GetSpec().GetAffinity())
	}
	var keys []string
	for _, tol := range got.GetSpec().GetTolerations() {
		if tol.GetOperator() != "Exists" || tol.TolerationSeconds != nil {
			t.Errorf("toleration %v", tol)
		}
		keys = append(keys, tol.GetKey()+":"+tol.GetEffect())
	}
	want := []string{
		placement.NotReadyTaint + ":NoExecute", placement.UnreachableTaint + ":NoExecute", placement.DiskPressureTaint +
			":NoSchedule",
		placement.MemoryPressureTaint + ":NoSchedule", placement.PIDPressureTaint + ":NoSchedule",
		placement.UnschedulableTaint + ":NoSchedule",
		placement.NetworkUnavailableTaint + ":NoSchedule",
	}
	if d := cmp.Diff(want, keys); d != "" {
		t.Error(d)
	}
}

func TestDaemonSetStatusCounts(t *testing.T) {
	s := daemonSet()
	now := labelled(plan.RevisionHashLabel, hashOf(s))
	p := daemons(s, []*nodev1.Node{node("a"), node("b"), node("c"), node("d", taint("gpu", "NoSchedule"))},
		pod("x", s, on("a"), now), pod("y", s, on("b"), unready), pod("z", s, on("d"), now))
	want := &schedulingv1.DaemonSetStatus{
		DesiredNumberScheduled: proto.Int32(3), CurrentNumberScheduled: proto.Int32(2), NumberMisscheduled: proto.Int32(1),
		NumberReady:     proto.Int32(1),
		NumberAvailable: proto.Int32(1), NumberUnavailable: proto.Int32(2), UpdatedNumberScheduled: proto.Int32(1),
		ObservedGeneration: proto.Int32(1),
	}
	if d := cmp.Diff(want, p.Status, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestDaemonSetNeverTakesMoreThanMayBeMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := daemonSet()
		most := rapid.IntRange(1, 4).Draw(t, "most")
		s.Spec.UpdateStrategy = &schedulingv1.DaemonSetUpdateStrategy{RollingUpdate: &schedulingv1.RollingUpdateDaemonSet{
			MaxUnavailable: amount(most),
		}}
		var nodes []*nodev1.Node
		var pods []*schedulingv1.Pod
		up := 0
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			nodes = append(nodes, node(name))
			if rapid.Bool().Draw(t, "has") {
				p := drawPod(t, i, s)
				on(name)(p)
				if rapid.Bool().Draw(t, "new") {
					labelled(plan.RevisionHashLabel, hashOf(s))(p)
				}
				pods = append(pods, p)
				if placement.Active(p) && placement.IsReady(p) {
					up++
				}
			}
		}
		p := daemons(s, nodes, pods...)
		after := up
		for _, gone := range p.Delete {
			if placement.IsReady(gone) {
				after--
			}
		}
		if after < min(up, len(nodes)-most) {
			t.Fatalf("%d of %d pods stay available on %d nodes, of which %d may be without", after, up, len(nodes), most)
		}
		for _, n := range targets(p.Create) {
			if slices.ContainsFunc(pods, func(p *schedulingv1.Pod) bool { return p.Spec.NodeName == n }) {
				t.Fatalf("makes a second pod on %s", n)
			}
		}
	})
}

func TestDaemonSetLooksAgainForAPodThatFailedAtOnce(t *testing.T) {
	s := daemonSet()
	p := daemons(s, []*nodev1.Node{node("a")}, pod("x", s, on("a"), phase("Failed"), born(start)))
	if !p.Wake.Equal(start.Add(30 * time.Second)) {
		t.Errorf("wakes at %v", p.Wake)
	}
}
