package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/testing/protocmp"
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
		{"exactly 55 % is much", 9, 11, 0, true},
		{"and 55 % of a hundred", 45, 55, 100 * time.Second, false},
		{"54 % is not", 46, 54, 10 * time.Second, false},
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
			z := NewCensus(nodes, grace).health("z")
			if wait, stopped := z.pace(10 * time.Second); wait != tc.wait || stopped != tc.stopped {
				t.Errorf("%v paces %v, %v, want %v, %v", z, wait, stopped, tc.wait, tc.stopped)
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
	all := NewCensus([]Witness{{Agent: lost}, {Agent: lost}}, grace)
	one := NewCensus([]Witness{{Agent: lost}, {Agent: Agent{Reported: true}}}, grace)
	for _, tc := range []struct {
		name         string
		reachability Reachability
		begin, end   bool
		waits        string
	}{
		{
			"no agent sends heartbeats",
			Reachability{Agent: lost, Census: all},
			true, false,
			"no node's agent sends heartbeats, so it is more likely that this service is disconnected",
		},
		{
			"and stays so",
			Reachability{Agent: lost, Census: all, Disrupted: true},
			false, false,
			"no node's agent sends heartbeats, so it is more likely that this service is disconnected",
		},
		{"a heartbeat ends it", Reachability{Agent: Agent{Reported: true}, Census: one, Disrupted: true}, false, true, ""},
		{
			"the grace of a silent agent restarts",
			Reachability{Agent: lost, Census: one, Disrupted: true},
			false, true,
			"its agent may still send a heartbeat within the grace period",
		},
		{
			"one that may still send a heartbeat does not count",
			Reachability{Agent: Agent{}, Census: all},
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

// zoneOf returns the witnesses of a zone: so many healthy nodes, and lost ones by name that became so one second after
// the other.
func zoneOf(well int, names ...string) []Witness {
	var nodes []Witness
	for range well {
		nodes = append(nodes, Witness{Zone: "/", Agent: Agent{Reported: true}})
	}
	for i, name := range names {
		nodes = append(nodes, Witness{
			Zone: "/", Agent: lost, Name: name, Waits: at(time.Duration(i-len(names)) * time.Second).AsTime(),
		})
	}
	return nodes
}

func TestEvictionsStopForNodesThatWereTaintedBeforeTheirZoneWasDisrupted(t *testing.T) {
	node := newNode(tainted(since("node.kubernetes.io/unreachable", -time.Hour), since("k", -time.Hour)))
	v := EvictionView{
		Now: now(), Node: node, Reachability: Reachability{
			Grace: grace, Agent: lost, Census: NewCensus(zoneOf(2, "a", "b", "c"), grace),
		},
		Pods: []*schedulingv1.Pod{
			newPod("p", tolerating("k", -1)), newPod("q", tolerating("node.kubernetes.io/unreachable", 60), tolerating("k", -1)),
			newPod("r", tolerating("node.kubernetes.io/unreachable", -1)),
		},
	}
	var got []string
	for _, e := range Deadlines(v) {
		got = append(got, e.Pod.Metadata.Name+" "+e.Verdict+" "+e.Reason)
	}
	const stopped = ", and evictions are stopped since most nodes of its zone are lost"
	if diff := cmp.Diff([]string{
		"r Evict it does not tolerate the taint k:NoExecute",
		"p Wait it does not tolerate the taint node.kubernetes.io/unreachable:NoExecute" + stopped,
		"q Wait it tolerates the taint node.kubernetes.io/unreachable:NoExecute for 60 s" + stopped,
	}, got); diff != "" {
		t.Errorf("in a stopped zone (-want +got):\n%s", diff)
	}
	v.Census = NewCensus(zoneOf(3, "a", "b"), grace)
	if p := Evictions(v); len(p.Ask) != 3 {
		t.Errorf("once the zone has recovered, %d pods are evicted", len(p.Ask))
	}
}

func TestANodeReportsItsZoneItsPlaceAndItsNextEviction(t *testing.T) {
	unknown := observed(seen(readyUnknown(), -time.Second, -time.Hour))
	silence := since("node.kubernetes.io/unreachable", -10*time.Second)
	pods := []*schedulingv1.Pod{
		newPod("p", tolerating("node.kubernetes.io/unreachable", 300)),
		newPod("q", tolerating("node.kubernetes.io/unreachable", 60)),
		newPod("r", tolerating("node.kubernetes.io/unreachable", -1)),
	}
	for _, tc := range []struct {
		name  string
		node  *nodev1.Node
		zone  []Witness
		last  Turn
		state string // at the last decision
		want  *nodev1.NodeEvictions
		does  string
		waits string
	}{
		{
			name: "a node that waits after two others", node: newNode(unknown), zone: zoneOf(9, "y", "x", "a", "b"),
			last: Turn{Node: "z", At: now().Add(-4 * time.Second)},
			want: &nodev1.NodeEvictions{
				ZoneState: Normal, NodesPerSecond: 0.1, QueuePosition: 3,
				TurnTime: at(26 * time.Second),
			},
			waits: "node z of its zone comes first",
		},
		{
			name: "a turn is taken in the order of the queue", node: newNode(unknown), zone: zoneOf(9, "y", "x", "a"),
			last:  Turn{Node: "z", At: now().Add(-time.Minute)},
			want:  &nodev1.NodeEvictions{ZoneState: Normal, NodesPerSecond: 0.1, QueuePosition: 3},
			waits: "node y of its zone comes first",
		},
		{
			name: "a node that is tainted", node: newNode(unknown, tainted(silence)), zone: zoneOf(9, "a"),
			want: &nodev1.NodeEvictions{ZoneState: Normal, NodesPerSecond: 0.1, NextDeadline: at(50 * time.Second)},
		},
		{
			name: "a node of a zone that is disrupted", node: newNode(unknown, tainted(silence)), zone: zoneOf(2, "a", "b", "c"),
			want: &nodev1.NodeEvictions{ZoneState: PartialDisruption},
			does: `zone "" is in state PartialDisruption: 3 of its 5 nodes are lost; evictions from them are stopped`,
		},
		{
			name: "one of a zone that is known to be", node: newNode(unknown), zone: zoneOf(2, "a", "b", "c"),
			state: PartialDisruption, want: &nodev1.NodeEvictions{ZoneState: PartialDisruption, QueuePosition: 2},
			waits: "most nodes of its zone are lost",
		},
		{
			name: "one of a large zone", node: newNode(unknown, tainted(silence)), zone: zoneOf(1, make([]string, 60)...),
			state: PartialDisruption,
			want:  &nodev1.NodeEvictions{ZoneState: PartialDisruption, NodesPerSecond: 0.01, NextDeadline: at(50 * time.Second)},
		},
		{
			name: "a zone that has recovered", node: newNode(unknown, tainted(silence)), zone: zoneOf(4, "a", "b"),
			state: PartialDisruption,
			want:  &nodev1.NodeEvictions{ZoneState: Normal, NodesPerSecond: 0.1, NextDeadline: at(50 * time.Second)},
			does:  `zone "" is in state Normal: 2 of its 6 nodes are lost`,
		},
		{
			name: "the only worker is lost and a control-plane agent sends heartbeats", node: newNode(unknown, tainted(silence)),
			zone: append(zoneOf(0, "a"), Witness{Zone: "/", ControlPlane: true, Agent: Agent{Reported: true}}),
			want: &nodev1.NodeEvictions{ZoneState: FullDisruption, NodesPerSecond: 0.1, NextDeadline: at(50 * time.Second)},
			does: `zone "" is in state FullDisruption: 1 of its 1 nodes are lost`,
		},
		{
			name: "every node is lost", node: newNode(unknown, tainted(silence)), zone: zoneOf(0, "a"), state: FullDisruption,
			want:  &nodev1.NodeEvictions{ZoneState: FullDisruption, QueuePosition: 1},
			waits: "no node's agent sends heartbeats, so it is more likely that this service is disconnected",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := Node(NodeView{
				Now: now(), Node: tc.node, Pods: pods, Known: true, Turn: tc.last, Pause: 10 * time.Second,
				Reachability: Reachability{Grace: grace, Agent: lost, Census: NewCensus(tc.zone, grace), ZoneState: tc.state},
			})
			if diff := cmp.Diff(tc.want, p.NodeAfter(tc.node).Status.Evictions, protocmp.Transform()); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			does := ""
			for _, a := range p.Do {
				if a.Verb == ChangeZone {
					does = a.Reason
				}
			}
			if does != tc.does || p.HeldReason(TaintNode) != tc.waits {
				t.Errorf("reports %q, waits for %q", does, p.HeldReason(TaintNode))
			}
			if next := tc.want.NextDeadline; next != nil && p.Wake.After(next.AsTime()) {
				t.Errorf("wakes at %v", p.Wake)
			}
		})
	}
	ready := newNode(observed(seen(readyTrue(), -time.Hour, -time.Hour)))
	ready.Status.Evictions = &nodev1.NodeEvictions{ZoneState: Normal}
	p := Node(NodeView{
		Now: now(), Node: ready, Pods: pods, Known: true, Reachability: Reachability{
			Grace: grace, Agent: Agent{Reported: true},
		},
	})
	if e := p.NodeAfter(ready).Status.Evictions; e != nil {
		t.Errorf("a ready node reports %v", e)
	}
}
