package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// Annotations about the configuration of a node.
const (
	currentConfig = "machineconfiguration.openshift.io/currentConfig"
	configState   = "machineconfiguration.openshift.io/state"
)

// stage is what a node goes through when it gets a new configuration.
type stage int

// The stages of a node.
const (
	cordoned stage = iota
	emptied
	rebooted
	configured
	uncordoned
	lastStage
)

func (s stage) String() string {
	return [...]string{"cordoned", "drained", "restarted", "configured", "uncordoned"}[s]
}

// stageOrder returns which stage comes before which. Its agent reports in two places that a machine has restarted and
// that it is configured: either may be seen first.
func stageOrder() [][2]stage {
	return [][2]stage{{cordoned, emptied}, {emptied, rebooted}, {emptied, configured}, {configured, uncordoned}}
}

// passage is how one node comes to its new configuration.
type passage struct {
	from, boot string          // its configuration and its boot at the beginning
	at         map[stage]int64 // the revision of the change that showed a stage first
	took       [2]time.Time    // when the first and the last stage were seen
}

// rollout makes the story of a pool that gets a new configuration of what is observed. It does no I/O.
type rollout struct {
	nodes   map[string]*passage
	down    map[string]bool // nodes that take no pods or are not Ready, now
	most    int             // most of them at once
	holders []string        // machines that had the permit to disrupt the quorum, in order
	samples int             // of the quorum
	unsafe  []string        // what was wrong with the quorum at some time
}

func newRollout(nodes []*nodev1.Node) *rollout {
	r := &rollout{nodes: map[string]*passage{}, down: map[string]bool{}}
	for _, n := range nodes {
		r.nodes[n.GetMetadata().GetName()] = &passage{
			from: n.GetMetadata().GetAnnotations()[currentConfig], boot: n.GetStatus().GetNodeInfo().GetBootId(),
			at: map[stage]int64{},
		}
	}
	return r
}

// add takes an observation and returns what it shows for the first time, for people.
func (r *rollout) add(o observation) []string {
	switch {
	case o.node != nil && !o.deleted:
		return r.addNode(o)
	case o.drain != nil && !o.deleted && o.drain.GetStatus().GetPhase() == "Succeeded":
		node := o.drain.GetSpec().GetNodeName()
		if p := r.nodes[node]; p != nil && o.drain.GetMetadata().GetName() == "machine-config-"+node {
			return p.reach(node, o.at, emptied, revision(o.drain))
		}
	case o.quorum != nil:
		return r.addQuorum(o)
	}
	return nil
}

func (r *rollout) addNode(o observation) []string {
	name := o.node.GetMetadata().GetName()
	p := r.nodes[name]
	if p == nil {
		return nil
	}
	if o.node.GetSpec().GetUnschedulable() || !isReady(o.node) {
		r.down[name] = true
	} else {
		delete(r.down, name)
	}
	r.most = max(r.most, len(r.down))
	said := []string{}
	at := revision(o.node)
	if o.node.GetSpec().GetUnschedulable() {
		said = append(said, p.reach(name, o.at, cordoned, at)...)
	}
	if o.node.GetStatus().GetNodeInfo().GetBootId() != p.boot {
		said = append(said, p.reach(name, o.at, rebooted, at)...)
	}
	a := o.node.GetMetadata().GetAnnotations()
	if a[currentConfig] != p.from && a[configState] == "Done" {
		said = append(said, p.reach(name, o.at, configured, at)...)
	}
	if _, ok := p.at[configured]; ok && !r.down[name] {
		said = append(said, p.reach(name, o.at, uncordoned, at)...)
	}
	return said
}

func (p *passage) reach(node string, at time.Time, s stage, revision int64) []string {
	if _, ok := p.at[s]; ok {
		return nil
	}
	p.at[s] = revision
	if p.took[0].IsZero() {
		p.took[0] = at
	}
	p.took[1] = at
	return []string{node + " is " + s.String()}
}

