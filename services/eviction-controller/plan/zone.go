package plan

import (
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// When a zone is partly disrupted, as in Kubernetes.
const (
	leastBad  = 3    // nodes that are lost
	mostBad   = 0.55 // of the nodes of the zone
	largeZone = 50   // nodes; in a larger zone evictions go on, slowly
	slowdown  = 10   // times as long between two nodes of such a zone
)

// Hearing is what is known of a node's agent, and of whether agents can be heard at all. The zero Hearing is of a node
// that is given: it leaves no doubt.
type Hearing struct {
	Agent Agent
	Grace time.Duration // silence up to here means nothing
	// Witnesses are what the agents of all nodes say; they may be left out while the agent is healthy or not settled, and
	// there was no disruption.
	Witnesses []Witness
	Disrupted bool // whether there was a full disruption at the last decision
	Given     bool // the node is no live one: its agent cannot be heard, and what its conditions say counts
}

// disruption decides whether there is a full disruption now, and adds its begin or end to the plan. It matters only for
// an agent that is not healthy though it is known how it is. At the end of a disruption all silent agents get the
// grace once more: h is then as it will be.
func (p *Plan) disruption(h *Hearing) bool {
	if len(h.Witnesses) == 0 || !h.Agent.Settled(h.Grace) {
		return false
	}
	now := disrupted(h.Witnesses, h.Grace)
	switch {
	case h.Disrupted && !now:
		p.Do = append(p.Do, Action{Verb: EndDisruption, Reason: "agents are heard again"})
		if !h.Agent.Healthy(h.Grace) {
			h.Agent = Agent{}
		}
	case now && !h.Disrupted:
		p.Do = append(p.Do, Action{Verb: BeginDisruption, Reason: "no node's agent is heard"})
	}
	return now && !h.Agent.Healthy(h.Grace)
}

// takenOff is how soon to look again at the pods of a node whose agent is well: by then the taint that speaks against
// it is gone.
const takenOff = time.Second

// Witness is what a node's agent says about whether agents can be heard at all.
type Witness struct {
	Zone         string // see Zone
	ControlPlane bool
	Agent        Agent
}

// Zone returns the zone in which a node counts, by its region and zone; nodes that say neither are a zone of their own.
func Zone(node *nodev1.Node) string {
	region, zone := placement.Domain(node)
	return region + "/" + zone
}

// counting returns the witnesses that count: nodes of the control plane do only where there are no others.
func counting(nodes []Witness) []Witness {
	if slices.ContainsFunc(nodes, func(w Witness) bool { return !w.ControlPlane }) {
		return slices.DeleteFunc(slices.Clone(nodes), func(w Witness) bool { return w.ControlPlane })
	}
	return nodes
}

// disrupted reports a full disruption: of the nodes that count, none is ready. Then it is more likely that this service
// hears nobody than that all nodes died at once, and no pod is evicted for it. Nodes of the control plane count only
// where there are no others. An agent that was silent for half the grace is no witness any more: of nodes that fall
// silent together one is always the first to be lost. One that may still be heard in time is. Source: Kubernetes' node
// lifecycle controller.
func disrupted(nodes []Witness, grace time.Duration) bool {
	nodes = counting(nodes)
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(w Witness) bool {
		return w.Agent.NotReady == "" && w.Agent.Silence < grace/2
	})
}

// pace returns how long the nodes of a zone wait for one another before their pods have to leave because of their
// silence: pause, unless much of the zone is lost, while some of it is not. Then it is ten times as long in a large
// zone, and in a small one nobody has to leave at all: stopped is true.
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

// doubt returns until when no pod is evicted for the silence of a node's agent; zero means that there is no doubt about
// the agent. disrupted is whether there is a full disruption; see disrupted.
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
