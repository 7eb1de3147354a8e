package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/windlass-dev/windlass/gen/windlass/event/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/servetest"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// taint sets a NoExecute taint on a node as a user does, and returns the node.
func taint(t *testing.T, nodes nodev1.NodeServiceClient, node, key string) *nodev1.Node {
	t.Helper()
	n, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: node, Patch: merge(fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoExecute"}]}}`, key)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func taintsOf(n *nodev1.Node) string {
	var out []string
	for _, t := range n.GetSpec().GetTaints() {
		out = append(out, plan.TaintText(t))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// initialize takes off the taint of a new node, as machine-api does.
func initialize(t *testing.T, nodes nodev1.NodeServiceClient, names ...string) {
	t.Helper()
	for _, name := range names {
		n, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: name})
		if err != nil || !strings.Contains(taintsOf(n), plan.UninitializedTaint+"=true:NoSchedule") {
			t.Fatalf("a new node: %v, %v", n, err)
		}
		if _, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
			Name: name, Patch: merge(`{"spec":{"taints":null}}`),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestATaintEvictsWhoDoesNotBearIt(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	nodes := nodev1.NewNodeServiceClient(conn)
	c.agent("a").beat()
	c.pods.add("a", "bears", bearing("k", -1))
	c.pods.add("a", "bears-a-while", bearing("k", 2))
	c.pods.add("a", "is-going", slow)
	c.pods.goesSlowly("is-going")
	c.pods.add("b", "elsewhere")
	c.pods.add("a", "does-not")
	n := taint(t, nodes, "a", "k")
	added := n.GetSpec().GetTaints()[0].GetTimeAdded().AsTime()
	c.pods.awaitDeleted("does-not")
	if got := c.pods.awaitDeleted("bears-a-while"); got.Before(added.Add(2 * time.Second)) {
		t.Errorf("evicted %v after the taint, want 2s", got.Sub(added))
	}
	for _, name := range []string{"bears", "elsewhere"} {
		if !c.pods.deletedAt(name).IsZero() {
			t.Errorf("pod %s was evicted", name)
		}
	}
	servetest.Await(t, func() string {
		list, err := eventv1.NewEventServiceClient(conn).ListEvents(t.Context(), &eventv1.ListEventsRequest{})
		for _, e := range list.GetItems() {
			if e.GetReason() == "TaintManagerEviction" && e.GetMessage() == "Marking for deletion Pod default/does-not" {
				return ""
			}
		}
		return fmt.Sprintf("an event: %v, %v", list, err)
	})
	servetest.Await(t, func() string {
		p, err := schedulingv1.NewEvictionServiceClient(conn).PlanEvictions(t.Context(), &schedulingv1.PlanEvictionsRequest{})
		var got []string
		for _, e := range p.GetEvictions() {
			got = append(got, e.GetName()+" "+e.GetVerdict())
		}
		if want := []string{"bears Keep", "is-going Keep"}; err != nil || !slices.Equal(got, want) {
			return fmt.Sprintf("PlanEvictions: %v, %v, want %v", got, err, want)
		}
		return ""
	})
}

func TestATaintThatGoesInTimeEvictsNobody(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a").beat()
	c.pods.add("a", "p", bearing("k", 1))
	taint(t, nodes, "a", "k")
	if _, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{
		Name: "a", Patch: merge(`{"spec":{"taints":null}}`),
	}); err != nil {
		t.Fatal(err)
	}
	c.agent("b").beat()
	c.pods.add("b", "witness", bearing("k", 1))
	taint(t, nodes, "b", "k")
	c.pods.awaitDeleted("witness") // whose second ends after that of p would have
	if got := c.pods.deletedAt("p"); !got.IsZero() {
		t.Errorf("the pod was evicted")
	}
}

func TestDeadlinesSurviveARestart(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a").beat()
	c.pods.add("a", "soon", bearing("k", 1))
	c.pods.add("a", "later", bearing("k", 6))
	added := taint(t, nodes, "a", "k").GetSpec().GetTaints()[0].GetTimeAdded().AsTime()
	c.stop()
	time.Sleep(time.Until(added.Add(3 * time.Second)))
	if !c.pods.deletedAt("soon").IsZero() {
		t.Fatal("no taint evicted the pod")
	}
	c.run()
	c.pods.awaitDeleted("soon")
	// 9 s count from the restart
	if got := c.pods.awaitDeleted("later").Sub(added); got < 6*time.Second || got >= 9*time.Second {
		t.Errorf("evicted %v after the taint, want 6s", got)
	}
}

func TestALostNodeLosesItsPodsUnlessAllAreLost(t *testing.T) {
	const grace = 2 * time.Second
	c := start(t, grace)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	agents := map[string]*agent{"a": c.agent("a"), "b": c.agent("b"), "c": c.agent("c")}
	initialize(t, nodes, "a", "b", "c")
	beat := func(d time.Duration, names ...string) {
		t.Helper()
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			for _, name := range names {
				agents[name].beat()
			}
		}
	}
	for name := range agents {
		c.pods.add(name, "on-"+name)
	}
	// a falls silent, the others speak.
	beat(100*time.Millisecond, "a", "b", "c")
	beat(grace+time.Second, "b", "c")
	awaitNode(t, nodes, "a", "lost", func(n *nodev1.Node) bool {
		return taintsOf(n) == "node.kubernetes.io/unreachable:NoExecute node.kubernetes.io/unreachable:NoSchedule"
	})
	c.pods.awaitDeleted("on-a")
	// Now all are silent, and no other node loses a pod.
	time.Sleep(grace + 2*time.Second)
	for name := range agents {
		awaitNode(t, nodes, name, "out of reach", func(n *nodev1.Node) bool {
			return taintsOf(n) == "node.kubernetes.io/unreachable:NoSchedule"
		})
	}
	// PlanEvictions returns no eviction that would not happen.
	plans, err := schedulingv1.NewEvictionServiceClient(c.admin()).PlanEvictions(t.Context(),
		&schedulingv1.PlanEvictionsRequest{})
	if err != nil || slices.ContainsFunc(plans.GetEvictions(), func(e *schedulingv1.PlanEvictionsResponse_Eviction) bool {
		return e.GetVerdict() == plan.Evict
	}) {
		t.Errorf("PlanEvictions in a full disruption: %v, %v", plans, err)
	}
	// One speaks again: the others get the time to follow it.
	beat(time.Second, "b")
	awaitNode(t, nodes, "b", "ready", func(n *nodev1.Node) bool { return plan.IsReady(n) && taintsOf(n) == "" })
	beat(500*time.Millisecond, "b", "c")
	awaitNode(t, nodes, "c", "ready", plan.IsReady)
	for _, name := range []string{"b", "c"} {
		if got := c.pods.deletedAt("on-" + name); !got.IsZero() {
			t.Errorf("pod on %s was evicted", name)
		}
	}
	beat(grace+500*time.Millisecond, "b", "c")
	awaitNode(t, nodes, "a", "lost still", func(n *nodev1.Node) bool {
		return strings.Contains(taintsOf(n), "unreachable:NoExecute")
	})
}

func drain(name, node string, change ...func(*nodev1.DrainSpec)) *nodev1.CreateDrainRequest {
	spec := &nodev1.DrainSpec{NodeName: node}
	for _, f := range change {
		f(spec)
	}
	return &nodev1.CreateDrainRequest{Drain: &nodev1.Drain{Metadata: &metav1.ObjectMeta{Name: name}, Spec: spec}}
}

func ignoringDaemonSets(s *nodev1.DrainSpec) { s.IgnoreDaemonSets = proto.Bool(true) }

func TestADrainWaitsForBudgetsAndForPods(t *testing.T) {
	c := start(t, time.Minute)
	conn := c.admin()
	drains, evictions := nodev1.NewDrainServiceClient(conn), schedulingv1.NewEvictionServiceClient(conn)
	c.agent("a").beat()
	c.pods.allow("web", 1)
	for i := range 3 {
		c.pods.add("a", fmt.Sprintf("web-%d", i), app("web"))
	}
	for i := range 20 {
		c.pods.add("a", fmt.Sprintf("free-%d", i))
	}
	c.pods.add("a", "slow", slow)
	c.pods.add("a", "daemon", by("DaemonSet"))
	p, err := evictions.PlanDrain(t.Context(), &schedulingv1.PlanDrainRequest{
		Drain: drain("d", "a", ignoringDaemonSets).GetDrain(),
	})
	if err != nil {
		t.Fatal(err)
	}
	verdicts := map[string]int{}
	for _, pod := range p.GetPods() {
		verdicts[pod.GetVerdict()]++
	}
	if verdicts[plan.Evict] != 22 || verdicts[plan.Blocked] != 2 || verdicts[plan.Skip] != 1 {
		t.Errorf("PlanDrain: %v", verdicts)
	}
	if _, err := drains.CreateDrain(t.Context(), drain("d", "a", ignoringDaemonSets)); err != nil {
		t.Fatal(err)
	}
	status := func(what string, is func(*nodev1.DrainStatus) bool) {
		t.Helper()
		servetest.Await(t, func() string {
			d, err := drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: "d"})
			if err == nil && is(d.GetStatus()) {
				return ""
			}
			return fmt.Sprintf("%s: %v, %v", what, d.GetStatus(), err)
		})
	}
	status("two are blocked, one is terminating", func(s *nodev1.DrainStatus) bool {
		return s.GetPhase() == plan.Draining && s.GetRemainingPods() == 3 && s.GetEvictedPods() == 21 &&
			len(s.GetBlocked()) == 2 &&
			strings.Contains(s.GetBlocked()[0], "budget default/web allows no disruption; tried ")
	})
	c.pods.mu.Lock()
	most := c.pods.most
	c.pods.mu.Unlock()
	if most < 2 || most > 8 {
		t.Errorf("%d evictions at once", most)
	}
	c.pods.allow("web", 2)
	status("the budget lets the others go", func(s *nodev1.DrainStatus) bool {
		return s.GetRemainingPods() == 1 && len(s.GetBlocked()) == 0 && s.GetMessage() == "waits for 1 pod to leave"
	})
	c.pods.goes("slow")
	d := awaitDrain(t, drains, "d", plan.Succeeded)
	if d.GetStatus().GetEvictedPods() != 24 || d.GetStatus().GetMessage() != "24 pods left the node" {
		t.Errorf("at the end: %v", d.GetStatus())
	}
	if !c.pods.deletedAt("daemon").IsZero() {
		t.Error("the pod of a daemon set was evicted")
	}
}

