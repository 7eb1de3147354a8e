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
