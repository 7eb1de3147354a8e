package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// moment is something that happens once while a machine is replaced.
type moment string

// The moments of a replacement.
const (
	deletionAsked   moment = "the deletion is asked for"
	replacementMade moment = "the replacement is created"
	replacementRuns moment = "the replacement runs"
	learnerJoined   moment = "the new member joins as a learner"
	learnerVotes    moment = "the new member votes"
	leadershipMoved moment = "leadership moves"
	oldVoterLeft    moment = "the old voter leaves"
	quorumHookGone  moment = "the quorum hook goes"
	nodeCordoned    moment = "the node is cordoned"
	nodeDrained     moment = "the drain succeeds"
	machineDrained  moment = "the machine is drained"
	taskPending     moment = "the owner's task is due"
	taskClaimed     moment = "the owner claims its task"
	taskCompleted   moment = "the owner completes its task"
	backupHookGone  moment = "the owner's hook goes"
	instanceGone    moment = "the instance goes"
	nodeGone        moment = "the node goes"
	machineGone     moment = "the machine goes"
)

// observation is one thing that was seen, as it was received: exactly one of the messages is set.
type observation struct {
	at      time.Time
	deleted bool // the object is gone; the message is what it was last
	machine *machinev1.Machine
	node    *nodev1.Node
	drain   *nodev1.Drain
	task    *hookv1.HookTask
	quorum  *etcdv1.Quorum
	waits   string    // what `windlass describe machine` says that it waits for
	asked   time.Time // when that command began
}

// sighting is a moment when it was first seen.
type sighting struct {
	moment   moment
	at       time.Time
	revision int64  // of the change that shows it; 0 where that is no stored object
	order    int    // among all sightings, as they were received
	text     string // for people
}

// chronicle makes the story of a replacement of what is observed. It does no I/O.
type chronicle struct {
	old    string   // name of the machine that goes, and of its node and its member, which leads at the beginning
	others []string // names of the other machines of the control plane at the beginning; of all others if it is a worker
	worker bool     // it has no member

	replacement string
	machines    map[string]bool // of the control plane, by name, now
	most        int             // most machines that there were at once
	samples     int             // of the quorum
	unsafe      []string        // what was wrong with the quorum at some time
	waits       []string        // in the order in which they were first seen
	answers     []observation   // of `windlass describe machine`
	seen        map[moment]sighting
	fresh       []sighting
}

func newChronicle(old string, others []string) *chronicle {
	c := &chronicle{old: old, others: others, machines: map[string]bool{old: true}, seen: map[moment]sighting{}}
	for _, name := range others {
		c.machines[name] = true
	}
	return c
}

// add takes an observation and returns the moments that it shows for the first time.
func (c *chronicle) add(o observation) []sighting {
	c.fresh = nil
	switch {
	case o.machine != nil:
		c.addMachine(o)
	case o.node != nil && o.node.GetMetadata().GetName() == c.old:
		c.addNode(o)
	case o.drain != nil && o.drain.GetSpec().GetNodeName() == c.old && o.drain.GetStatus().GetPhase() == "Succeeded":
		c.saw(o, nodeDrained, o.drain, "the drain of its node has succeeded: "+o.drain.GetStatus().GetMessage())
	case o.task != nil && o.task.GetSpec().GetMachineRef().GetName() == c.old &&
		o.task.GetSpec().GetHookName() == backupHook:
		c.addTask(o)
	case o.quorum != nil && !c.worker:
		c.addQuorum(o)
	case o.waits != "":
		c.answers = append(c.answers, o)
		if !strings.HasPrefix(o.waits, "nothing") && !slices.Contains(c.waits, o.waits) {
			c.waits = append(c.waits, o.waits)
		}
	}
	return c.fresh
}

// waitedFor says that `windlass describe machine` named a hook while the machine waited for it: between two moments. On
// a busy host the command may have no time to answer in between; then there is nothing to check.
func (c *chronicle) waitedFor(hook string, from, until moment) fact {
	var said []string
	for _, a := range c.answers {
		if !a.asked.Before(c.seen[from].at) && !a.at.After(c.seen[until].at) {
			said = append(said, a.waits)
		}
	}
	return expect(len(said) == 0 || slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, hook) }),
		"`windlass describe machine` waits for "+hook, "%q", said)
}

// saw notes a moment, unless it was noted before. of is the stored object that shows it, nil for none.
func (c *chronicle) saw(o observation, m moment, of object, text string) {
	if _, ok := c.seen[m]; ok {
		return
	}
	s := sighting{moment: m, at: o.at, order: len(c.seen), text: text}
	if of != nil {
		s.revision = revision(of)
	}
	c.seen[m] = s
	c.fresh = append(c.fresh, s)
}

func (c *chronicle) has(m moment) bool {
	_, ok := c.seen[m]
	return ok
}

