package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Kind says what an Action does.
type Kind string

// The kinds of actions.
const (
	AddHook          Kind = "AddHook"          // put our hook on Machine, or give it back its owner
	RemoveHook       Kind = "RemoveHook"       // take our hook off Machine
	AddLearner       Kind = "AddLearner"       // add a learner for Offer's node on Machine
	Promote          Kind = "Promote"          // make the learner Member a voter
	PublishEndpoints Kind = "PublishEndpoints" // write down Endpoints for clients
	AcquirePermit    Kind = "AcquirePermit"    // hold the permit for Member and Machine
	FreePermit       Kind = "FreePermit"       // end the permit
	MoveLeader       Kind = "MoveLeader"       // make Target the leader instead of Member
	StopMember       Kind = "StopMember"       // have the process of Member ended
	StartMember      Kind = "StartMember"      // have the process of Member started again: it cannot leave after all
	// have the process of Member started again, for the authorities, the quota or the etcd that it has to have
	RestartMember   Kind = "RestartMember"
	RemoveMember    Kind = "RemoveMember"    // remove Member from the cluster
	Compact         Kind = "Compact"         // drop old revisions
	Defragment      Kind = "Defragment"      // give the free space in Member's database back
	Disarm          Kind = "Disarm"          // allow writes again after there was no space
	RetireBootstrap Kind = "RetireBootstrap" // write down for good that the bootstrap member has left
)

// Phases of the quorum.
const (
	Bootstrapping = "Bootstrapping"
	Growing       = "Growing"
	Pivoting      = "Pivoting"
	Stable        = "Stable"
	Replacing     = "Replacing"
	Degraded      = "Degraded"
)

// Action is one change. Which fields are set depends on its kind.
type Action struct {
	Kind      Kind
	Machine   Machine
	Member    Member
	Target    Member
	Offer     Offer
	Endpoints []string
	Permit    string // of AcquirePermit: the reason of the permit
	Reason    string // one sentence
}

// Plan is the outcome of one decision. The zero Plan means nothing to do and nothing to wait for.
type Plan struct {
	Phase    string
	Hooks    []Action // AddHook and RemoveHook: they do not touch the membership and depend on nothing else
	Next     *Action  // the one next change of the membership; nil if there is none now
	WaitsFor string   // one line; empty if for nothing
	HeldBack []*metav1.HeldBack
	Wake     time.Duration // after which to decide again even if nothing is known to have changed
}

// Pauses between two decisions: etcd reports no change of a member, so the guardian asks.
const (
	idlePause  = 2 * time.Second        // while nothing is under way
	busyPause  = 100 * time.Millisecond // while something is
	quickPause = 20 * time.Millisecond  // while a voter is stopping, since then none can be spared, and for
	justActed  = time.Second            // after a change: its effect mostly shows soon
	leastPause = 5 * time.Millisecond
)

// Next returns what to do now. It does not modify v.
func Next(v View) Plan {
	d := newDecision(v)
	d.plan.Phase = d.phase()
	d.next()
	d.plan.Wake = d.wake()
	return d.plan
}

func (d *decision) next() {
	if !d.Fresh || d.lost() {
		d.unanswered()
		return
	}
	d.hooks()
	// The first that decides ends it; what comes later in the list never overtakes what comes before.
	for _, step := range []func() bool{
		d.retire, d.resume, d.endPermit, d.dead, d.forsaken, d.relieve, d.silent, d.leaderless, d.finishRestart, d.space,
		d.promote, d.leave, d.publish, d.restart, d.grow,
	} {
		if step() {
			break
		}
	}
}

// wake returns after which time to decide again.
func (d *decision) wake() time.Duration {
	pause := idlePause
	switch {
	case d.busy && d.Acted < justActed, slices.ContainsFunc(d.Members, func(m Member) bool { return m.Stopping }):
		pause = quickPause
	case d.busy:
		pause = busyPause
	}
	if d.again > 0 {
		pause = min(pause, max(d.again, leastPause))
	}
	return pause
}

