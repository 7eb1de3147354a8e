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

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// TestEvictionsStopWhileMostNodesOfAZoneAreLost loses one of five nodes, which gets its taint, and then two others
// before a pod of the first has to leave.
func TestEvictionsStopWhileMostNodesOfAZoneAreLost(t *testing.T) {
	const grace, bears = 2 * time.Second, 5
	c := start(t, grace)
	conn := c.admin()
	nodes := nodev1.NewNodeServiceClient(conn)
	agents := map[string]*agent{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		agents[name] = c.agent(name)
		agents[name].beat()
		c.pods.add(name, "on-"+name, bearing("node.kubernetes.io/unreachable", bears))
	}
	initialize(t, nodes, "a", "b", "c", "d", "e")
	// until has some agents send heartbeats until a node is as it is wanted.
	until := func(name, what string, is func(*nodev1.Node) bool, speak ...string) *nodev1.Node {
		t.Helper()
		var n *nodev1.Node
		servetest.Await(t, func() string {
			for _, s := range speak {
				agents[s].beat()
			}
			var err error
			if n, err = nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: name}); err == nil && is(n) {
				return ""
			}
			return fmt.Sprintf("node %s is not %s: %v, %v", name, what, n, err)
		})
		return n
	}
	state := func(n *nodev1.Node) string { return n.GetStatus().GetEvictions().GetZoneState() }
	a := until("a", "tainted", func(n *nodev1.Node) bool {
		return strings.Contains(taintsOf(n), "unreachable:NoExecute") && n.GetStatus().GetEvictions().GetNextDeadline() != nil
	}, "b", "c", "d", "e")
	due := a.GetStatus().GetEvictions().GetNextDeadline().AsTime()
	if e := a.GetStatus().GetEvictions(); e.GetZoneState() != plan.Normal || e.GetNodesPerSecond() != 1000 {
		t.Errorf("one lost node reports %v", e)
	}
	// The pod is due while the other two are lost.
	until("a", "in a disrupted zone", func(n *nodev1.Node) bool {
		return state(n) == plan.PartialDisruption && time.Now().After(due.Add(time.Second))
	}, "d", "e")
	if !c.pods.deletedAt("on-a").IsZero() {
		t.Error("a pod was evicted while evictions are stopped")
	}
	list, err := eventv1.NewEventServiceClient(conn).ListEvents(t.Context(), &eventv1.ListEventsRequest{})
	if err != nil || !slices.ContainsFunc(list.GetItems(), func(e *eventv1.Event) bool {
		return e.GetReason() == "ZonePartialDisruption" && strings.Contains(e.GetMessage(), "3 of its 5 nodes are lost")
	}) {
		t.Errorf("events: %v, %v", list.GetItems(), err)
	}
	// A node that is lost now is not even tainted, and PlanEvictions says why. Of the two before it that depends on
	// which of them was seen first.
	want := "d PartialDisruption most nodes of its zone are lost"
	servetest.Await(t, func() string {
		agents["e"].beat()
		p, err := schedulingv1.NewEvictionServiceClient(conn).PlanEvictions(t.Context(), &schedulingv1.PlanEvictionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range p.GetNodes() {
			got = append(got, fmt.Sprint(n.GetName(), " ", n.GetEvictions().GetZoneState(), " ", n.GetWaitsFor()))
		}
		if len(got) == 4 && got[3] == want {
			return ""
		}
		return fmt.Sprintf("PlanEvictions: %q, want four, the last %q", got, want)
	})
	until("d", "ready", plan.IsReady, "d", "e")
	until("c", "ready", plan.IsReady, "c", "d", "e")
	c.pods.awaitDeleted("on-a")
	until("a", "in a normal zone", func(n *nodev1.Node) bool { return state(n) == plan.Normal }, "c", "d", "e")
}

func TestAPodThatIsBoundAfterATaintGetsItsSeconds(t *testing.T) {
	c := start(t, time.Minute)
	c.agent("a").beat()
	taint(t, nodev1.NewNodeServiceClient(c.admin()), "a", "k")
	const bears = 2 * time.Second
	time.Sleep(bears + time.Second) // counted from the taint, its seconds are over
	c.pods.add("a", "p", bearing("k", int32(bears/time.Second)))
	began := time.Now()
	if lived := c.pods.awaitDeleted("p").Sub(began); lived < bears {
		t.Errorf("it was evicted after %v, its binding came after the taint", lived)
	}
}

func TestANodeWithoutAnAgentGetsItsGrace(t *testing.T) {
	const grace = 3 * time.Second
	c := start(t, grace)
	nodes := nodev1.NewNodeServiceClient(c.admin())
	c.agent("a").beat()
	time.Sleep(grace) // the grace since the start of the process is over: the node has one of its own
	began := time.Now()
	if _, err := nodes.CreateNode(t.Context(), &nodev1.CreateNodeRequest{
		Node: &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: "manual"}},
	}); err != nil {
		t.Fatal(err)
	}
	servetest.Await(t, func() string {
		n, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{Name: "manual"})
		if err != nil || ready(n) == "" {
			return fmt.Sprintf("node %v, %v", n, err)
		}
		return ""
	})
	if took := time.Since(began); took < grace*9/10 {
		t.Errorf("it is lost after %v, the grace is %v", took, grace)
	}
}