func TestABudgetThatOpensIsUsedBeforeTheNextTry(t *testing.T) {
	c := start(t, time.Minute)
	c.stop()
	c.cfg.retry = time.Hour
	c.run()
	drains := nodev1.NewDrainServiceClient(c.admin())
	c.agent("a").beat()
	c.pods.allow("web", 0)
	c.pods.add("a", "web", app("web"))
	if _, err := drains.CreateDrain(t.Context(), drain("d", "a")); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		d, err := drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: "d"})
		if len(d.GetStatus().GetBlocked()) == 1 {
			return ""
		}
		return fmt.Sprintf("blocked: %v, %v", d, err)
	})
	c.pods.allow("web", 1)
	awaitDrain(t, drains, "d", plan.Succeeded)
}

func TestADrainThatMayNotTouchAPodFails(t *testing.T) {
	c := start(t, time.Minute)
	drains := nodev1.NewDrainServiceClient(c.admin())
	c.agent("a").beat()
	c.pods.add("a", "daemon", by("DaemonSet"))
	c.pods.add("a", "p")
	if _, err := drains.CreateDrain(t.Context(), drain("d", "a")); err != nil {
		t.Fatal(err)
	}
	d := awaitDrain(t, drains, "d", plan.Failed)
	if got, want := d.GetStatus().GetMessage(),
		"cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/daemon"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if !c.pods.deletedAt("p").IsZero() {
		t.Error("a pod was evicted")
	}
}

