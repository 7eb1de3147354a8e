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
	Census    *Census       // of the agents of all nodes
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
	disruption = v.Census.disrupted()
	switch {
	case disruption:
		reason = noHeartbeats + ", so nothing is evicted for that"
	case v.Disrupted:
		reason = "agents send heartbeats again"
	case v.Census.empty():
		reason = "there are no nodes"
	default:
		reason = "a node is ready, or an agent of the control plane sends heartbeats"
	}
	if v.Census == nil {
		return nil, disruption, reason
	}
	for _, zone := range slices.Sorted(maps.Keys(v.Census.zones)) {
		zones = append(zones, v.zone(zone, disruption))
	}
	return zones, disruption, reason
}

func (v ZonesView) zone(zone string, disrupted bool) ZonePlan {
	z := v.Census.health(zone)
	wait, stopped := z.pace(v.Pause)
	out := ZonePlan{
		Zone: zoneName(zone), State: z.state, Was: cmp.Or(v.States[zone], Normal), Lost: z.lost, Total: z.total,
		Reason: z.text(zone, v.Pause),
	}
	if stopped = stopped || disrupted; !stopped && wait > 0 {
		out.Rate = float64(time.Second) / float64(wait)
	}
	turn := v.Turns[zone]
	queue := v.Census.zones[zone].from(turn.Node)
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

// from returns the queue of a zone, with the node that has its turn first.
func (z *zoneCensus) from(holder string) []*Witness {
	w := z.waiting[holder]
	if w == nil {
		return z.queue
	}
	i := slices.Index(z.queue, w)
	return slices.Concat([]*Witness{w}, z.queue[:i], z.queue[i+1:])
}

// Zones returns the view for the states of the zones of given nodes.
func (g Given) Zones() ZonesView {
	v := ZonesView{
		Now: g.Now, Grace: g.Grace, Pause: g.Pause, Disrupted: g.Memory.Disrupted(), States: g.Memory.ZoneStates(),
		Turns: g.Memory.Turns(),
	}
	nodes := make([]Witness, len(g.Nodes))
	for i, n := range g.Nodes {
		nodes[i] = givenWitness(g.Now, n, g.agent(n), g.Grace)
	}
	v.Census = NewCensus(nodes, g.Grace)
	return v
}

// agent returns the agent of a given node.
func (g Given) agent(n *nodev1.Node) Agent {
	if a, ok := g.Agents[n.GetMetadata().GetName()]; ok {
		return a
	}
	return givenAgentOf(n, g.Grace)
}
