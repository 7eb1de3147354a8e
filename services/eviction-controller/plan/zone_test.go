package plan

import (
	"testing"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// lost is an agent that was silent for the grace.
var lost = Agent{Silence: grace}

func TestPace(t *testing.T) {
	for _, tc := range []struct {
		name       string
		well, lost int
		wait       time.Duration
		stopped    bool
	}{
		{"one after the other", 5, 1, 10 * time.Second, false},
		{"two are not many", 1, 2, 10 * time.Second, false},
		{"half of a zone is not much", 3, 3, 10 * time.Second, false},
		{"much of a small zone stops it", 2, 3, 0, true},
		{"also of the largest small one", 22, 28, 0, true},
		{"much of a large zone slows it down", 22, 29, 100 * time.Second, false},
		{"a zone that is lost altogether is no special case", 0, 8, 10 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nodes := []Witness{
				{Zone: "other", Agent: Agent{Silence: grace}},
				{Zone: "z", ControlPlane: true, Agent: Agent{Silence: grace}},
			}
			for range tc.well {
				nodes = append(nodes, Witness{Zone: "z", Agent: Agent{Reported: true}})
			}
			for range tc.lost {
				nodes = append(nodes, Witness{Zone: "z", Agent: Agent{Silence: grace}})
			}
			if wait, stopped := pace(nodes, "z", grace, 10*time.Second); wait != tc.wait || stopped != tc.stopped {
				t.Errorf("Pace = %v, %v, want %v, %v", wait, stopped, tc.wait, tc.stopped)
			}
		})
	}
}

func TestDoubt(t *testing.T) {
	for _, tc := range []struct {
		name      string
		agent     Agent
		disrupted bool
		want      time.Duration // from now; 0 means that there is no doubt
	}{
		{"a healthy agent loses no pod", Agent{Reported: true, Silence: time.Second}, false, time.Second},
		{"one without a heartbeat has its grace", Agent{Silence: grace / 4}, false, grace - grace/4},
		{"one that is silent is lost", Agent{Silence: grace}, false, 0},
		{"one that says so is", Agent{Reported: true, NotReady: "disk is full"}, false, 0},
		{"unless all are", Agent{Silence: grace}, true, grace / 2},
	} {
		want := now().Add(tc.want)
		if tc.want == 0 {
			want = time.Time{}
		}
		if got := doubt(now(), tc.agent, grace, tc.disrupted); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", tc.name, got, want)
		}
	}
}

func TestANodeThatWaitsForOthersOfItsZone(t *testing.T) {
	v := NodeView{Now: now(), Node: newNode(), Pause: 10 * time.Second, Reachability: Reachability{
		Grace: grace, Agent: lost,
	}}
	p := Node(v)
	if !p.Does(TakeTurn) || !accused(p.NodeAfter(v.Node)) {
		t.Errorf("the first one does not take its turn: %v", p.Do)
	}
	v.Turn = Turn{Node: "b", At: now().Add(-9 * time.Second)}
	p = Node(v)
	after := p.NodeAfter(v.Node)
	if len(after.Spec.Taints) != 1 || after.Spec.Taints[0].GetEffect() != "NoSchedule" || p.Does(TakeTurn) ||
		!p.Wake.Equal(now().Add(time.Second)) || p.WaitsFor != "node b of its zone comes first" {
		t.Errorf("while it waits for %q: %v, wake at %v", p.WaitsFor, after.Spec.Taints, p.Wake)
	}
	v.Turn = Turn{Node: "a", At: now().Add(-time.Second)}
	if p := Node(v); p.Does(TakeTurn) || !accused(p.NodeAfter(v.Node)) {
		t.Error("a node does not keep its turn")
	}
	v.Turn = Turn{Node: "b", At: now().Add(-10 * time.Second)}
	if p := Node(v); !p.Does(TakeTurn) || !accused(p.NodeAfter(v.Node)) {
		t.Error("its turn does not come")
	}
	v.Turn = Turn{Node: "b", At: now()}
	v.Node = newNode(tainted(since("node.kubernetes.io/unreachable", -time.Hour)))
	p = Node(v)
	if got := p.NodeAfter(v.Node).Spec.Taints; p.Does(TakeTurn) || len(got) != 2 ||
		!got[0].GetTimeAdded().AsTime().Equal(now().Add(-time.Hour)) {
		t.Errorf("what a node has stays: %v", got)
	}
	v.Agent = Agent{Reported: true, NotReady: "disk is full"}
	p = Node(v)
	if got := p.NodeAfter(v.Node).Spec.Taints; p.Does(TakeTurn) || len(got) != 2 ||
		got[1].GetKey() != "node.kubernetes.io/not-ready" || got[1].GetEffect() != "NoExecute" {
		t.Errorf("one taint does not follow the other: %v", got)
	}
}

// TestAFullDisruptionBeginsAndEnds has the end noticed by the first agent that sends a heartbeat, and by one that does
// not: for that one silence counts from then.
func TestAFullDisruptionBeginsAndEnds(t *testing.T) {
	all, one := []Witness{{Agent: lost}, {Agent: lost}}, []Witness{{Agent: lost}, {Agent: Agent{Reported: true}}}
	for _, tc := range []struct {
		name         string
		reachability Reachability
		begin, end   bool
		waits        string
	}{
		{
			"no agent sends heartbeats",
			Reachability{Agent: lost, Witnesses: all},
			true, false,
			"no node's agent sends heartbeats, so it is more likely that this service is disconnected",
		},
		{
			"and stays so",
			Reachability{Agent: lost, Witnesses: all, Disrupted: true},
			false, false,
			"no node's agent sends heartbeats, so it is more likely that this service is disconnected",
		},
		{"a heartbeat ends it", Reachability{Agent: Agent{Reported: true}, Witnesses: one, Disrupted: true}, false, true, ""},
		{
			"the grace of a silent agent restarts",
			Reachability{Agent: lost, Witnesses: one, Disrupted: true},
			false, true,
			"its agent may still send a heartbeat within the grace period",
		},
		{
			"one that may still send a heartbeat does not count",
			Reachability{Agent: Agent{}, Witnesses: all},
			false, false,
			"its agent may still send a heartbeat within the grace period",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.reachability.Grace = grace
			node := newNode(observed(seen(readyUnknown(), -time.Minute, -time.Hour)))
			p := Node(NodeView{Now: now(), Node: node, Reachability: tc.reachability})
			if p.Does(BeginDisruption) != tc.begin || p.Does(EndDisruption) != tc.end || p.WaitsFor != tc.waits {
				t.Errorf("Node = %v, waits for %q", p.Do, p.WaitsFor)
			}
			evictions := Evictions(EvictionView{
				Now: now(), Node: newNode(tainted(since("node.kubernetes.io/unreachable", -time.Hour))),
				Pods: []*schedulingv1.Pod{newPod("p")}, Reachability: tc.reachability,
			})
			if evictions.Does(BeginDisruption) != tc.begin || evictions.Does(EndDisruption) != tc.end || len(evictions.Ask) > 0 {
				t.Errorf("Evictions = %v, asks %v", evictions.Do, evictions.Ask)
			}
		})
	}
}
