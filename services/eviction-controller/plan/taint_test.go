package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"
)

func taint(key, effect string) *nodev1.Taint { return &nodev1.Taint{Key: key, Effect: effect} }

// since returns a NoExecute taint that was set some time from now.
func since(key string, added time.Duration) *nodev1.Taint {
	return &nodev1.Taint{Key: key, Effect: placement.NoExecute, TimeAdded: at(added)}
}

// valued returns one with a value.
func valued(key, value string, added time.Duration) *nodev1.Taint {
	t := since(key, added)
	t.Value = proto.String(value)
	return t
}

func tainted(list ...*nodev1.Taint) func(*nodev1.Node) {
	return func(n *nodev1.Node) { n.Spec.Taints = list }
}

func anyTaints(t *rapid.T) []*nodev1.Taint {
	keys := []string{
		placement.NotReadyTaint, placement.UnreachableTaint, placement.MemoryPressureTaint, placement.UnschedulableTaint,
		"node.alpha.kubernetes.io/notReady", "node.alpha.kubernetes.io/unreachable", "dedicated",
	}
	var out []*nodev1.Taint
	for _, key := range keys {
		for _, effect := range []string{placement.NoSchedule, placement.NoExecute} {
			if rapid.IntRange(0, 3).Draw(t, key+effect) == 0 {
				out = append(out, taint(key, effect))
				if effect == placement.NoExecute && rapid.Bool().Draw(t, "timed") {
					out[len(out)-1].TimeAdded = at(-time.Minute)
				}
			}
		}
	}
	return out
}

