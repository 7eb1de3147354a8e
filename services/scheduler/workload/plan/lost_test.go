package plan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// lostNode returns a node whose condition Ready has a status since so many seconds after start.
func lostNode(name, status string, since int) *nodev1.Node {
	return &nodev1.Node{Metadata: &metav1.ObjectMeta{Name: name}, Status: &nodev1.NodeStatus{
		Conditions: []*nodev1.NodeCondition{
			{Type: "Ready", Status: status, LastTransitionTime: at(start.Add(time.Duration(since) * time.Second))},
		},
	}}
}

// TestPodsOfALostNodeAreRecordedOnceEachTimeItIsLost decides about one change of the nodes after another. The agents
// are connected all the time, so each pod says soon after that it is ready.
func TestPodsOfALostNodeAreRecordedOnceEachTimeItIsLost(t *testing.T) {
	pods := map[string][]*schedulingv1.Pod{}
	for _, n := range []string{"a", "b"} {
		pods[n] = []*schedulingv1.Pod{
			pod(n+"-ready", nil, on(n)), pod(n+"-unready", nil, on(n), unready),
			pod(n+"-ended", nil, on(n), phase("Succeeded"), ready(start)),
		}
	}
	silent := node("b")
	var memory plan.LostMemory
	for _, step := range []struct {
		what  string
		nodes []*nodev1.Node
		fails bool // to write the pods
		want  []string
	}{
		{"both are ready", []*nodev1.Node{lostNode("a", "True", 0), lostNode("b", "True", 0)}, false, nil},
		{"one has said nothing yet", []*nodev1.Node{lostNode("a", "True", 0), silent}, false, nil},
		{
			"one is silent, and etcd refuses the write",
			[]*nodev1.Node{lostNode("a", "Unknown", 1), lostNode("b", "True", 0)},
			true,
			[]string{"a-ready"},
		},
		{
			"so it is tried again",
			[]*nodev1.Node{lostNode("a", "Unknown", 1), lostNode("b", "True", 0)},
			false,
			[]string{"a-ready"},
		},
		{"nothing changed", []*nodev1.Node{lostNode("a", "Unknown", 1), lostNode("b", "True", 0)}, false, nil},
		{
			"the other reports that it is not ready",
			[]*nodev1.Node{lostNode("a", "Unknown", 1), lostNode("b", "False", 2)},
			false,
			[]string{"b-ready"},
		},
		{"one is back", []*nodev1.Node{lostNode("a", "True", 3), lostNode("b", "False", 2)}, false, nil},
		{
			"and is lost again",
			[]*nodev1.Node{lostNode("a", "Unknown", 4), lostNode("b", "False", 2)},
			false,
			[]string{"a-ready"},
		},
		{
			"it was back only between two decisions",
			[]*nodev1.Node{lostNode("a", "Unknown", 6), lostNode("b", "False", 2)},
			false,
			[]string{"a-ready"},
		},
		{"both are deleted", nil, false, nil},
	} {
		p := plan.Lost(plan.LostView{
			Nodes: step.nodes, Memory: memory,
			PodsOn: func(node string) []*schedulingv1.Pod { return pods[node] },
		})
		if diff := cmp.Diff(step.want, names(p.NotReady)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
		if step.fails {
			memory = p.Done(p.NotReady)
		} else {
			memory = p.Done(nil)
		}
	}
	if len(memory) > 0 {
		t.Errorf("deleted nodes are remembered: %v", memory)
	}
}

// TestPodsOfALostNodeStayReadyWhileEvictionsAreWithheld has most nodes of a zone, or all nodes, lost.
func TestPodsOfALostNodeStayReadyWhileEvictionsAreWithheld(t *testing.T) {
	for _, c := range []struct {
		name      string
		evictions *nodev1.NodeEvictions
		taint     string
		recorded  bool
		want      bool
	}{
		{name: "nothing is said about the zone", want: true},
		{name: "one node is lost", evictions: &nodev1.NodeEvictions{ZoneState: "Normal", NodesPerSecond: 0.1}, want: true},
		{
			name: "a zone is lost, others are not", want: true,
			evictions: &nodev1.NodeEvictions{ZoneState: "FullDisruption", NodesPerSecond: 0.1},
		},
		{name: "evictions are stopped", evictions: &nodev1.NodeEvictions{ZoneState: "PartialDisruption"}},
		{name: "all nodes are lost", evictions: &nodev1.NodeEvictions{ZoneState: "FullDisruption"}},
		{name: "evictions are slower", evictions: &nodev1.NodeEvictions{
			ZoneState:      "PartialDisruption",
			NodesPerSecond: 0.01,
		}},
		{
			name: "and it is the node's turn", taint: "node.kubernetes.io/unreachable", want: true,
			evictions: &nodev1.NodeEvictions{ZoneState: "PartialDisruption", NodesPerSecond: 0.01},
		},
		{
			name: "another taint does not count", taint: "maintenance",
			evictions: &nodev1.NodeEvictions{ZoneState: "PartialDisruption", NodesPerSecond: 0.01},
		},
		{
			name: "what is recorded is not recorded again", recorded: true,
			evictions: &nodev1.NodeEvictions{ZoneState: "PartialDisruption"},
		},
	} {
		n := lostNode("a", "Unknown", 1)
		n.Status.Evictions = c.evictions
		if c.taint != "" {
			n.Spec = &nodev1.NodeSpec{Taints: []*nodev1.Taint{{Key: c.taint, Effect: "NoExecute"}}}
		}
		v := plan.LostView{Nodes: []*nodev1.Node{n}, PodsOn: func(string) []*schedulingv1.Pod {
			return []*schedulingv1.Pod{pod("p", nil)}
		}}
		if c.recorded {
			v.Memory = plan.LostMemory{"a": start.Add(time.Second)}
		}
		p := plan.Lost(v)
		if got := len(p.NotReady) == 1; got != c.want {
			t.Errorf("%s: recorded %t, want %t", c.name, got, c.want)
		}
		if _, kept := p.Done(nil)["a"]; kept != (c.want || c.recorded) {
			t.Errorf("%s: remembered %t", c.name, kept)
		}
	}
}
