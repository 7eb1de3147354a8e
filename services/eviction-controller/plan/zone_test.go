package plan

import (
	"testing"
	"time"
)

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
			nodes := []Witness{{Zone: "other", Agent: Agent{Silence: grace}}, {Zone: "z", ControlPlane: true, Agent: Agent{Silence: grace}}}
			for range tc.well {
				nodes = append(nodes, Witness{Zone: "z", Agent: Agent{Heard: true}})
			}
			for range tc.lost {
				nodes = append(nodes, Witness{Zone: "z", Agent: Agent{Silence: grace}})
			}
			if wait, stopped := Pace(nodes, "z", grace, 10*time.Second); wait != tc.wait || stopped != tc.stopped {
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
		if got := Doubt(now(), tc.agent, grace, func() bool { return tc.disrupted }); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", tc.name, got, want)
		}
	}
}

func TestANodeThatWaitsForOthersOfItsZone(t *testing.T) {
	v := NodeView{Now: now(), Grace: grace, Node: newNode(), Agent: Agent{Silence: grace}}
	if p := Node(v); !p.Accuses {
		t.Error("the first taint against pods is not told")
	}
	v.Held = now().Add(time.Second)
	p := Node(v)
	if p.Accuses || len(p.Taints) != 1 || p.Taints[0].GetEffect() != "NoSchedule" || !p.Wake.Equal(v.Held) {
		t.Errorf("while it waits: %v, wake at %v", p.Taints, p.Wake)
	}
	v.Node = newNode(tainted(since("node.kubernetes.io/unreachable", -time.Hour)))
	if p := Node(v); p.Accuses || len(p.Taints) != 2 || !p.Taints[0].GetTimeAdded().AsTime().Equal(now().Add(-time.Hour)) {
		t.Errorf("what a node has stays: %v", p.Taints)
	}
	v.Agent = Agent{Heard: true, NotReady: "ill"}
	if p := Node(v); p.Accuses || len(p.Taints) != 2 || p.Taints[1].GetKey() != "node.kubernetes.io/not-ready" || p.Taints[1].GetEffect() != "NoExecute" {
		t.Errorf("one taint does not follow the other: %v", p.Taints)
	}
}
