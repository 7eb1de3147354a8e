package controller

import (
	"sync"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// Views builds the views that decisions depend on, from observed objects and the recorded state of earlier decisions.
// The controller and the Plan RPCs share it, so that they decide on the same view. All methods are safe for concurrent
// use; what they return must not be modified.
type Views struct {
	tables  *kinds.Tables
	tracker *liveness.Tracker
	pods    *Pods
	budgets *informer.Informer[*schedulingv1.PodDisruptionBudget]
	pause   time.Duration // between two nodes of a zone whose pods are evicted for the silence of their agents

	counting sync.Mutex // held while a census is made

	mu     sync.Mutex
	memory *plan.Memory
	census *plan.Census // as of taken; never modified
	taken  time.Time
}

// NewViews returns views of a cluster with an empty memory.
func NewViews(tables *kinds.Tables, tracker *liveness.Tracker, pods *Pods,
	budgets *informer.Informer[*schedulingv1.PodDisruptionBudget], pause time.Duration,
) *Views {
	return &Views{
		tables: tables, tracker: tracker, pods: pods, budgets: budgets, pause: pause, memory: plan.NewMemory(),
	}
}

// Node returns the view for a decision about a node.
func (v *Views) Node(node *nodev1.Node) plan.NodeView {
	name := node.GetMetadata().GetName()
	out := plan.NodeView{
		Now: time.Now().UTC(), Node: node, Drains: v.tables.DrainsOf(name), Pause: v.pause,
		Reachability: v.reachability(node), Pods: v.pods.On(name), Known: v.pods.IsSynced(),
		Clock: liveness.Uptime(),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out.Turn = v.memory.Turn(plan.Zone(node))
	return out
}

// Evictions returns the view for a decision about evictions for the taints of a node.
func (v *Views) Evictions(node *nodev1.Node) plan.EvictionView {
	name := node.GetMetadata().GetName()
	pods := v.pods.On(name)
	// Read before Now: otherwise the time that the plan gives for the end of a span would be too early by the time
	// between the two, and the next decision would have to wait once more.
	clock := liveness.Uptime()
	return plan.EvictionView{
		Now: time.Now().UTC(), Node: node, Pods: pods, Reachability: v.reachability(node), Tries: v.tries(pods),
		Settled: v.settled(), Clock: clock, Seen: v.seen(pods),
	}
}

// Zones returns the view for the states of the zones.
func (v *Views) Zones() plan.ZonesView {
	out := plan.ZonesView{
		Now: time.Now().UTC(), Grace: v.tracker.Grace(), Pause: v.pause, Census: v.lately(0),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out.Disrupted, out.States, out.Turns = v.memory.Disrupted(), v.memory.ZoneStates(), v.memory.Turns()
	return out
}

// Paces returns the silence after which an agent counts as lost, and the time between two nodes of a zone whose pods
// are evicted for the silence of their agents.
func (v *Views) Paces() (grace, pause time.Duration) { return v.tracker.Grace(), v.pause }

// Drain returns the view for a decision about a drain. The other drains of its node are read at each call: one of them
// may have just acquired the permit.
func (v *Views) Drain(d *nodev1.Drain) plan.DrainView {
	name, uid := d.GetSpec().GetNodeName(), d.GetMetadata().GetUid()
	node, _ := v.tables.Nodes.Lookup("", name)
	if !plan.Drains(d, node) {
		node = nil // the drained node is gone, and this one has the same name
	}
	pods := v.pods.On(name)
	out := plan.DrainView{
		Now: time.Now().UTC(), Drain: d, Node: node, Others: v.tables.OtherDrains(d), Pods: pods,
		Known: v.pods.IsSynced(), Budgets: v.budgets.All(), Tries: v.tries(pods), Settled: v.settled(),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out.Permit, out.Listed = v.memory.Refusal(uid, plan.AcquirePermit), v.memory.Refusal(uid, plan.ListPods)
	return out
}

// Pods returns the pods of a node. known is false until the list of pods was received from the scheduler.
func (v *Views) Pods(node string) (pods []*schedulingv1.Pod, known bool) {
	return v.pods.On(node), v.pods.IsSynced()
}

// reachability returns the state of a node's agent, and a census of all if the decision depends on it.
func (v *Views) reachability(node *nodev1.Node) plan.Reachability {
	h := plan.Reachability{Grace: v.tracker.Grace()}
	v.mu.Lock()
	h.Disrupted, h.ZoneState = v.memory.Disrupted(), v.memory.ZoneState(plan.Zone(node))
	v.mu.Unlock()
	// Read after Disrupted: at the end of a disruption the silence restarts.
	h.Agent = v.tracker.Agent(node.GetMetadata().GetName())
	switch {
	case !h.NeedsCensus():
	case h.Disrupted && h.Agent.Healthy(h.Grace):
		h.Census = v.lately(0) // it may be the first to send a heartbeat again
	default:
		h.Census = v.lately(sameCensus)
	}
	return h
}

// sameCensus is for how long a census is reused: far less than any grace period. Nodes are often lost together, and a
// decision about each of them depends on all.
const sameCensus = 100 * time.Millisecond

// lately returns a census of the agents of all nodes from not longer than age before the call. Concurrent callers share
// it.
func (v *Views) lately(age time.Duration) *plan.Census {
	oldest := time.Now().Add(-age)
	if c := v.counted(oldest); c != nil {
		return c
	}
	v.counting.Lock()
	defer v.counting.Unlock()
	if c := v.counted(oldest); c != nil {
		return c
	}
	now := time.Now()
	c := plan.NewCensus(v.tracker.Witnesses(v.tables.Nodes.All()), v.tracker.Grace())
	v.mu.Lock()
	defer v.mu.Unlock()
	v.census, v.taken = c, now
	return c
}

// counted returns the last census unless it is older than a time.
func (v *Views) counted(oldest time.Time) *plan.Census {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.taken.Before(oldest) {
		return nil
	}
	return v.census
}

// settled returns until when nothing is evicted because this process was suspended; zero if it was not.
func (v *Views) settled() time.Time {
	if wait := v.tracker.Settling(); wait > 0 {
		return time.Now().Add(wait)
	}
	return time.Time{}
}

func (v *Views) seen(pods []*schedulingv1.Pod) map[string]time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory.Seen(pods)
}

// bound records that a pod was bound to a node with a NoExecute taint.
func (v *Views) bound(pod *schedulingv1.Pod) {
	now := liveness.Uptime()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Bound(pod, now.Uptime)
}

func (v *Views) tries(pods []*schedulingv1.Pod) map[string]plan.Try {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory.Tries(pods)
}

// done records an action that was carried out. It reports false if that was already recorded.
func (v *Views) done(a plan.Action) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch a.Verb {
	case plan.ChangeZone:
		if v.memory.ZoneState(a.Zone) == a.ZoneState {
			return false
		}
	case plan.BeginDisruption, plan.EndDisruption:
		if v.memory.Disrupted() == (a.Verb == plan.BeginDisruption) {
			return false
		}
	}
	if a.Verb == plan.EndDisruption {
		v.tracker.Renew() // before another decision can see the end of the disruption
	}
	v.memory.Done(a)
	return true
}

// answered records an answer to a question; budgets are those of the decision that led to it.
func (v *Views) answered(a plan.Answered, budgets []*schedulingv1.PodDisruptionBudget, retry time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Answered(a, budgets, retry)
	if a.Pod == nil {
		return
	}
	key := object.KeyOf(a.Pod)
	if _, there := v.pods.Lookup(key.Namespace, key.Name); !there {
		v.memory.Gone(key) // it was deleted before the answer, so podChanged was called before
	}
}

// planNode decides about a node. A turn is recorded under the same lock: nodes are reconciled concurrently, and each
// must see the turns of the others.
func (v *Views) planNode(node *nodev1.Node) plan.Plan {
	view := v.Node(node)
	v.mu.Lock()
	defer v.mu.Unlock()
	view.Turn = v.memory.Turn(plan.Zone(node))
	p := plan.Node(view)
	for _, a := range p.Do {
		if a.Verb == plan.TakeTurn {
			v.memory.Done(a)
		}
	}
	return p
}

// gone drops the state of a pod that is gone.
func (v *Views) gone(pod object.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Gone(pod)
}

// freed drops the refused evictions of a node.
func (v *Views) freed(node string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Freed(node)
}

// blocked returns the nodes with pods of a namespace whose eviction was refused.
func (v *Views) blocked(namespace string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory.Blocked(namespace)
}

// forget drops all state.
func (v *Views) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory, v.census, v.taken = plan.NewMemory(), nil, time.Time{}
}
