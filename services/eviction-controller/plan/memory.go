package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	// unseen is how long an accepted eviction may take to appear on the pod before it is requested again.
	unseen = 10 * time.Second
	// AskScheduler is how soon a scheduler that did not answer is asked again.
	AskScheduler = time.Second
	// askAgain is how soon a refused permit is requested again: short enough not to delay a replacement noticeably.
	askAgain = time.Second
)

// Memory holds the actions and answers that later decisions depend on. It is not stored: a new leader begins with an
// empty one. It is not safe for concurrent use.
type Memory struct {
	tries     map[object.Key]Try
	refusals  map[question]Answer
	turns     map[string]Turn   // by zone
	zones     map[string]string // states, by zone; absent means Normal
	arrivals  map[object.Key]arrival
	disrupted bool
}

// arrival is when a pod was observed to be bound to a node with a NoExecute taint.
type arrival struct {
	uid    string
	uptime time.Duration
}

// question identifies a question of a drain.
type question struct{ drain, verb string }

// Turn is the turn of one node of a zone to have its pods evicted for the silence of its agent. The node keeps the turn
// until another node takes it.
type Turn struct {
	Node string
	At   time.Time
}

// Try is the state of an eviction that was requested.
type Try struct {
	Verb     string    // EvictPod or DeletePod
	Accepted bool      // the pod is expected to have a deletion timestamp soon
	Why      string    // why it was refused; empty if it was accepted
	Count    int       // how often it was refused
	Since    time.Time // when it was first refused
	Next     time.Time // when it is tried again
	Pod      string    // resourceVersion of the pod at the try
	Budgets  string    // the budgets of the pod at the try, see budgetsOf

	uid, node string
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{
		tries: map[object.Key]Try{}, refusals: map[question]Answer{}, turns: map[string]Turn{},
		zones: map[string]string{}, arrivals: map[object.Key]arrival{},
	}
}

// Done records an action that was carried out.
func (m *Memory) Done(a Action) {
	switch a.Verb {
	case TakeTurn:
		m.turns[a.Zone] = a.Turn
	case ChangeZone:
		m.zones[a.Zone] = a.ZoneState
		if a.ZoneState == Normal {
			delete(m.zones, a.Zone)
		}
	case BeginDisruption:
		m.disrupted = true
	case EndDisruption:
		m.disrupted = false
	case ReleaseDrain:
		for k := range m.refusals {
			if k.drain == uidOf(a.Drain) {
				delete(m.refusals, k)
			}
		}
	}
}

// Answered records an answer. retry is how soon a refused eviction is tried again if nothing changes before; budgets
// are those of the decision that led to the question. A granted permit and a list of pods are used only by the next
// decision: see DrainView.With.
func (m *Memory) Answered(a Answered, budgets []*schedulingv1.PodDisruptionBudget, retry time.Duration) {
	if a.Pod != nil {
		m.tries[object.KeyOf(a.Pod)] = m.Try(a.Pod).again(a, budgets, retry)
		return
	}
	k := question{a.Drain, a.Verb}
	delete(m.refusals, k)
	if a.Code == Refused || a.Code == Away {
		m.refusals[k] = a.Answer
	}
}

// again returns the state of an eviction after one more answer.
func (t Try) again(a Answered, budgets []*schedulingv1.PodDisruptionBudget, retry time.Duration) Try {
	next := Try{Verb: a.Verb, uid: a.Pod.GetMetadata().GetUid(), node: a.Pod.GetSpec().GetNodeName()}
	if a.Code == Granted {
		next.Accepted, next.Next = true, a.At.Add(unseen)
		return next
	}
	next.Why, next.Count, next.Since, next.Next = a.Why, t.Count+1, t.Since, a.At.Add(retry)
	if a.Code == Away {
		next.Why, next.Next = "the scheduler does not answer: "+a.Why, a.At.Add(AskScheduler)
	}
	if next.Since.IsZero() {
		next.Since = a.At
	}
	next.Pod, next.Budgets = a.Pod.GetMetadata().GetResourceVersion(), budgetsOf(a.Pod, budgets)
	return next
}