func (r *rollout) addQuorum(o observation) []string {
	q := o.quorum
	r.samples++
	up, why := reachable(q)
	if up < q.GetMajority() {
		r.unsafe = append(r.unsafe, fmt.Sprintf("%d voters can be reached where a majority is %d: %s", up, q.GetMajority(),
			strings.Join(why, ", ")))
	}
	holder := q.GetPermit().GetMachine().GetName()
	if holder == "" || len(r.holders) > 0 && r.holders[len(r.holders)-1] == holder {
		return nil
	}
	r.holders = append(r.holders, holder)
	return []string{holder + " has the permit to disrupt the quorum"}
}

// reachable counts the voters that are up, and says why the others are not. One that answers "leader changed", or not
// in time, waits for the next leader: when a leader restarts, that takes a moment.
func reachable(q *etcdv1.Quorum) (up int32, why []string) {
	up = q.GetHealthyVoters()
	for _, m := range q.GetMembers() {
		switch said := strings.ToLower(m.GetMessage()); {
		case m.GetLearner() || m.GetHealthy():
		case strings.Contains(said, "leader") || strings.Contains(said, "deadline"):
			up++
		default:
			why = append(why, m.GetName()+": "+m.GetMessage())
		}
	}
	return up, why
}

// over reports whether all nodes have been through.
func (r *rollout) over() bool {
	for _, p := range r.nodes {
		if len(p.at) < int(lastStage) {
			return false
		}
	}
	return true
}

// span returns the time from when the first node began until the last one was through.
func (r *rollout) span() span {
	s := span{what: "nodes"}
	for _, p := range r.nodes {
		if s.since.IsZero() || p.took[0].Before(s.since) {
			s.since = p.took[0]
		}
		if p.took[1].After(s.until) {
			s.until = p.took[1]
		}
	}
	return s
}

// facts says that each node went through its stages in order, and never more than one node at a time.
func (r *rollout) facts() []fact {
	out := []fact{expect(r.most == 1, "never more than one node down", "%d at some time", r.most)}
	type turn struct {
		node        string
		first, last int64
	}
	var turns []turn
	for _, name := range sortedKeys(r.nodes) {
		p := r.nodes[name]
		var missing []string
		for s := range lastStage {
			if _, ok := p.at[s]; !ok {
				missing = append(missing, s.String())
			}
		}
		out = append(out, expect(len(missing) == 0, name+" through all stages", "not seen: %s", strings.Join(missing, ", ")))
		for _, o := range stageOrder() {
			out = append(out, expect(p.at[o[0]] <= p.at[o[1]], fmt.Sprintf("%s %s before it is %s", name, o[0], o[1]),
				"at revisions %d and %d", p.at[o[0]], p.at[o[1]]))
		}
		turns = append(turns, turn{name, p.at[cordoned], p.at[uncordoned]})
	}
	slices.SortFunc(turns, func(a, b turn) int { return int(a.first - b.first) })
	for i := 1; i < len(turns); i++ {
		out = append(out, expect(turns[i-1].last <= turns[i].first, turns[i].node+" only after "+turns[i-1].node,
			"it was cordoned at revision %d, the other uncordoned at %d", turns[i].first, turns[i-1].last))
	}
	return out
}

// safe says that the quorum was never at risk.
func (r *rollout) safe() fact {
	return expect(len(r.unsafe) == 0 && r.samples > 0, "never fewer voters than a majority that can be reached", "%s",
		strings.Join(r.unsafe, "; "))
}

// ofTour reports whether a pool still counts on a machine configuration of the tour, which may just have been deleted.
func ofTour(p *configv1.MachineConfigPool) bool {
	return slices.ContainsFunc(p.GetSpec().GetConfiguration().GetSource(), func(c *metav1.ObjectReference) bool {
		return strings.HasPrefix(c.GetName(), "90-tour-")
	})
}

// rolledOut reports whether all nodes of a pool have its newest configuration.
func rolledOut(p *configv1.MachineConfigPool) bool {
	s := p.GetStatus()
	for _, c := range s.GetConditions() {
		if c.GetType() == "Updated" && c.GetStatus() != "True" || c.GetType() == "Degraded" && c.GetStatus() == "True" {
			return false
		}
	}
	return s.GetConfiguration().GetName() == p.GetSpec().GetConfiguration().GetName() &&
		s.GetMachineCount() == s.GetUpdatedMachineCount() &&
		s.GetMachineCount() == s.GetReadyMachineCount() && s.GetObservedGeneration() >= int32(p.GetMetadata().GetGeneration())
}
