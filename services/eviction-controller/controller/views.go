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

// Views shows what decisions depend on: what is observed, and what is remembered of earlier decisions. The controller
// and the Plan RPCs read it, so that they decide about the same. All methods may be called concurrently; what they
// return must not be modified.
type Views struct {
	tables  *kinds.Tables
	tracker *liveness.Tracker
	pods    *Pods
	budgets *informer.Informer[*schedulingv1.PodDisruptionBudget]
	pause   time.Duration // between two nodes of a zone whose pods have to leave because of their silence

	mu        sync.Mutex
	memory    *plan.Memory
	witnesses []plan.Witness // as they were at heard; never modified
	heard     time.Time
}

// NewViews returns views of a cluster with an empty memory.
func NewViews(tables *kinds.Tables, tracker *liveness.Tracker, pods *Pods,
	budgets *informer.Informer[*schedulingv1.PodDisruptionBudget], pause time.Duration,
) *Views {
	return &Views{
		tables: tables, tracker: tracker, pods: pods, budgets: budgets, pause: pause, memory: plan.NewMemory(),
	}
}

// Node returns what decides about a node.
func (v *Views) Node(node *nodev1.Node) plan.NodeView {
	name := node.GetMetadata().GetName()
	out := plan.NodeView{
		Now: time.Now().UTC(), Node: node, Drains: v.tables.DrainsOf(name), Pause: v.pause, Hearing: v.hearing(name),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out.Turn = v.memory.Turn(plan.Zone(node))
	return out
}

// Evictions returns what decides which pods leave a node because of its taints.
func (v *Views) Evictions(node *nodev1.Node) plan.EvictionView {
	name := node.GetMetadata().GetName()
	pods := v.pods.On(name)
	return plan.EvictionView{
		Now: time.Now().UTC(), Node: node, Pods: pods, Hearing: v.hearing(name), Tries: v.tries(pods), Settled: v.settled(),
	}
}

// Drain returns what decides about a drain. The other drains of its node are those of now: one of them may have taken
// the permit a moment ago.
func (v *Views) Drain(d *nodev1.Drain) plan.DrainView {
	name, uid := d.GetSpec().GetNodeName(), d.GetMetadata().GetUid()
	node, _ := v.tables.Nodes.Lookup("", name)
	if !plan.Drains(d, node) {
		node = nil // the one to drain is gone, and this one only has its name
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

// Pods returns the pods of a node; known is false while the scheduler has not yet said which pods there are.
func (v *Views) Pods(node string) (pods []*schedulingv1.Pod, known bool) {
	return v.pods.On(node), v.pods.IsSynced()
}

// hearing returns what is known of a node's agent, and of those of all nodes where that matters.
func (v *Views) hearing(node string) plan.Hearing {
	h := plan.Hearing{Grace: v.tracker.Grace()}
	v.mu.Lock()
	h.Disrupted = v.memory.Disrupted()
	v.mu.Unlock()
	h.Agent = v.tracker.Agent(node) // after the disruption: with its end the silence counts anew
	switch healthy := h.Agent.Healthy(h.Grace); {
	case healthy && h.Disrupted:
		h.Witnesses = v.lately(0) // it may be the first one that is heard again
	case !healthy && h.Agent.Settled(h.Grace):
		h.Witnesses = v.lately(sameWitnesses)
	}
	return h
}

// sameWitnesses is for how long what agents say as witnesses counts as the same: far less than any grace. Nodes are
// often lost together, and a decision about each of them depends on all.
const sameWitnesses = 100 * time.Millisecond

// lately returns what the agents of all nodes said as witnesses, not longer ago than age.
func (v *Views) lately(age time.Duration) []plan.Witness {
	v.mu.Lock()
	list, heard := v.witnesses, v.heard
	v.mu.Unlock()
	if time.Since(heard) < age {
		return list
	}
	heard, list = time.Now(), v.tracker.Witnesses(v.tables.Nodes.All())
	v.mu.Lock()
	v.witnesses, v.heard = list, heard
	v.mu.Unlock()
	return list
}

// settled returns until when nothing is evicted, since this process stood still; zero if it did not.
func (v *Views) settled() time.Time {
	if wait := v.tracker.Settling(); wait > 0 {
		return time.Now().Add(wait)
	}
	return time.Time{}
}

func (v *Views) tries(pods []*schedulingv1.Pod) map[string]plan.Try {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.memory.Tries(pods)
}

// done remembers what was done. It reports false if that was remembered already.
func (v *Views) done(a plan.Action) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch a.Verb {
	case plan.BeginDisruption, plan.EndDisruption:
		if v.memory.Disrupted() == (a.Verb == plan.BeginDisruption) {
			return false
		}
	}
	if a.Verb == plan.EndDisruption {
		v.tracker.Renew() // before another decision sees that it has ended
	}
	v.memory.Done(a)
	return true
}

// answered remembers an answer to a question that was decided with some budgets.
func (v *Views) answered(a plan.Answered, budgets []*schedulingv1.PodDisruptionBudget, retry time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Heard(a, budgets, retry)
	if a.Pod == nil {
		return
	}
	key := object.KeyOf(a.Pod)
	if _, there := v.pods.Lookup(key.Namespace, key.Name); !there {
		v.memory.Gone(key) // it went before the answer came, and podChanged with it
	}
}

// planNode decides about a node. A turn is taken at once: nodes are decided about concurrently, and each sees the turns
// of the others.
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

// gone forgets a pod that is gone.
func (v *Views) gone(pod object.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory.Gone(pod)
}

// freed forgets which evictions were refused on a node.
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

// forget begins with an empty memory.
func (v *Views) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.memory, v.witnesses, v.heard = plan.NewMemory(), nil, time.Time{}
}
