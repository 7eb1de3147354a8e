package plan

import (
	"slices"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	// unseen is how long an eviction that was accepted may take to be seen on the pod before it is asked for again.
	unseen = 10 * time.Second
	// AskScheduler is how soon a scheduler that did not answer is asked again.
	AskScheduler = time.Second
	// askAgain is how soon a permit that was refused is asked for again: soon enough that a replacement does not wait for
	// it noticeably.
	askAgain = time.Second
)

// Memory is what was done, asked and answered before, as far as later decisions depend on it. It is kept in memory
// alone: a new leader begins with an empty one. It is not safe for concurrent use.
type Memory struct {
	tries     map[object.Key]Try
	refusals  map[question]Answer
	turns     map[string]Turn // by zone
	disrupted bool
}

// question is one that a drain asked.
type question struct{ drain, verb string }

// Turn is a node's, in its zone, to have its pods leave for the silence of its agent. It keeps the turn until another
// node takes it.
type Turn struct {
	Node string
	At   time.Time
}

// Try is what became of an eviction so far.
type Try struct {
	Verb     string    // EvictPod or DeletePod
	Accepted bool      // the pod is about to be seen on its way out
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
	return &Memory{tries: map[object.Key]Try{}, refusals: map[question]Answer{}, turns: map[string]Turn{}}
}

// Done remembers what was done.
func (m *Memory) Done(a Action) {
	switch a.Verb {
	case TakeTurn:
		m.turns[a.Zone] = a.Turn
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

// Heard remembers an answer. retry is how soon an eviction that was refused is tried again if nothing changes before;
// budgets are those that the question was decided with. A permit that was granted and a list of pods hold for the next
// decision alone: see DrainView.With.
func (m *Memory) Heard(a Answered, budgets []*schedulingv1.PodDisruptionBudget, retry time.Duration) {
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

// again returns what is remembered of an eviction after one more answer.
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

// Try returns what became of the eviction of a pod so far; the zero Try if it was not asked for.
func (m *Memory) Try(pod *schedulingv1.Pod) Try {
	if t := m.tries[object.KeyOf(pod)]; t.uid == pod.GetMetadata().GetUid() {
		return t
	}
	return Try{}
}

// Tries returns what became of evictions of pods so far, by their uids.
func (m *Memory) Tries(pods []*schedulingv1.Pod) map[string]Try {
	out := map[string]Try{}
	for _, pod := range pods {
		if t := m.Try(pod); !t.Next.IsZero() {
			out[pod.GetMetadata().GetUid()] = t
		}
	}
	return out
}

// Refusal returns the last answer to a question of a drain if it was no grant; the zero Answer otherwise.
func (m *Memory) Refusal(drain, verb string) Answer { return m.refusals[question{drain, verb}] }

// Turn returns which node's turn it is in a zone; the zero Turn if no node had one.
func (m *Memory) Turn(zone string) Turn { return m.turns[zone] }

// disrupted reports whether there was a full disruption at the last decision; see disrupted.
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

// Gone forgets a pod that is gone.
func (m *Memory) Gone(pod object.Key) { delete(m.tries, pod) }

// Freed forgets which evictions were refused on a node: one of its drains has ended.
func (m *Memory) Freed(node string) {
	for k, t := range m.tries {
		if t.node == node && !t.Accepted {
			delete(m.tries, k)
		}
	}
}