// Try returns the state of the eviction of a pod; the zero Try if none was requested.
func (m *Memory) Try(pod *schedulingv1.Pod) Try {
	if t := m.tries[object.KeyOf(pod)]; t.uid == pod.GetMetadata().GetUid() {
		return t
	}
	return Try{}
}

// Tries returns the state of the evictions of pods that were requested, by the uid of the pod.
func (m *Memory) Tries(pods []*schedulingv1.Pod) map[string]Try {
	out := map[string]Try{}
	for _, pod := range pods {
		if t := m.Try(pod); !t.Next.IsZero() {
			out[pod.GetMetadata().GetUid()] = t
		}
	}
	return out
}

// Refusal returns the last answer to a question of a drain if it was not granted; the zero Answer otherwise.
func (m *Memory) Refusal(drain, verb string) Answer { return m.refusals[question{drain, verb}] }

// Turn returns the current turn in a zone; the zero Turn if there was none.
func (m *Memory) Turn(zone string) Turn { return m.turns[zone] }

// ZoneState returns the state of a zone at the last decision.
func (m *Memory) ZoneState(zone string) string { return cmp.Or(m.zones[zone], Normal) }

// Turns returns the current turns, by zone.
func (m *Memory) Turns() map[string]Turn { return maps.Clone(m.turns) }

// ZoneStates returns the states of the zones at the last decision, by zone; absent means Normal.
func (m *Memory) ZoneStates() map[string]string { return maps.Clone(m.zones) }

// Remember has an empty memory begin with what was decided before about the zones of some nodes. Zones that no node has
// are left out.
func (m *Memory) Remember(zones []*nodev1.ZoneMemory, disrupted bool, nodes []*nodev1.Node) {
	m.disrupted = disrupted
	known := map[string]*nodev1.ZoneMemory{}
	for _, z := range zones {
		known[z.GetZone()] = z
	}
	for _, n := range nodes {
		key := Zone(n)
		z := known[zoneName(key)]
		m.Done(Action{Verb: ChangeZone, Zone: key, ZoneState: cmp.Or(z.GetState(), Normal)})
		if z.GetTurnNode() != "" {
			m.turns[key] = Turn{Node: z.GetTurnNode(), At: z.GetTurnTime().AsTime()}
		}
	}
}

// Disrupted reports whether there was a full disruption at the last decision; see Census.disrupted.
func (m *Memory) Disrupted() bool { return m.disrupted }

// Blocked returns the nodes with pods of a namespace whose eviction was refused.
func (m *Memory) Blocked(namespace string) []string {
	var out []string
	for k, t := range m.tries {
		if k.Namespace == namespace && !t.Accepted {
			out = append(out, t.node)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Bound records that a pod was bound to a node with a NoExecute taint; uptime is that of the present boot.
func (m *Memory) Bound(pod *schedulingv1.Pod, uptime time.Duration) {
	m.arrivals[object.KeyOf(pod)] = arrival{pod.GetMetadata().GetUid(), uptime}
}

// Seen returns when pods were recorded by Bound, by their uids.
func (m *Memory) Seen(pods []*schedulingv1.Pod) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, pod := range pods {
		if s, ok := m.arrivals[object.KeyOf(pod)]; ok && s.uid == pod.GetMetadata().GetUid() {
			out[s.uid] = s.uptime
		}
	}
	return out
}

// Gone drops the state of a pod that is gone.
func (m *Memory) Gone(pod object.Key) {
	delete(m.tries, pod)
	delete(m.arrivals, pod)
}

// Freed drops the refused evictions of a node, because one of its drains has ended.
func (m *Memory) Freed(node string) {
	for k, t := range m.tries {
		if t.node == node && !t.Accepted {
			delete(m.tries, k)
		}
	}
}
