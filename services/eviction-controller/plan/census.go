package plan

import (
	"cmp"
	"slices"
	"time"
)

// Census counts the agents of all nodes, and orders the nodes that wait for the NoExecute taint. A decision about one
// node reads only counts and a few places of the queue, so its cost does not depend on the number of nodes. The nil
// Census has no nodes. A Census that no longer changes is safe for concurrent use.
type Census struct {
	grace            time.Duration
	workers, control tally
	zones            map[string]*zoneCensus
}

// tally is numbers of agents.
type tally struct {
	total int
	lost  int // not ready, or silent for the grace period
	beats int // silent for less than half of it
	ready int // of these
}

// zoneCensus is the part of a Census about one zone.
type zoneCensus struct {
	workers, control tally
	queue            []*Witness          // those that wait, in order: see compareTurns
	waiting          map[string]*Witness // the same, by name
}

// NewCensus counts the agents of all nodes. grace is the silence after which an agent counts as lost. The Census refers
// to the elements of nodes, which must not be modified.
func NewCensus(nodes []Witness, grace time.Duration) *Census {
	c := &Census{grace: grace, zones: map[string]*zoneCensus{}}
	for i := range nodes {
		w := &nodes[i]
		c.count(w, 1)
		if z := c.zones[w.Zone]; !w.Waits.IsZero() {
			z.queue, z.waiting[w.Name] = append(z.queue, w), w
		}
	}
	for _, z := range c.zones {
		slices.SortFunc(z.queue, compareTurns)
	}
	return c
}

// compareTurns orders nodes by when they get the NoExecute taint: the one that is not ready for longest comes first,
// and of those for equally long the one with the lesser name.
func compareTurns(a, b *Witness) int {
	return cmp.Or(a.Waits.Compare(b.Waits), cmp.Compare(a.Name, b.Name))
}

// add counts one more agent; w must not be modified other than by change.
func (c *Census) add(w *Witness) {
	c.count(w, 1)
	if z := c.zones[w.Zone]; !w.Waits.IsZero() {
		i, _ := slices.BinarySearchFunc(z.queue, w, compareTurns)
		z.queue, z.waiting[w.Name] = slices.Insert(z.queue, i, w), w
	}
}

// remove no longer counts an agent.
func (c *Census) remove(w *Witness) {
	c.count(w, -1)
	if z := c.zones[w.Zone]; !w.Waits.IsZero() {
		i, _ := slices.BinarySearchFunc(z.queue, w, compareTurns)
		z.queue = slices.Delete(z.queue, i, i+1)
		delete(z.waiting, w.Name)
	}
}

// change modifies an agent that is counted.
func (c *Census) change(w *Witness, to Witness) {
	if w.Zone == to.Zone && compareTurns(w, &to) == 0 {
		c.count(w, -1)
		*w = to
		c.count(w, 1)
		return
	}
	c.remove(w)
	*w = to
	c.add(w)
}

// count adds by to the counts that an agent is part of.
func (c *Census) count(w *Witness, by int) {
	z := c.zones[w.Zone]
	if z == nil {
		z = &zoneCensus{waiting: map[string]*Witness{}}
		c.zones[w.Zone] = z
	}
	all, zone := &c.workers, &z.workers
	if w.ControlPlane {
		all, zone = &c.control, &z.control
	}
	for _, t := range []*tally{all, zone} {
		t.total += by
		if w.Agent.NotReady != "" || w.Agent.Silence >= c.grace {
			t.lost += by
		}
		if w.Agent.Silence < c.grace/2 {
			t.beats += by
			if w.Agent.NotReady == "" {
				t.ready += by
			}
		}
	}
}

func (c *Census) empty() bool { return c == nil || c.workers.total+c.control.total == 0 }

// disrupted reports a full disruption of all zones: of the nodes that count, none is ready, and no agent of the control
// plane sends heartbeats. Then it is more likely that this service is disconnected than that all nodes failed together,
// and no pod is evicted. An agent that was silent for half the grace period does not count: of nodes that fail
// together, one is always the first to be lost. An agent whose silence has only begun to count does. Source:
// Kubernetes' node lifecycle controller, which has no agents of the control plane.
func (c *Census) disrupted() bool {
	return !c.empty() && c.workers.ready+c.control.ready == 0 && (c.workers.total == 0 || c.control.beats == 0)
}

// health returns the state of a zone. Control-plane nodes count only if there are no other nodes in any zone.
func (c *Census) health(zone string) zoneHealth {
	z := zoneHealth{state: Normal}
	if c == nil || c.zones[zone] == nil {
		return z
	}
	counted := c.zones[zone].workers
	if c.workers.total == 0 {
		counted = c.zones[zone].control
	}
	z.lost, z.total = counted.lost, counted.total
	switch {
	case z.total > 0 && z.lost == z.total:
		z.state = FullDisruption
	case z.lost >= leastBad && 100*z.lost >= mostBad*z.total:
		z.state = PartialDisruption
	}
	return z
}

// ahead returns how many nodes of a zone come before a node that is not ready since a time, and the first of them; see
// compareTurns. holder has its turn and is not counted.
func (c *Census) ahead(zone, name, holder string, since time.Time) (n int, first string) {
	if c == nil || c.zones[zone] == nil {
		return 0, ""
	}
	z, self := c.zones[zone], &Witness{Name: name, Waits: since}
	n, _ = slices.BinarySearchFunc(z.queue, self, compareTurns)
	others := []string{name} // the census may have another time for the node itself
	if holder != name {
		others = append(others, holder)
	}
	for _, other := range others {
		if w := z.waiting[other]; w != nil && compareTurns(w, self) < 0 {
			n--
		}
	}
	if n == 0 {
		return 0, ""
	}
	first = z.queue[slices.IndexFunc(z.queue, func(w *Witness) bool { return w.Name != name && w.Name != holder })].Name
	return n, first
}
