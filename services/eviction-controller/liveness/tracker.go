package liveness

import (
	"sync"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Tracker keeps the last heartbeat of each agent. Make one with New; it is safe for concurrent use.
type Tracker struct {
	clock *Awake
	grace time.Duration

	mu      sync.Mutex
	leads   bool
	since   time.Duration // the silence of agents without a heartbeat counts from here
	renewed time.Duration // or from here, if it is later: they get a new grace period
	agents  map[string]agent
	changed func(node string)
}

type agent struct {
	uid        string // of its node; known is false until the node was met
	known      bool
	met        time.Duration // when the node was met
	beats      bool          // false until the first heartbeat
	lastBeat   time.Duration
	bootID     string
	notReady   string
	conditions []*nodev1.NodeCondition
}

// settling is for how long a process evicts no pods after a standstill: in that time it learns whether it still leads,
// and what changed.
const settling = 8 * time.Second

// New returns a tracker that does not lead. clock counts the time in which this process ran; an agent counts as lost
// after grace without a heartbeat.
func New(clock *Awake, grace time.Duration) *Tracker {
	return &Tracker{clock: clock, grace: grace, agents: map[string]agent{}}
}

// Lead drops all state and accepts heartbeats; the grace period of every node restarts. changed is called, without a
// lock held, with the name of each node whose agent reports a change. The returned function ends the leadership.
func (t *Tracker) Lead(changed func(node string)) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leads, t.since, t.renewed, t.changed = true, t.clock.Now(), 0, changed
	clear(t.agents)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.leads, t.changed = false, nil
	}
}

// Beat records a heartbeat. It reports false if this process does not lead: the agent must then connect to the leader.
func (t *Tracker) Beat(r *nodev1.HeartbeatRequest) bool {
	t.mu.Lock()
	if !t.leads {
		t.mu.Unlock()
		return false
	}
	now, resumed := t.clock.read()
	old := t.agents[r.GetName()]
	next := old
	next.beats, next.lastBeat, next.bootID, next.notReady = true, now, r.GetBootId(), r.GetNotReady()
	if len(r.GetConditions()) > 0 {
		next.conditions = r.GetConditions()
	}
	news := !old.beats || now-old.lastBeat >= t.grace || old.lastBeat < max(resumed, t.renewed, old.met) ||
		!next.says(old)
	t.agents[r.GetName()] = next
	notify := t.changed
	t.mu.Unlock()
	if news {
		notify(r.GetName())
	}
	return true
}

// says reports whether two heartbeats have the same contents.
func (a agent) says(b agent) bool {
	if a.bootID != b.bootID || a.notReady != b.notReady || len(a.conditions) != len(b.conditions) {
		return false
	}
	for i := range a.conditions {
		if !proto.Equal(a.conditions[i], b.conditions[i]) {
			return false
		}
	}
	return true
}

// Agent returns the state of a node's agent.
func (t *Tracker) Agent(node string) plan.Agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, resumed := t.clock.read()
	return t.agent(node, now, max(t.since, t.renewed, resumed, t.agents[node].met))
}

// Meet records that a node exists: the silence of the agent of a node that is created later than the leadership begins
// counts from its first call for that uid.
func (t *Tracker) Meet(node *nodev1.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, uid := node.GetMetadata().GetName(), node.GetMetadata().GetUid()
	a := t.agents[name]
	switch {
	case a.known && a.uid == uid:
		return
	case a.known:
		a.met, a.beats = t.clock.Now(), false // another node of that name
	case !a.beats:
		a.met = t.clock.Now()
	}
	a.uid, a.known = uid, true
	t.agents[name] = a
}

// agent returns the state of an agent whose silence counts from begin at the earliest; a heartbeat before begin is
// ignored.
func (t *Tracker) agent(node string, now, begin time.Duration) plan.Agent {
	a := t.agents[node]
	if !a.beats || a.lastBeat < begin {
		return plan.Agent{Silence: now - begin}
	}
	return plan.Agent{
		Reported: true, Silence: now - a.lastBeat,
		BootID: a.bootID, NotReady: a.notReady, Conditions: a.conditions,
	}
}

// Witnesses returns the state of the agents of nodes, as evidence of whether this process receives heartbeats at all.
func (t *Tracker) Witnesses(nodes []*nodev1.Node) []plan.Witness {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, resumed := t.clock.read()
	out := make([]plan.Witness, len(nodes))
	for i, n := range nodes {
		name := n.GetMetadata().GetName()
		begin := max(t.since, resumed, t.agents[name].met)
		if t.agents[name].uid != n.GetMetadata().GetUid() {
			begin = now // it was created a moment ago
		}
		out[i] = plan.WitnessOf(n, t.agent(name, now, begin))
	}
	return out
}

// Renew restarts the grace period of every silent agent.
func (t *Tracker) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed = t.clock.Now()
}

// Settling returns for how much longer no pods may be evicted because this process was suspended a short while ago; 0
// if it was not.
func (t *Tracker) Settling() time.Duration {
	now, resumed := t.clock.read()
	if resumed == 0 {
		return 0
	}
	return max(settling-(now-resumed), 0)
}

// Grace returns the silence after which an agent counts as lost.
func (t *Tracker) Grace() time.Duration { return t.grace }

// Forget drops the state of a node that is gone.
func (t *Tracker) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.agents, node)
}
