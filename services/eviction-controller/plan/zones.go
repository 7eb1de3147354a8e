package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// ZonesView is everything that the states of zones depend on.
type ZonesView struct {
	Now       time.Time     // UTC
	Grace     time.Duration // an agent counts as lost after this silence
	Pause     time.Duration // between two nodes of a zone whose pods are evicted for the silence of their agents
	Witnesses []Witness     // the agents of all nodes
	Disrupted bool          // whether there was a full disruption of all zones at the last decision
	States    map[string]string
	Turns     map[string]Turn
}

// ZonePlan is the state of a zone, and which of its nodes gets the NoExecute taint next.
type ZonePlan struct {
	Zone        string // for people
	State, Was  string
	Lost, Total int
	Rate        float64 // nodes per second; 0 while evictions are stopped
	Reason      string  // for people
	Waiting     []string
	Next        string    // the first of Waiting
	At          time.Time // when it gets the taint; zero while evictions are stopped
	Why         string    // why it is this node, and what it waits for
}

// Zones returns the states of all zones, ordered by their names, and whether all are disrupted, with the reason.
func Zones(v ZonesView) (zones []ZonePlan, disruption bool, reason string) {
	disruption = disrupted(v.Witnesses, v.Grace)
	switch {
	case disruption:
		reason = noHeartbeats + ", so nothing is evicted for that"
	case v.Disrupted:
		reason = "agents send heartbeats again"
	case len(v.Witnesses) == 0:
		reason = "there are no nodes"
	default:
		reason = "a node is ready, or an agent of the control plane sends heartbeats"
	}
	names := map[string]bool{}
	for _, w := range v.Witnesses {
		names[w.Zone] = true
	}
	for _, zone := range slices.Sorted(maps.Keys(names)) {
		zones = append(zones, v.zone(zone, disruption))
	}
	return zones, disruption, reason
}

func (v ZonesView) zone(zone string, disrupted bool) ZonePlan {
	z := healthOf(v.Witnesses, zone, v.Grace)
	wait, stopped := z.pace(v.Pause)
	out := ZonePlan{
		Zone: zoneName(zone), State: z.state, Was: cmp.Or(v.States[zone], Normal), Lost: z.lost, Total: z.total,
		Reason: z.text(zone, v.Pause),
	}
	if stopped = stopped || disrupted; !stopped && wait > 0 {
		out.Rate = float64(time.Second) / float64(wait)
	}
	turn := v.Turns[zone]
	queue := v.queue(zone, turn.Node)
	if len(queue) == 0 {
		return out
	}
	for _, w := range queue {
		out.Waiting = append(out.Waiting, w.Name)
	}
	next := queue[0]
	out.Next = next.Name
	switch until := turn.At.Add(wait); {
	case !next.Agent.Settled(v.Grace):
		out.At, out.Why = v.Now.Add(v.Grace-next.Agent.Silence), maySpeak
	case disrupted:
		out.Why = noHeartbeats
	case stopped:
		out.Why = mostLost
	case turn.Node != "" && turn.Node != out.Next && v.Now.Before(until):
		out.At = until
		out.Why = fmt.Sprintf("it is not ready for longest; %s", comesBefore(turn.Node))
	default:
		out.At, out.Why = v.Now, "it is not ready for longest"
	}
	return out
}

// queue returns the nodes of a zone that wait for the NoExecute taint, in order: see ahead. The node that has its turn
// comes first.
func (v ZonesView) queue(zone, holder string) []Witness {
	var out []Witness
	for _, w := range v.Witnesses {
		if w.Zone == zone && !w.Waits.IsZero() {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b Witness) int {
		if (a.Name == holder) != (b.Name == holder) {
			if a.Name == holder {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Waits.Compare(b.Waits), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Zones returns the view for the states of the zones of given nodes.
func (g Given) Zones() ZonesView {
	v := ZonesView{
		Now: g.Now, Grace: g.Grace, Pause: g.Pause, Disrupted: g.Memory.Disrupted(), States: g.Memory.ZoneStates(),
		Turns: g.Memory.Turns(),
	}
	for _, n := range g.Nodes {
		v.Witnesses = append(v.Witnesses, givenWitness(g.Now, n, g.agent(n), g.Grace))
	}
	return v
}

// agent returns the agent of a given node.
func (g Given) agent(n *nodev1.Node) Agent {
	if a, ok := g.Agents[n.GetMetadata().GetName()]; ok {
		return a
	}
	return givenAgentOf(n, g.Grace)
}