func (c *chronicle) addMachine(o observation) {
	name := o.machine.GetMetadata().GetName()
	if o.deleted {
		delete(c.machines, name)
	} else {
		c.machines[name] = true
	}
	c.most = max(c.most, len(c.machines))
	switch {
	case name == c.old:
		c.addOld(o)
	case slices.Contains(c.others, name):
	default:
		c.replacement = name
		text := fmt.Sprintf("its replacement %s is created", name)
		if !c.worker {
			text += fmt.Sprintf(": %d machines of the control plane", len(c.machines))
		}
		c.saw(o, replacementMade, o.machine, text)
		if o.machine.GetStatus().GetPhase() == "Running" {
			c.saw(o, replacementRuns, o.machine, name+" runs")
		}
	}
}

// addOld follows the machine that goes.
func (c *chronicle) addOld(o observation) {
	m := o.machine
	if o.deleted {
		c.saw(o, machineGone, m, "machine "+c.old+" is gone")
		return
	}
	if m.GetMetadata().GetDeletionTimestamp() == nil {
		return
	}
	c.saw(o, deletionAsked, m, "machine "+c.old+" is to be deleted; it stays until all is done")
	hooks := m.GetSpec().GetLifecycleHooks()
	if !c.worker && !hasHook(hooks.GetPreDrain(), quorumHook) {
		c.saw(o, quorumHookGone, m, "hook "+quorumHook+" goes: the machine may be drained")
	}
	if !hasHook(hooks.GetPreTerminate(), backupHook) {
		c.saw(o, backupHookGone, m, "hook "+backupHook+" goes: the instance may be deleted")
	}
	for _, condition := range m.GetStatus().GetConditions() {
		switch {
		case condition.GetType() == "Drained" && condition.GetStatus() == "True":
			c.saw(o, machineDrained, m, "")
		case condition.GetType() == "InstanceExists" && condition.GetStatus() == "False":
			c.saw(o, instanceGone, m, "the instance is gone")
		}
	}
}

func hasHook(hooks []*machinev1.LifecycleHook, name string) bool {
	return slices.ContainsFunc(hooks, func(h *machinev1.LifecycleHook) bool { return h.GetName() == name })
}

func (c *chronicle) addNode(o observation) {
	switch {
	case o.deleted:
		c.saw(o, nodeGone, o.node, "its node is gone")
	case o.node.GetSpec().GetUnschedulable():
		c.saw(o, nodeCordoned, o.node, "its node is cordoned")
	}
}

func (c *chronicle) addTask(o observation) {
	s := o.task.GetStatus()
	phases := []string{"Pending", "Claimed", "Completed"}
	reached := slices.Index(phases, s.GetPhase())
	if reached >= 0 {
		c.saw(o, taskPending, o.task, "now its hook "+backupHook+" is due: "+backupOwner+" has a task")
	}
	if reached >= 1 {
		c.saw(o, taskClaimed, o.task, s.GetClaimedBy()+" claims the task for "+backupOwner)
	}
	if reached >= 2 {
		c.saw(o, taskCompleted, o.task, backupOwner+" has completed its task")
	}
}

func (c *chronicle) addQuorum(o observation) {
	q := o.quorum
	c.samples++
	if q.GetHealthyVoters() < q.GetMajority() {
		c.unsafe = append(c.unsafe, fmt.Sprintf("%d healthy voters where a majority is %d", q.GetHealthyVoters(),
			q.GetMajority()))
	}
	for _, m := range q.GetMembers() {
		if m.GetName() == c.old || m.GetBootstrap() || slices.Contains(c.others, m.GetName()) {
			continue
		}
		if m.GetLearner() {
			c.saw(o, learnerJoined, nil, "a new member joins the quorum as a learner")
			continue
		}
		c.saw(o, learnerVotes, nil, fmt.Sprintf("the new member votes: %d voters", q.GetVoters()))
	}
	if l := leader(q); l != "" && l != c.old && member(q, c.old) != nil {
		c.saw(o, leadershipMoved, nil, "leadership moves from "+c.old+" to "+l)
	}
	if len(q.GetMembers()) > 0 && member(q, c.old) == nil {
		if n := member(q, c.replacement); n == nil || n.GetLearner() || !n.GetHealthy() {
			c.unsafe = append(c.unsafe, fmt.Sprintf("the old voter left while the new member was %v", n))
		}
		c.saw(o, oldVoterLeft, nil, fmt.Sprintf("the old voter leaves: %d voters", q.GetVoters()))
	}
}

// inOrder says that the moments came one after the other. Changes of stored objects are compared by revision, which is
// one clock for all of them; with the quorum in between, what counts is when it was received.
func (c *chronicle) inOrder(moments ...moment) []fact {
	var facts []fact
	for _, m := range moments {
		facts = append(facts, expect(c.has(m), string(m), "not seen"))
	}
	for i := range len(moments) - 1 {
		before, okBefore := c.seen[moments[i]]
		after, okAfter := c.seen[moments[i+1]]
		if !okBefore || !okAfter {
			continue // said above
		}
		holds := before.order < after.order
		if before.revision > 0 && after.revision > 0 {
			holds = before.revision <= after.revision
		}
		facts = append(facts, expect(holds, fmt.Sprintf("%s before %s", before.moment, after.moment),
			"they came at %s and %s (revisions %d and %d)", before.at.Format(time.TimeOnly+".000"),
			after.at.Format(time.TimeOnly+".000"), before.revision, after.revision))
	}
	return facts
}