type decision struct {
	View
	voters, learners []Member
	leaver           *Member // the healthy voter whose turn it is to leave; nil if none can
	plan             Plan
	busy             bool          // something is under way that ends by itself soon
	again            time.Duration // until a span that was compared with ends; 0 for none
}

func newDecision(v View) *decision {
	v.Settings = v.Settings.complete()
	v.Members = slices.Clone(v.Members)
	slices.SortFunc(v.Members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	d := &decision{View: v}
	for _, m := range v.Members {
		if m.Learner {
			d.learners = append(d.learners, m)
		} else {
			d.voters = append(d.voters, m)
		}
	}
	d.leaver = d.findLeaver()
	return d
}

func (d *decision) do(a Action) bool {
	d.plan.Next, d.busy = &a, true
	return true
}

// wait says what for, and that it ends by itself soon.
func (d *decision) wait(format string, args ...any) bool {
	d.plan.WaitsFor, d.busy = fmt.Sprintf(format, args...), true
	return true
}

// stuck sets WaitsFor to work that a user or another service has to do.
func (d *decision) stuck(format string, args ...any) bool {
	d.plan.WaitsFor = fmt.Sprintf(format, args...)
	return true
}

func (d *decision) holdBack(k Kind, object *metav1.ObjectReference, reason, unblock string) {
	d.plan.HeldBack = append(d.plan.HeldBack, &metav1.HeldBack{
		Action: string(k), Object: object, Reason: reason,
		Unblock: unblock,
	})
}

// early reports whether less than after has gone by, and asks then for another look when it has.
func (d *decision) early(elapsed, after time.Duration) bool {
	left := after - elapsed
	if left <= 0 {
		return false
	}
	if d.again == 0 || left < d.again {
		d.again = left
	}
	return true
}

// lost reports whether the voters that answer are no majority.
func (d *decision) lost() bool {
	return len(d.voters) > 0 && d.healthyVoters(0) < Majority(len(d.voters))
}

// healthyVoters returns how many voters are healthy, the one with the id except not counted.
func (d *decision) healthyVoters(except uint64) int {
	n := 0
	for _, m := range d.voters {
		if m.Healthy && m.ID != except {
			n++
		}
	}
	return n
}

// steadyVoters returns how many voters are healthy and stay up: one under another's permit, or that is being
// defragmented, may go down at any moment, so it counts as down.
func (d *decision) steadyVoters(except uint64) int {
	n := d.healthyVoters(except)
	if v, ok := d.disturbed(); ok && v.Healthy && v.ID != except {
		n--
	}
	if v, ok := d.underway(); ok && v.Healthy && v.ID != except {
		n--
	}
	return n
}

// permitUnclear reports whether the permit is for a voter that cannot be named until the machines are known.
func (d *decision) permitUnclear() bool {
	return d.Permit != nil && !d.MachinesKnown && !slices.ContainsFunc(d.voters, d.holdsPermit)
}

// disturbed returns the voter that the permit's holder may disrupt now.
func (d *decision) disturbed() (Member, bool) {
	if d.Permit == nil || d.Permit.Ours {
		return Member{}, false
	}
	i := slices.IndexFunc(d.voters, d.holdsPermit)
	if i < 0 {
		return Member{}, false
	}
	return d.voters[i], true
}

// goes reports whether a member is to leave because its machine is being deleted. The bootstrap member is no such case.
func (d *decision) goes(m Member) bool {
	machine, ok := d.MachineOfMember(m)
	return ok && machine.Deleting
}

// homeless reports whether a member is on no machine that exists.
func (d *decision) homeless(m Member) bool {
	_, ok := d.MachineOfMember(m)
	return !ok && !m.Bootstrap() && d.MachinesKnown
}

// orphan reports whether a member belongs to nothing that exists: a voter has neither a machine nor a node, since a
// machine may be deleted by mistake while its node goes on; a learner has no machine.
func (d *decision) orphan(m Member) bool {
	return d.homeless(m) && (m.Learner || d.NodesKnown && !d.onNode(m))
}

// onNode reports whether the node of a member without a machine exists. A node of that name which a machine claims is
// that machine's, not the member's.
func (d *decision) onNode(m Member) bool {
	_, claimed := d.MachineOfNode(m.Name)
	return m.Name != "" && !claimed && slices.Contains(d.Nodes, m.Name)
}

// replaced reports whether enough healthy voters stay when m leaves. A voter on the bootstrap member's own host
// replaces it alone: the host takes both down, so that two of its votes would only be missing together.
func (d *decision) replaced(m Member) bool {
	return d.healthyVoters(m.ID) >= d.Desired || m.Bootstrap() && slices.ContainsFunc(d.voters, func(v Member) bool {
		return v.ID != m.ID && v.Healthy && v.beside(m) && !d.goes(v)
	})
}

// findLeaver returns the healthy voter that leaves next: enough others vote, and all of them are healthy. Deleted
// machines go first, in the order of leavers; the bootstrap member is of use until then.
func (d *decision) findLeaver() *Member {
	if !d.Fresh {
		return nil
	}
	leavers := d.leavers()
	for i := range leavers {
		m := &leavers[i]
		if m.Healthy && d.replaced(*m) && d.healthyVoters(m.ID) == len(d.voters)-1 {
			return m
		}
	}
	return nil
}

// leavers returns the voters that are to leave, in order. One that is stopping is first; then the one of
// the index which hosts most voters, since there its replacement votes already, as the control plane's set made it;
// then the machine that was deleted first.
func (d *decision) leavers() []Member {
	var out []Member
	for _, m := range d.voters {
		if d.goes(m) || m.Bootstrap() {
			out = append(out, m)
		}
	}
	deletion := func(m Member) time.Time {
		machine, _ := d.MachineOfMember(m)
		return machine.DeletionTime
	}
	rank := func(m Member) int {
		switch {
		case m.Stopping:
			return 0
		case d.holdsPermit(m):
			return 1
		case m.Bootstrap():
			return 3
		}
		return 2
	}
	slices.SortStableFunc(out, func(a, b Member) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(d.votersAt(b), d.votersAt(a)),
			deletion(a).Compare(deletion(b)))
	})
	return out
}

