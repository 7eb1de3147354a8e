package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/placement"
)

// Limits of a partial disruption of a zone, as in Kubernetes.
const (
	leastBad  = 3  // nodes that are lost
	mostBad   = 55 // percent of the nodes of the zone, from which on it is disrupted
	largeZone = 50 // nodes; in a larger zone evictions continue at a lower rate
	slowdown  = 10 // factor of the pause between two nodes of such a zone
)

// States of a zone, as in Kubernetes.
const (
	Normal            = "Normal"
	PartialDisruption = "PartialDisruption"
	FullDisruption    = "FullDisruption"
)

const (
	// mostQueue is the largest place in a zone's queue that is recorded. Each turn moves all places, so it bounds the
	// writes of nodes at each turn.
	mostQueue = 100
	// comesFirst is how soon a node decides again whose turn it would be if the nodes before it had taken theirs.
	comesFirst = 200 * time.Millisecond
)

// What holds back the NoExecute taint of a node, for people.
const (
	noHeartbeats = "no node's agent sends heartbeats"
	mostLost     = "most nodes of its zone are lost"
	maySpeak     = "its agent may still send a heartbeat within the grace period"
)

func comesBefore(node string) string { return fmt.Sprintf("node %s of its zone comes first", node) }

// Reachability is the state of a node's agent, and whether this service receives heartbeats at all. The zero
// Reachability is for a given node: it leaves no doubt.
type Reachability struct {
	Agent Agent
	Grace time.Duration // an agent counts as lost after this silence
	// Census has the agents of all nodes. It may be left out if there was no disruption and the agent is healthy or not
	// settled.
	Census    *Census
	Disrupted bool   // whether there was a full disruption of all zones at the last decision
	ZoneState string // state of the node's zone at the last decision; empty means Normal
	Given     bool   // the node is not a live one: it has no agent, and its conditions are taken as they are
}

// NeedsCensus reports whether a decision depends on the agents of all nodes, given the state of the node's own.
func (h Reachability) NeedsCensus() bool {
	if h.Agent.Healthy(h.Grace) {
		// It may be the first to send a heartbeat again, or its zone may have recovered with it.
		return h.Disrupted || cmp.Or(h.ZoneState, Normal) != Normal
	}
	return h.Agent.Settled(h.Grace)
}

// disruption decides whether there is a full disruption now, and adds its begin or end to the plan. It is relevant only
// for an agent that is settled and not healthy. At the end of a disruption the grace period of all silent agents
// restarts, and h is updated accordingly.
func (p *Plan) disruption(h *Reachability) bool {
	if h.Census.empty() || !h.Agent.Settled(h.Grace) {
		return false
	}
	now := h.Census.disrupted()
	switch {
	case h.Disrupted && !now:
		p.Do = append(p.Do, Action{Verb: EndDisruption, Reason: "agents send heartbeats again"})
		if !h.Agent.Healthy(h.Grace) {
			h.Agent = Agent{}
		}
	case now && !h.Disrupted:
		p.Do = append(p.Do, Action{Verb: BeginDisruption, Reason: noHeartbeats})
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

	Name  string
	Waits time.Time // since when the node is not ready, while it has no NoExecute taint for that; zero otherwise
}

// WitnessOf returns the agent of a node as a witness.
func WitnessOf(node *nodev1.Node, agent Agent) Witness {
	w := Witness{Zone: Zone(node), ControlPlane: ControlPlane(node), Agent: agent, Name: node.GetMetadata().GetName()}
	ready := find(node.GetStatus().GetConditions(), Ready)
	if ready != nil && ready.GetStatus() != "True" && !accused(node) {
		w.Waits = ready.GetLastTransitionTime().AsTime()
	}
	return w
}

// givenWitness returns the agent of a given node as a witness: as it is after the Ready condition of the node follows
// it.
func givenWitness(now time.Time, node *nodev1.Node, agent Agent, grace time.Duration) Witness {
	next := &nodev1.Node{
		Metadata: node.GetMetadata(), Spec: node.GetSpec(),
		Status: &nodev1.NodeStatus{
			Conditions: conditions(NodeView{Now: now, Node: node, Reachability: Reachability{Agent: agent, Grace: grace}}),
		},
	}
	return WitnessOf(next, agent)
}

// givenAgentOf returns the agent of a given node as the node's Ready condition shows it.
func givenAgentOf(node *nodev1.Node, grace time.Duration) Agent {
	switch ready := find(node.GetStatus().GetConditions(), Ready); ready.GetStatus() {
	case "False":
		return Agent{Reported: true, NotReady: cmp.Or(ready.GetMessage(), ready.GetReason(), "the agent gives no reason")}
	case "Unknown":
		return Agent{Silence: grace}
	}
	return Agent{Reported: true}
}

// Zone returns the zone that a node is counted in, by its region and zone labels; the nodes without labels form one
// zone.
func Zone(node *nodev1.Node) string {
	region, zone := placement.Domain(node)
	return region + "/" + zone
}

// zoneHealth is the state of a zone.
type zoneHealth struct {
	state       string
	lost, total int // nodes that count
}

// pace returns the time between two nodes of the zone whose pods have to leave for the silence of their agents: pause,
// unless most, but not all, of the zone is lost. Then it is ten times as long in a large zone, and in a small one
// evictions stop: stopped is true.
func (z zoneHealth) pace(pause time.Duration) (wait time.Duration, stopped bool) {
	switch {
	case z.state != PartialDisruption:
		return pause, false
	case z.total > largeZone:
		return slowdown * pause, false
	}
	return 0, true
}

// text describes the state of a zone for people.
func (z zoneHealth) text(zone string, pause time.Duration) string {
	effect := ""
	switch wait, stopped := z.pace(pause); {
	case stopped:
		effect = "; evictions from them are stopped"
	case z.state == PartialDisruption:
		effect = fmt.Sprintf("; one node in %v has to be left", wait)
	}
	return fmt.Sprintf("zone %q is in state %s: %d of its %d nodes are lost%s", zoneName(zone), z.state, z.lost, z.total,
		effect)
}

// zoneName returns a zone for people: see NodeEvictions.zone.
func zoneName(zone string) string { return strings.Trim(zone, "/") }

// doubt returns until when no pod is evicted for the silence of a node's agent; zero means that the agent is certainly
// not healthy. disrupted is whether there is a full disruption; see Census.disrupted.
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