func TestTaintsOfANode(t *testing.T) {
	const notReady, unreachable = placement.NotReadyTaint, placement.UnreachableTaint
	unready := Agent{Reported: true, NotReady: "disk is full"}
	well := Agent{Reported: true}
	pressure := Agent{Reported: true, Conditions: []*nodev1.NodeCondition{
		condition("MemoryPressure", "True", "R", ""), condition("DiskPressure", "True", "R", ""),
		condition("PIDPressure", "True", "R", ""),
		condition("NetworkUnavailable", "True", "R", ""), condition("Other", "True", "R", ""),
	}}
	for _, tc := range []struct {
		name string
		view NodeView
		want []*nodev1.Taint
	}{
		{"a healthy node has none", NodeView{Node: newNode(), Reachability: Reachability{Agent: well}}, nil},
		{
			"a node that is not ready takes no pods and has those leave that it has",
			NodeView{Node: newNode(), Reachability: Reachability{Agent: unready}},
			[]*nodev1.Taint{taint(notReady, "NoSchedule"), since(notReady, 0)},
		},
		{
			"so does one without heartbeats",
			NodeView{Node: newNode(), Reachability: Reachability{Agent: lost}},
			[]*nodev1.Taint{taint(unreachable, "NoSchedule"), since(unreachable, 0)},
		},
		{
			"one follows the other at once, with a time of its own",
			NodeView{
				Node:         newNode(tainted(taint(notReady, "NoSchedule"), since(notReady, -time.Hour))),
				Reachability: Reachability{Agent: lost},
			},
			[]*nodev1.Taint{taint(unreachable, "NoSchedule"), since(unreachable, 0)},
		},
		{
			"a taint that stays keeps its time and its place",
			NodeView{
				Node:         newNode(tainted(since(unreachable, -time.Hour), taint("k", "NoSchedule"))),
				Reachability: Reachability{Agent: lost},
			},
			[]*nodev1.Taint{since(unreachable, -time.Hour), taint("k", "NoSchedule"), taint(unreachable, "NoSchedule")},
		},
		{
			"a node that is well again loses ours and keeps those of others, which get a time where it is missing",
			NodeView{
				Node: newNode(tainted(since(unreachable, -time.Hour), taint(unreachable, "PreferNoSchedule"),
					taint("k", "NoExecute"))), Reachability: Reachability{Agent: well},
			},
			[]*nodev1.Taint{taint(unreachable, "PreferNoSchedule"), since("k", 0)},
		},
		{
			"the old spelling is rewritten",
			NodeView{
				Node: newNode(tainted(&nodev1.Taint{
					Key: "node.alpha.kubernetes.io/notReady", Effect: "NoExecute",
					TimeAdded: at(-time.Hour),
				})), Reachability: Reachability{Agent: unready},
			},
			[]*nodev1.Taint{since(notReady, -time.Hour), taint(notReady, "NoSchedule")},
		},
		{
			"pressure keeps pods away, each of its kinds",
			NodeView{Node: newNode(), Reachability: Reachability{Agent: pressure}},
			[]*nodev1.Taint{
				taint(placement.DiskPressureTaint, "NoSchedule"), taint(placement.MemoryPressureTaint, "NoSchedule"),
				taint(placement.NetworkUnavailableTaint, "NoSchedule"), taint(placement.PIDPressureTaint, "NoSchedule"),
			},
		},
		{
			"a node that is held takes no pods",
			NodeView{Node: newNode(annotated(CordonedBy, "alice")), Reachability: Reachability{Agent: well}},
			[]*nodev1.Taint{taint(placement.UnschedulableTaint, "NoSchedule")},
		},
		{
			"in a full disruption no pod has to leave",
			NodeView{
				Node:         newNode(tainted(since(unreachable, -time.Hour))),
				Reachability: Reachability{Agent: lost, Census: NewCensus([]Witness{{Agent: lost}}, grace)},
			},
			[]*nodev1.Taint{taint(unreachable, "NoSchedule")},
		},
		{
			"in doubt about an agent what pods have to do stays as it is: none",
			NodeView{Node: newNode(observed(seen(readyUnknown(), 0, 0))), Reachability: Reachability{Agent: Agent{}}},
			[]*nodev1.Taint{taint(unreachable, "NoSchedule")},
		},
		{
			"in doubt about an agent what pods have to do stays as it is: leave",
			NodeView{
				Node:         newNode(observed(seen(readyUnknown(), 0, 0)), tainted(since(unreachable, -time.Hour))),
				Reachability: Reachability{Agent: Agent{}},
			},
			[]*nodev1.Taint{since(unreachable, -time.Hour), taint(unreachable, "NoSchedule")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now, tc.view.Grace = now(), grace
			if diff := cmp.Diff(tc.want, Node(tc.view).NodeAfter(tc.view.Node).GetSpec().GetTaints(),
				protocmp.Transform()); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTaintsThatOthersWrite(t *testing.T) {
	const unreachable = placement.UnreachableTaint
	for _, tc := range []struct {
		name            string
		old, next, want []*nodev1.Taint
	}{
		{
			"a NoExecute taint gets the time when it was set", nil,
			[]*nodev1.Taint{taint("k", "NoExecute")},
			[]*nodev1.Taint{since("k", 0)},
		},
		{"a time that is given stays", nil, []*nodev1.Taint{since("k", -time.Hour)}, []*nodev1.Taint{since("k", -time.Hour)}},
		{"a time in the future is now", nil, []*nodev1.Taint{since("k", time.Hour)}, []*nodev1.Taint{since("k", 0)}},
		{
			"a time in the future changes nothing",
			[]*nodev1.Taint{since("k", -time.Hour)},
			[]*nodev1.Taint{since("k", time.Hour)},
			[]*nodev1.Taint{since("k", -time.Hour)},
		},
		{
			"one that is written again keeps its time",
			[]*nodev1.Taint{since("k", -time.Hour)},
			[]*nodev1.Taint{taint("k", "NoExecute")},
			[]*nodev1.Taint{since("k", -time.Hour)},
		},
		{
			"another value is another taint, set now",
			[]*nodev1.Taint{valued("k", "a", -time.Hour)},
			[]*nodev1.Taint{{Key: "k", Value: proto.String("b"), Effect: "NoExecute"}},
			[]*nodev1.Taint{valued("k", "b", 0)},
		},
		{
			"also where the time of the former one is written again",
			[]*nodev1.Taint{valued("k", "a", -time.Hour)},
			[]*nodev1.Taint{valued("k", "b", -time.Hour)},
			[]*nodev1.Taint{valued("k", "b", 0)},
		},
		{
			"unless it says when",
			[]*nodev1.Taint{valued("k", "a", -time.Hour)},
			[]*nodev1.Taint{valued("k", "b", -time.Minute)},
			[]*nodev1.Taint{valued("k", "b", -time.Minute)},
		},
		{"others have no time", nil, []*nodev1.Taint{taint("k", "NoSchedule")}, []*nodev1.Taint{taint("k", "NoSchedule")}},
		{
			"others cannot set ours", nil,
			[]*nodev1.Taint{taint(unreachable, "NoExecute"), taint("k", "NoSchedule")},
			[]*nodev1.Taint{taint("k", "NoSchedule")},
		},
		{
			"others cannot remove ours",
			[]*nodev1.Taint{since(unreachable, -time.Hour)},
			nil,
			[]*nodev1.Taint{since(unreachable, -time.Hour)},
		},
		{
			"others cannot change the time of ours",
			[]*nodev1.Taint{since(unreachable, -time.Hour)},
			[]*nodev1.Taint{since(unreachable, 0)},
			[]*nodev1.Taint{since(unreachable, -time.Hour)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := newNode(tainted(tc.next...))
			Taint(newNode(tainted(tc.old...)), next, now())
			if diff := cmp.Diff(tc.want, next.Spec.Taints, protocmp.Transform()); diff != "" {
				t.Errorf("taints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDisrupted(t *testing.T) {
	well, quiet, lost, unready := Agent{Reported: true}, Agent{Reported: true, Silence: grace / 2}, Agent{Silence: grace},
		Agent{Reported: true, NotReady: "disk is full"}
	worker := func(a Agent) Witness { return Witness{Agent: a} }
	master := func(a Agent) Witness { return Witness{Agent: a, ControlPlane: true} }
	for _, tc := range []struct {
		name  string
		nodes []Witness
		want  bool
	}{
		{"no nodes say nothing", nil, false},
		{"one that speaks is enough", []Witness{worker(lost), worker(lost), worker(well)}, false},
		{"all are silent", []Witness{worker(lost), worker(lost), worker(lost)}, true},
		{"one that was silent for long is no witness", []Witness{worker(lost), worker(quiet)}, true},
		{"one that may still send a heartbeat in time is", []Witness{worker(lost), worker(Agent{})}, false},
		{"one that says that it is not ready is none", []Witness{worker(lost), worker(unready)}, true},
		{"a control plane that sends heartbeats is a witness", []Witness{worker(lost), master(well)}, false},
		{"also if it is not ready", []Witness{worker(lost), master(unready)}, false},
		{"one that is silent for long is none", []Witness{worker(lost), master(quiet)}, true},
		{"alone it counts like any node", []Witness{master(lost), master(unready)}, true},
		{"alone it does", []Witness{master(lost), master(well)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.nodes)
			if got := NewCensus(tc.nodes, grace).disrupted(); got != tc.want {
				t.Errorf("Disrupted = %v, want %v", got, tc.want)
			}
			if diff := cmp.Diff(before, tc.nodes); diff != "" {
				t.Error("Disrupted modified its view")
			}
		})
	}
}

// TestOursAreOursAlone holds for any node and any plan: what others set stays, and a NoExecute taint has a time that
// never moves.
func TestOursAreOursAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := newNode(tainted(anyTaints(t)...))
		before := proto.Clone(node).(*nodev1.Node)
		v := NodeView{Now: now(), Node: node, Reachability: anyHearing(t)}
		after := map[mark]*nodev1.Taint{}
		for _, tt := range Node(v).NodeAfter(node).GetSpec().GetTaints() {
			if after[markOf(tt)] != nil {
				t.Fatalf("twice: %v", tt)
			}
			after[markOf(tt)] = tt
			if (tt.GetEffect() == placement.NoExecute) != (tt.GetTimeAdded() != nil) {
				t.Fatalf("time of %v", tt)
			}
		}
		if !proto.Equal(before, node) {
			t.Fatal("Node modified its view")
		}
		for _, tt := range before.Spec.Taints {
			m := markOf(tt)
			if got := after[m]; got == nil && !m.own() {
				t.Fatalf("%v of others is gone", tt)
			} else if got != nil && tt.GetKey() == m.key && tt.TimeAdded != nil && !proto.Equal(got.TimeAdded, tt.TimeAdded) &&
				!twice(before, m) {
				t.Fatalf("the time of %v moved to %v", tt, got.TimeAdded)
			}
		}
	})
}

func anyHearing(t *rapid.T) Reachability {
	h := Reachability{Grace: grace, Disrupted: rapid.Bool().Draw(t, "disrupted before"), Agent: Agent{
		Reported: rapid.Bool().Draw(t, "reported"),
		Silence:  time.Duration(rapid.Int64Range(0, int64(2*grace)).Draw(t, "silence")),
		NotReady: rapid.SampledFrom([]string{"", "disk is full"}).Draw(t, "not ready"),
	}}
	switch rapid.IntRange(0, 2).Draw(t, "witnesses") {
	case 1:
		h.Census = NewCensus([]Witness{{Agent: lost}}, grace)
	case 2:
		h.Census = NewCensus([]Witness{{Agent: Agent{Reported: true}}}, grace)
	}
	return h
}

// twice reports whether a node has a taint in both spellings.
func twice(n *nodev1.Node, m mark) bool {
	count := 0
	for _, t := range n.Spec.Taints {
		if markOf(t) == m {
			count++
		}
	}
	return count > 1
}