// votersAt returns how many voters are on machines of the index that m's machine has; 1 if it has none.
func (d *decision) votersAt(m Member) int {
	machine, ok := d.MachineOfMember(m)
	if !ok || machine.Index < 0 {
		return 1
	}
	n := 0
	for _, o := range d.voters {
		if on, ok := d.MachineOfMember(o); ok && on.Index == machine.Index && on.Namespace == machine.Namespace {
			n++
		}
	}
	return n
}

// holdsPermit reports whether the permit is for m's machine.
func (d *decision) holdsPermit(m Member) bool {
	if d.Permit == nil {
		return false
	}
	if m.Bootstrap() {
		return d.Permit.Machine.GetName() == BootstrapName && d.Permit.Machine.GetKind() != "Machine"
	}
	if d.Permit.Machine.GetKind() != "Machine" {
		return false
	}
	if m.MachineUID != "" && d.Permit.Machine.GetUid() != "" { // also while that machine is not seen
		return m.MachineUID == d.Permit.Machine.GetUid()
	}
	machine, ok := d.MachineOfMember(m)
	return ok && machine.is(d.Permit.Machine)
}

func (d *decision) phase() string {
	bootstrap, others, silent, going := false, 0, false, false
	for _, m := range d.voters {
		bootstrap = bootstrap || m.Bootstrap()
		if !m.Bootstrap() {
			others++
		}
		silent = silent || !m.Healthy && !m.Stopping
		going = going || d.goes(m)
	}
	switch {
	case silent:
		return Degraded
	case bootstrap && others == 0 && len(d.learners) == 0, len(d.voters) == 0:
		return Bootstrapping
	case bootstrap && others < d.Desired:
		return Growing
	case bootstrap:
		return Pivoting
	case going, len(d.voters) > d.Desired:
		return Replacing
	case others < d.Desired:
		return Growing
	case len(d.learners) > 0: // it waits for a voter to leave
		return Replacing
	}
	return Stable
}
