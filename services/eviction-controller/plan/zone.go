package plan

import (
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// Limits of a partial disruption of a zone, as in Kubernetes.
const (
	leastBad  = 3    // nodes that are lost
	mostBad   = 0.55 // of the nodes of the zone
	largeZone = 50   // nodes; in a larger zone evictions continue at a lower rate
	slowdown  = 10   // factor of the pause between two nodes of such a zone
)

// Reachability is the state of a node's agent, and whether this service receives heartbeats at all. The zero
// Reachability is for a given node: it leaves no doubt.
type Reachability struct {
	Agent Agent
	Grace time.Duration // an agent counts as lost after this silence
	// Witnesses are the agents of all nodes. They may be left out if there was no disruption and the agent is healthy or
	// not settled.
	Witnesses []Witness
	Disrupted bool // whether there was a full disruption at the last decision
	Given     bool // the node is not a live one: it has no agent, and its conditions are taken as they are
}

// disruption decides whether there is a full disruption now, and adds its begin or end to the plan. It is relevant only
// for an agent that is settled and not healthy. At the end of a disruption the grace period of all silent agents
// restarts, and h is updated accordingly.
func (p *Plan) disruption(h *Reachability) bool {
	if len(h.Witnesses) == 0 || !h.Agent.Settled(h.Grace) {
		return false
	}
	now := disrupted(h.Witnesses, h.Grace)
	switch {
	case h.Disrupted && !now:
		p.Do = append(p.Do, Action{Verb: EndDisruption, Reason: "agents send heartbeats again"})
		if !h.Agent.Healthy(h.Grace) {
			h.Agent = Agent{}
		}
	case now && !h.Disrupted:
		p.Do = append(p.Do, Action{Verb: BeginDisruption, Reason: "no node's agent sends heartbeats"})
	}
	return now && !h.Agent.Healthy(h.Grace)
}

// takenOff is how soon to decide again about the pods of a node whose agent is healthy: by then the taint for its
// silence is removed.
const takenOff = time.Second

// Witness is the agent of one node, as evidence of whether this service receives heartbeats at all.
type Witness struct {
	Zone         string // see Zone
	ControlPlane bool
	Agent        Agent
}

// Zone returns the zone that a node is counted in, by its region and zone labels; the nodes without labels form one
// zone.
func Zone(node *nodev1.Node) string {
	region, zone := placement.Domain(node)
	return region + "/" + zone
}

// counting returns the witnesses that count. Control-plane nodes count only if there are no other nodes.
func counting(nodes []Witness) []Witness {
	if slices.ContainsFunc(nodes, func(w Witness) bool { return !w.ControlPlane }) {
		return slices.DeleteFunc(slices.Clone(nodes), func(w Witness) bool { return w.ControlPlane })
	}
	return nodes
}

// disrupted reports a full disruption: of the nodes that count, none is ready. Then it is more likely that this service
// is disconnected than that all nodes failed together, and no pod is evicted. An agent that was silent for half the
// grace period does not count as ready: of nodes that fail together, one is always the first to be lost. An agent whose
// silence has only begun to count does. Source: Kubernetes' node lifecycle controller.
func disrupted(nodes []Witness, grace time.Duration) bool {
	nodes = counting(nodes)
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(w Witness) bool {
		return w.Agent.NotReady == "" && w.Agent.Silence < grace/2
	})
}

// pace returns the time between two nodes of a zone whose pods have to leave for the silence of their agents: pause,
// unless most, but not all, of the zone is lost. Then it is ten times as long in a large zone, and in a small one
// evictions stop: stopped is true.
func pace(nodes []Witness, zone string, grace, pause time.Duration) (wait time.Duration, stopped bool) {
	var total, bad int
	for _, w := range counting(nodes) {
		if w.Zone != zone {
			continue
		}
		total++
		if w.Agent.NotReady != "" || w.Agent.Silence >= grace {
			bad++
		}
	}
	switch {
	case bad < leastBad || bad == total || float64(bad) < mostBad*float64(total):
		return pause, false
	case total > largeZone:
		return slowdown * pause, false
	}
	return 0, true
}

// doubt returns until when no pod is evicted for the silence of a node's agent; zero means that the agent is certainly
// not healthy. disrupted is whether there is a full disruption; see disrupted.
func doubt(now time.Time, a Agent, grace time.Duration, disrupted bool) time.Time {
	switch {
	case a.Healthy(grace):
		return now.Add(takenOff)
	case !a.Settled(grace):
		return now.Add(grace - a.Silence)
	case disrupted:
		return now.Add(grace / 2)
	}
	return time.Time{}
}
