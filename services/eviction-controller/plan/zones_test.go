package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"pgregory.net/rapid"
)

// inZone returns a node of zone z that is not ready since a time; 0 means that it is ready.
func inZone(name string, since time.Duration) *nodev1.Node {
	n := newNode(func(n *nodev1.Node) { n.Metadata.Name, n.Metadata.Labels["topology.kubernetes.io/zone"] = name, "z" })
	n.Status.Conditions = []*nodev1.NodeCondition{readyTrue()}
	if since != 0 {
		n.Status.Conditions[0] = &nodev1.NodeCondition{Type: Ready, Status: "Unknown", LastTransitionTime: at(since)}
	}
	return n
}

func TestZones(t *testing.T) {
	given := func(turn Turn, nodes ...*nodev1.Node) ZonesView {
		m := NewMemory()
		m.Done(Action{Verb: TakeTurn, Zone: "/z", Turn: turn})
		return Given{Now: now(), Grace: grace, Pause: 10 * time.Second, Nodes: nodes, Memory: m}.Zones()
	}
	for _, tc := range []struct {
		name string
		view ZonesView
		want ZonePlan
	}{
		{
			"the node that is not ready for longest comes first, at once",
			given(Turn{}, inZone("a", 0), inZone("b", -time.Minute), inZone("c", -2*time.Minute)),
			ZonePlan{
				State: Normal, Lost: 2, Total: 3, Rate: 0.1, Waiting: []string{"c", "b"}, Next: "c", At: now(),
				Why: "it is not ready for longest",
			},
		},
		{
			"after the pause that another node began",
			given(Turn{Node: "x", At: now().Add(-4 * time.Second)}, inZone("a", 0), inZone("b", -time.Minute)),
			ZonePlan{
				State: Normal, Lost: 1, Total: 2, Rate: 0.1, Waiting: []string{"b"}, Next: "b", At: now().Add(6 * time.Second),
				Why: "it is not ready for longest; node x of its zone comes first",
			},
		},
		{
			"in a small zone of which most is lost, none",
			given(Turn{}, inZone("a", 0), inZone("b", -time.Minute), inZone("c", -time.Minute), inZone("d", -time.Minute)),
			ZonePlan{
				State: PartialDisruption, Lost: 3, Total: 4, Waiting: []string{"b", "c", "d"}, Next: "b",
				Why: "most nodes of its zone are lost",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			zones, disrupted, _ := Zones(tc.view)
			if len(zones) != 1 || disrupted {
				t.Fatalf("%v, disrupted %v", zones, disrupted)
			}
			got := zones[0]
			got.Reason = ""
			tc.want.Zone, tc.want.Was = "z", Normal
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestZonesOfWhichNoNodeIsReady(t *testing.T) {
	v := Given{
		Now: now(), Grace: grace, Pause: time.Second, Nodes: []*nodev1.Node{inZone("a", -time.Minute)}, Memory: NewMemory(),
	}.Zones()
	zones, disrupted, why := Zones(v)
	if !disrupted || zones[0].Rate != 0 || !zones[0].At.IsZero() || zones[0].State != FullDisruption {
		t.Errorf("%v, %v, %s", zones, disrupted, why)
	}
}

// The agent of a given node decides, and not what the node says: it counts as lost from now on.
func TestAGivenAgentIsSilentAlthoughItsNodeIsReady(t *testing.T) {
	v := Given{
		Now: now(), Grace: grace, Pause: time.Second, Nodes: []*nodev1.Node{inZone("a", 0), inZone("b", 0)},
		Agents: map[string]Agent{"b": {Reported: true, Silence: grace}}, Memory: NewMemory(),
	}.Zones()
	if zones, _, _ := Zones(v); zones[0].Next != "b" || zones[0].Lost != 1 {
		t.Errorf("%v", zones)
	}
}

// What Zones says about the next node is what Node decides: that node takes its turn, or is held back as it says, and
// no other node of its zone takes a turn.
func TestZonesSayWhatNodesDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []*nodev1.Node
		for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
			since := time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * -time.Minute
			nodes = append(nodes, inZone(fmt.Sprint("n", i), since))
		}
		m := NewMemory()
		if rapid.Bool().Draw(t, "turn") {
			m.Done(Action{Verb: TakeTurn, Zone: "/z", Turn: Turn{
				Node: fmt.Sprint("n", rapid.IntRange(0, 9).Draw(t, "holder")),
				At:   now().Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "ago")) * time.Second),
			}})
		}
		g := Given{Now: now(), Grace: grace, Pause: 10 * time.Second, Nodes: nodes, Memory: m}
		v := g.Zones()
		zones, disrupted, _ := Zones(v)
		z := zones[0]
		for _, n := range nodes {
			name := n.GetMetadata().GetName()
			p := Node(NodeView{
				Now: now(), Node: n, Turn: m.Turn("/z"), Pause: g.Pause,
				Reachability: Reachability{Agent: givenAgentOf(n, grace), Grace: grace, Census: v.Census},
			})
			tainted := slices.ContainsFunc(p.NodeAfter(n).GetSpec().GetTaints(), func(t *nodev1.Taint) bool {
				return markOf(t).silence()
			})
			// The node that had its turn last keeps it, if it is lost again, and the pause may be over for the next one as well.
			if turn := m.Turn("/z"); z.Next == turn.Node && len(z.Waiting) > 1 && name == z.Waiting[1] &&
				!now().Before(turn.At.Add(g.Pause)) {
				continue
			}
			if want := name == z.Next && z.At.Equal(now()); tainted != want {
				t.Fatalf("node %s gets the NoExecute taint: %v; zone %+v, disrupted %v", name, tainted, z, disrupted)
			}
			if held := p.HeldReason(TaintNode); slices.Contains(z.Waiting, name) == (held == "" && !tainted) {
				t.Fatalf("node %s is held back for %q; zone %+v", name, held, z)
			}
			if name == z.Next && !z.At.IsZero() && z.At.After(now()) && !p.Wake.Equal(z.At) {
				t.Fatalf("node %s is decided again at %v; zone %+v", name, p.Wake, z)
			}
		}
	})
}
