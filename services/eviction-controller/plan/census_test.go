package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"pgregory.net/rapid"
)

// countedHealth is what Census.health returns, counted from all nodes.
func countedHealth(nodes []*Witness, zone string) (lost, total int) {
	workers := slices.ContainsFunc(nodes, func(w *Witness) bool { return !w.ControlPlane })
	for _, w := range nodes {
		if w.Zone != zone || workers && w.ControlPlane {
			continue
		}
		total++
		if w.Agent.NotReady != "" || w.Agent.Silence >= grace {
			lost++
		}
	}
	return lost, total
}

// countedDisrupted is the same for Census.disrupted.
func countedDisrupted(nodes []*Witness) bool {
	workers := slices.ContainsFunc(nodes, func(w *Witness) bool { return !w.ControlPlane })
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(w *Witness) bool {
		return w.Agent.Silence < grace/2 && (w.Agent.NotReady == "" || workers && w.ControlPlane)
	})
}

// countedAhead is the same for Census.ahead.
func countedAhead(nodes []*Witness, zone, name, holder string, since time.Time) (n int, first string) {
	var least *Witness
	for _, w := range nodes {
		before := w.Waits.Before(since) || w.Waits.Equal(since) && w.Name < name
		if w.Zone != zone || w.Waits.IsZero() || w.Name == name || w.Name == holder || !before {
			continue
		}
		if n++; least == nil || compareTurns(w, least) < 0 {
			first, least = w.Name, w
		}
	}
	return n, first
}

// TestACensusIsWhatItsNodesAre has agents come, change and go, and compares the census with a new one, and with what is
// counted from all nodes.
func TestACensusIsWhatItsNodesAre(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	zones := []string{"x", "y"}
	anyWitness := func(t *rapid.T, name string) Witness {
		w := Witness{
			Name: name, Zone: rapid.SampledFrom(zones).Draw(t, "zone"), ControlPlane: rapid.Bool().Draw(t, "control plane"),
			Agent: Agent{
				Silence:  rapid.SampledFrom([]time.Duration{0, grace/2 - 1, grace / 2, grace - 1, grace}).Draw(t, "silence"),
				NotReady: rapid.SampledFrom([]string{"", "disk is full"}).Draw(t, "not ready"),
			},
		}
		if s := rapid.IntRange(0, 3).Draw(t, "waits"); s > 0 {
			w.Waits = now().Add(time.Duration(s) * time.Second)
		}
		return w
	}
	rapid.Check(t, func(t *rapid.T) {
		c, nodes := NewCensus(nil, grace), map[string]*Witness{}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			name := rapid.SampledFrom(names).Draw(t, "node")
			switch w := nodes[name]; {
			case w == nil:
				w := anyWitness(t, name)
				nodes[name] = &w
				c.add(&w)
			case rapid.Bool().Draw(t, "goes"):
				c.remove(w)
				delete(nodes, name)
			default:
				c.change(w, anyWitness(t, name))
			}
		}
		var all []*Witness
		var list []Witness
		for _, name := range names {
			if w := nodes[name]; w != nil {
				all, list = append(all, w), append(list, *w)
			}
		}
		for what, c := range map[string]*Census{"kept": c, "new": NewCensus(list, grace)} {
			if got, want := c.disrupted(), countedDisrupted(all); got != want {
				t.Fatalf("%s: disrupted %v, want %v", what, got, want)
			}
			for _, zone := range append(zones, "none") {
				z := c.health(zone)
				if lost, total := countedHealth(all, zone); z.lost != lost || z.total != total {
					t.Fatalf("%s: zone %s has lost %d of %d, want %d of %d", what, zone, z.lost, z.total, lost, total)
				}
				name, holder := rapid.SampledFrom(names).Draw(t, "self"), rapid.SampledFrom(append(names, "")).Draw(t, "holder")
				since := now().Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "since")) * time.Second)
				n, first := c.ahead(zone, name, holder, since)
				if wantN, want := countedAhead(all, zone, name, holder, since); n != wantN || first != want {
					t.Fatalf("%s: %d come before %s (holder %q) since %v, first %q, want %d, %q", what, n, name, holder, since,
						first, wantN, want)
				}
			}
		}
	})
}

// TestADecisionReadsFewNodes finds out how many waiting nodes a decision about one of them reads, by decisions from
// whose census one node at a time is missing. It depends on the number of nodes only as a binary search does.
func TestADecisionReadsFewNodes(t *testing.T) {
	for _, nodes := range []int{256, 4096} {
		list := make([]*nodev1.Node, nodes)
		witnesses := make([]Witness, nodes)
		for i := range list {
			list[i] = inZone(fmt.Sprintf("n%04d", i), -time.Duration(i+1)*time.Second)
			witnesses[i] = WitnessOf(list[i], lost)
		}
		witnesses = append(witnesses, Witness{Zone: Zone(list[0]), Agent: Agent{Reported: true}})
		c := NewCensus(witnesses, grace)
		decide := func(n *nodev1.Node) (done bool) {
			defer func() { _ = recover() }()
			h := Reachability{Agent: lost, Grace: grace, Census: c}
			p := Node(NodeView{Now: now(), Node: n, Pause: time.Second, Turn: Turn{Node: "n0007"}, Reachability: h})
			Evictions(EvictionView{Now: now(), Node: p.NodeAfter(n), Reachability: h})
			return true
		}
		n := list[nodes/3]
		if !decide(n) {
			t.Fatal("there is no decision")
		}
		reads, queue := 0, c.zones[Zone(n)].queue
		if len(queue) != nodes {
			t.Fatalf("%d of %d nodes wait", len(queue), nodes)
		}
		for i, w := range queue {
			queue[i] = nil
			if !decide(n) {
				reads++
			}
			queue[i] = w
		}
		// Two searches from the same places, the first node, and those after it that do not count.
		if most := bits.Len(uint(nodes)) + 3; reads == 0 || reads > most {
			t.Errorf("of %d nodes a decision reads %d, want at most %d", nodes, reads, most)
		}
	}
}