func TestADrainWaitsForASchedulerThatIsAway(t *testing.T) {
	c := start(t, time.Minute)
	drains := nodev1.NewDrainServiceClient(c.admin())
	c.agent("a").beat()
	c.pods.add("a", "p")
	c.pods.add("b", "elsewhere")
	address := c.cfg.Peers[scheduler]
	servetest.Await(t, func() string { // the pods are known
		p, err := schedulingv1.NewEvictionServiceClient(c.admin()).PlanDrain(t.Context(), &schedulingv1.PlanDrainRequest{
			Drain: drain("d", "a").GetDrain(),
		})
		if len(p.GetPods()) == 1 {
			return ""
		}
		return fmt.Sprint(p, err)
	})
	c.pods.server.Stop()
	for name, node := range map[string]string{"d": "a", "e": "c"} {
		if node == "c" {
			c.agent("c").beat()
		}
		if _, err := drains.CreateDrain(t.Context(), drain(name, node)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"d", "e"} {
		servetest.Await(t, func() string {
			d, err := drains.GetDrain(t.Context(), &nodev1.GetDrainRequest{Name: name})
			if d.GetStatus().GetPhase() == plan.Draining && strings.Contains(d.GetStatus().GetMessage(), "the scheduler") {
				return ""
			}
			return fmt.Sprintf("drain %s waits for the scheduler: %v, %v", name, d.GetStatus(), err)
		})
	}
	c.pods.listen(address)
	awaitDrain(t, drains, "d", plan.Succeeded)
	awaitDrain(t, drains, "e", plan.Succeeded)
}

// TestAnEvictionIsQuick measures from the answer to the write of the taint until the deletion is written.
func TestAnEvictionIsQuick(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	var took []time.Duration
	for i := range 11 {
		name := fmt.Sprintf("n%d", i)
		c.agent(name).beat()
		c.pods.add(name, "p-"+name)
		servetest.Await(t, func() string {
			p, err := schedulingv1.NewEvictionServiceClient(c.admin()).PlanEvictions(t.Context(),
				&schedulingv1.PlanEvictionsRequest{NodeName: name})
			if len(p.GetEvictions()) == 1 {
				return ""
			}
			return fmt.Sprint(p, err)
		})
		began := time.Now()
		taint(t, nodes, name, "k")
		took = append(took, c.pods.awaitDeleted("p-"+name).Sub(began))
	}
	slices.Sort(took)
	t.Logf("from the request that sets a taint to the deletion: median %v, most %v", took[5], took[10])
	if took[5] > time.Second {
		t.Errorf("median %v", took[5])
	}
}

func TestWhatOthersMayNotWrite(t *testing.T) {
	c := start(t, time.Minute)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a").beat()
	initialize(t, nodes, "a")
	n, err := nodes.PatchNode(t.Context(), &nodev1.PatchNodeRequest{Name: "a", Patch: merge(
		`{"spec":{"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"},{"key":"k","effect":"NoSchedule"}]}}`,
	)})
	if err != nil || taintsOf(n) != "k:NoSchedule" {
		t.Errorf("after a patch with a taint of ours: %v, %v", n, err)
	}
	awaitNode(t, nodes, "a", "tainted for being unschedulable", func(n *nodev1.Node) bool {
		return taintsOf(n) == "k:NoSchedule node.kubernetes.io/unschedulable:NoSchedule"
	})
	p, err := nodes.PlanNode(t.Context(), &nodev1.PlanNodeRequest{Node: &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: "x"},
		Status: &nodev1.NodeStatus{Conditions: []*nodev1.NodeCondition{
			{Type: "Ready", Status: "Unknown"}, {Type: "PIDPressure", Status: "True"},
		}},
	}})
	want := "node.kubernetes.io/pid-pressure:NoSchedule node.kubernetes.io/unreachable:NoExecute node.kubernetes.io/unreachable:NoSchedule"
	if got := taintsOf(&nodev1.Node{Spec: &nodev1.NodeSpec{Taints: p.GetTaints()}}); err != nil || got != want {
		t.Errorf("PlanNode: %q, %v, want %q", got, err, want)
	}
}
