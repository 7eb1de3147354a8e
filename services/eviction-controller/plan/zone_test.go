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
				nodes = append(nodes, Witness{Zone: "z", Agent: Agent{Heard: true}})
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
		{"an agent that is well loses nobody", Agent{Heard: true, Silence: time.Second}, false, time.Second},
		{"one that was not heard yet has its grace", Agent{Silence: grace / 4}, false, grace - grace/4},
		{"one that is silent is lost", Agent{Silence: grace}, false, 0},
		{"one that says so is", Agent{Heard: true, NotReady: "ill"}, false, 0},
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
	v := NodeView{Now: now(), Node: newNode(), Pause: 10 * time.Second, Hearing: Hearing{Grace: grace, Agent: lost}}
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
	v.Agent = Agent{Heard: true, NotReady: "ill"}
	p = Node(v)
	if got := p.NodeAfter(v.Node).Spec.Taints; p.Does(TakeTurn) || len(got) != 2 ||
		got[1].GetKey() != "node.kubernetes.io/not-ready" || got[1].GetEffect() != "NoExecute" {
		t.Errorf("one taint does not follow the other: %v", got)
	}
}

// TestAFullDisruptionBeginsAndEnds lets the first agent that is heard, and one that is not, notice the end: for that
// one silence counts from then.
func TestAFullDisruptionBeginsAndEnds(t *testing.T) {
	all, one := []Witness{{Agent: lost}, {Agent: lost}}, []Witness{{Agent: lost}, {Agent: Agent{Heard: true}}}
	for _, tc := range []struct {
		name       string
		hearing    Hearing
		begin, end bool
		waits      string
	}{
		{
			"no agent is heard",
			Hearing{Agent: lost, Witnesses: all},
			true, false,
			"no node's agent is heard, so it is more likely that this service is cut off",
		},
		{
			"and stays so",
			Hearing{Agent: lost, Witnesses: all, Disrupted: true},
			false, false,
			"no node's agent is heard, so it is more likely that this service is cut off",
		},
		{"one that is heard ends it", Hearing{Agent: Agent{Heard: true}, Witnesses: one, Disrupted: true}, false, true, ""},
		{
			"one that is not heard gets the grace once more",
			Hearing{Agent: lost, Witnesses: one, Disrupted: true},
			false, true,
			"its agent may still be heard within the grace",
		},
		{
			"one that may still be heard does not say",
			Hearing{Agent: Agent{}, Witnesses: all},
			false, false,
			"its agent may still be heard within the grace",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.hearing.Grace = grace
			node := newNode(observed(seen(readyUnknown(), -time.Minute, -time.Hour)))
			p := Node(NodeView{Now: now(), Node: node, Hearing: tc.hearing})
			if p.Does(BeginDisruption) != tc.begin || p.Does(EndDisruption) != tc.end || p.WaitsFor != tc.waits {
				t.Errorf("Node = %v, waits for %q", p.Do, p.WaitsFor)
			}
			evictions := Evictions(EvictionView{
				Now: now(), Node: newNode(tainted(since("node.kubernetes.io/unreachable", -time.Hour))),
				Pods: []*schedulingv1.Pod{newPod("p")}, Hearing: tc.hearing,
			})
			if evictions.Does(BeginDisruption) != tc.begin || evictions.Does(EndDisruption) != tc.end || len(evictions.Ask) > 0 {
				t.Errorf("Evictions = %v, asks %v", evictions.Do, evictions.Ask)
			}
		})
	}
}
