package liveness

import (
	"sync"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Tracker remembers the last word of each agent. Make one with New; it is safe for concurrent use.
type Tracker struct {
	clock *Awake
	grace time.Duration

	mu      sync.Mutex
	leads   bool
	since   time.Duration // silence of agents that were not heard yet counts from here
	renewed time.Duration // and from here, where they shall have the grace once more
	agents  map[string]agent
	changed func(node string)
}

type agent struct {
	heard      time.Duration
	bootID     string
	notReady   string
	conditions []*nodev1.NodeCondition
}

// settling is for how long a process that stood still evicts nobody: in that time it learns whether it still leads, and
// what changed.
const settling = 8 * time.Second

// New returns a tracker that does not lead. clock counts the time in which somebody listened; an agent that is silent
// for grace is taken for lost.
func New(clock *Awake, grace time.Duration) *Tracker {
	return &Tracker{clock: clock, grace: grace, agents: map[string]agent{}}
}

// Lead forgets everything and begins to listen: the grace begins anew for all nodes. changed is called, without a lock,
// with each node whose agent says something new. The returned function ends it.
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

// Beat takes in a heartbeat. It reports false if this process does not lead: then the agent must turn to the one that
// does.
func (t *Tracker) Beat(r *nodev1.HeartbeatRequest) bool {
	t.mu.Lock()
	if !t.leads {
		t.mu.Unlock()
		return false
	}
	now, resumed := t.clock.read()
	old, known := t.agents[r.GetName()]
	next := agent{heard: now, bootID: r.GetBootId(), notReady: r.GetNotReady(), conditions: old.conditions}
	if len(r.GetConditions()) > 0 {
		next.conditions = r.GetConditions()
	}
	news := !known || now-old.heard >= t.grace || old.heard < max(resumed, t.renewed) || !next.says(old)
	t.agents[r.GetName()] = next
	tell := t.changed
	t.mu.Unlock()
	if news {
		tell(r.GetName())
	}
	return true
}

// says reports whether two heartbeats say the same.
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

// Agent returns what is known of a node's agent.
func (t *Tracker) Agent(node string) plan.Agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, resumed := t.clock.read()
	return t.agent(node, now, max(t.since, t.renewed, resumed))
}

// agent returns what is known of an agent whose silence counts from begin at the earliest: what it said before says
// nothing now.
func (t *Tracker) agent(node string, now, begin time.Duration) plan.Agent {
	a, known := t.agents[node]
	if !known || a.heard < begin {
		return plan.Agent{Silence: now - begin}
	}
	return plan.Agent{
		Heard: true, Silence: now - a.heard,
		BootID: a.bootID, NotReady: a.notReady, Conditions: a.conditions,
	}
}

// Witnesses returns what the agents of nodes say about whether agents can be heard at all.
func (t *Tracker) Witnesses(nodes []*nodev1.Node) []plan.Witness {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, resumed := t.clock.read()
	out := make([]plan.Witness, len(nodes))
	for i, n := range nodes {
		out[i] = plan.Witness{
			Zone: plan.Zone(n), ControlPlane: plan.ControlPlane(n),
			Agent: t.agent(n.GetMetadata().GetName(), now, max(t.since, resumed)),
		}
	}
	return out
}

// Renew gives every agent that is silent the whole grace once more.
func (t *Tracker) Renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed = t.clock.Now()
}

// Settling returns for how long nobody may be evicted, since this process stood still a short while ago; 0 if it did
// not.
func (t *Tracker) Settling() time.Duration {
	now, resumed := t.clock.read()
	if resumed == 0 {
		return 0
	}
	return max(settling-(now-resumed), 0)
}

// Grace returns the silence after which an agent is taken for lost.
func (t *Tracker) Grace() time.Duration { return t.grace }

// Forget drops what is known of a node that is gone.
func (t *Tracker) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.agents, node)
}
