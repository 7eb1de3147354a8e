package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// unanswered: without a majority no membership change is proposed, and the plan reports the loss. A stopping member is
// needed again.
func (d *decision) unanswered() {
	for _, m := range d.voters {
		if m.Stopping {
			d.do(Action{Kind: StartMember, Member: m, Reason: fmt.Sprintf("without %s no majority answers", nameOf(m))})
			break
		}
	}
	if m, ok := d.underway(); ok {
		d.wait("%s to be defragmented: without it no majority answers", nameOf(m))
		return
	}
	trouble := d.Trouble
	if trouble == "" {
		trouble = "no member answers"
	}
	if loss := d.loss(); loss != "" {
		d.wait("%s", loss)
		return
	}
	if d.NoLeader && d.running() > 0 {
		d.wait("the voters to elect a leader: %d of %d run, and none of them knows one", d.running(), len(d.voters))
		return
	}
	d.wait("etcd: %s", trouble)
}

// running returns how many voters' own status answers.
func (d *decision) running() int {
	n := 0
	for _, m := range d.voters {
		if m.Runs {
			n++
		}
	}
	return n
}

// leaderless: without a leader nothing can be changed, and how long the log is that a learner follows is not known.
func (d *decision) leaderless() bool {
	if !d.NoLeader || len(d.voters) == 0 {
		return false
	}
	return d.wait("the voters to elect a leader: %d of %d answer, and none of them leads", d.healthyVoters(0),
		len(d.voters))
}

// loss says which voters are missing for a majority and since when; empty if a majority runs and only does not agree
// yet.
func (d *decision) loss() string {
	var silent []string
	for _, m := range d.voters {
		if m.Runs {
			continue
		}
		text := nameOf(m) + m.sinceText()
		if m.Message != "" {
			text += ": " + m.Message
		}
		silent = append(silent, text)
	}
	running := len(d.voters) - len(silent)
	if len(silent) == 0 || running >= Majority(len(d.voters)) {
		return ""
	}
	return fmt.Sprintf("a majority of the voters: %d of %d run, %d are needed; %s", running, len(d.voters),
		Majority(len(d.voters)), strings.Join(silent, "; "))
}

// hooks puts the hook on machines that stay, and takes it off those that go and have no member. A machine that is being
// deleted never gets it: an administrator may have removed it on purpose.
func (d *decision) hooks() {
	for _, m := range d.Machines {
		switch {
		case !m.Deleting && m.Misowned:
			d.plan.Hooks = append(d.plan.Hooks, Action{Kind: AddHook, Machine: m, Reason: "the hook " + HookName +
				" belongs to " + HookOwner})
		case !m.Deleting && !m.Hooked:
			d.plan.Hooks = append(d.plan.Hooks,
				Action{Kind: AddHook, Machine: m, Reason: "every control-plane machine waits for the quorum before its drain"})
		case m.Deleting && m.Hooked && !d.hosts(m):
			d.plan.Hooks = append(d.plan.Hooks,
				Action{Kind: RemoveHook, Machine: m, Reason: "the quorum has no member on this machine"})
		}
	}
}

// hosts reports whether a member, learner or not, is on the machine. The bootstrap member is not, though it may be on
// the same host.
func (d *decision) hosts(machine Machine) bool {
	if _, ok := d.MemberOfMachine(machine); ok {
		return true
	}
	return slices.ContainsFunc(d.Members, func(m Member) bool { return !m.Bootstrap() && machine.Owns(m.PeerURLs) })
}

// retire: the bootstrap member has left, which is recorded permanently.
func (d *decision) retire() bool {
	if d.BootstrapRetired || len(d.voters) == 0 || slices.ContainsFunc(d.Members, Member.Bootstrap) {
		return false
	}
	return d.do(Action{Kind: RetireBootstrap, Reason: "the bootstrap member has left the cluster"})
}

// resume: a member that has not stopped yet can no longer leave.
func (d *decision) resume() bool {
	for _, m := range d.voters {
		if m.Stopping && m.Healthy && (d.leaver == nil || d.leaver.ID != m.ID) {
			return d.do(Action{Kind: StartMember, Member: m, Reason: nameOf(m) + " cannot leave now"})
		}
	}
	return false
}

// endPermit: the permit ends when its machine has no voter any more, when the work was reported done and the member is
// healthy again, and when a replacement that holds it cannot go on.
func (d *decision) endPermit() bool {
	if d.Permit == nil {
		return false
	}
	i := slices.IndexFunc(d.voters, d.holdsPermit)
	switch {
	case d.permitUnclear():
		return false
	case i < 0 && !d.Permit.Released && !d.Permit.Ours && slices.ContainsFunc(d.learners, d.holdsPermit):
		return false // it is not promoted until then
	case i < 0:
		return d.do(Action{Kind: FreePermit, Reason: "no voter is on its machine any more"})
	case !d.voters[i].Healthy, d.voters[i].Defragments:
		return false
	case d.renewed(d.voters[i]):
		return d.do(Action{Kind: FreePermit, Reason: nameOf(d.voters[i]) + " was started again, " + aimOf(d.Permit.Reason)})
	case d.rotates() && d.attended(d.voters[i]):
		return false // its agent may have the order already, so that it may go down at any moment
	case d.Permit.Released:
		return d.do(Action{Kind: FreePermit, Reason: "its work is done and " + nameOf(d.voters[i]) + " is healthy"})
	case d.NoSpace && !d.voters[i].Stopping:
		// Its holder cannot go on, nor give it back: neither can be written. It is asked for again before the voter goes
		// down.
		return d.do(Action{
			Kind: FreePermit, Reason: "etcd refuses writes, and members are defragmented only while the permit is free",
		})
	case d.rotates():
		return false // its agent is away, perhaps with the order
	case d.Permit.Ours && d.Permit.Reason == DefragmentationReason:
		return d.do(Action{Kind: FreePermit, Reason: "the defragmentation of " + nameOf(d.voters[i]) + " has ended"})
	case d.Permit.Ours && (d.leaver == nil || d.leaver.ID != d.voters[i].ID):
		return d.do(Action{Kind: FreePermit, Reason: nameOf(d.voters[i]) + " cannot leave now"})
	}
	return false
}

// dead: a voter that leaves anyway and is silent is removed first, if the rest have a healthy majority.
func (d *decision) dead() bool {
	for _, m := range d.voters {
		if m.Healthy {
			continue
		}
		after, why := d.deadAfter(m)
		if why == "" {
			continue
		}
		if d.early(m.Silent, after) {
			return d.wait("%s to answer again, or to be silent for %s: %s", nameOf(m), after, why)
		}
		rest, healthy := len(d.voters)-1, d.steadyVoters(m.ID)
		if rest == 0 || healthy < Majority(rest) {
			reason, unblock := fmt.Sprintf("only %d of the other %d voters are healthy", healthy, rest),
				"bring another voter back"
			if v, ok := d.disturbed(); ok && v.ID != m.ID {
				reason += fmt.Sprintf("; %s counts as down, since %s", nameOf(v), d.permitText())
				unblock = "finish that work, or bring another voter back"
			}
			d.holdBack(RemoveMember, memberReference(m), reason, unblock)
			continue
		}
		machine, _ := d.MachineOfMember(m)
		return d.do(Action{Kind: RemoveMember, Member: m, Machine: machine, Reason: why + ", and it is down"})
	}
	return false
}

// deadAfter returns how long a silent voter must be silent to be removed, and why it may be; no reason means that it
// may not.
func (d *decision) deadAfter(m Member) (time.Duration, string) {
	switch {
	case m.Stopping:
		return 0, nameOf(m) + " was stopped to leave the cluster"
	case d.goes(m):
		return d.Settings.DeadAfter, "its machine is being deleted"
	case d.orphan(m):
		return d.Settings.OrphanAfter, "it has neither a machine nor a node"
	case m.Bootstrap() && d.replaced(m):
		return d.Settings.DeadAfter, "its replacements vote"
	case m.Bootstrap() && d.BootstrapElsewhere:
		return d.Settings.OrphanAfter, "its host is lost: no machine can be deleted for it"
	}
	return 0, ""
}

// forsaken: a learner whose machine goes, or that does not come on, leaves at once: it has no vote, and only one may be
// there.
func (d *decision) forsaken() bool {
	for _, m := range d.learners {
		_, attended := d.offerOf(m)
		machine, _ := d.MachineOfMember(m)
		switch {
		case d.goes(m):
			return d.do(Action{
				Kind: RemoveMember, Member: m, Machine: machine,
				Reason: "the machine of this learner is being deleted",
			})
		case d.orphan(m):
			return d.do(Action{Kind: RemoveMember, Member: m, Machine: machine, Reason: "this learner has no machine"})
		case !d.caughtUp(m) && !d.early(m.Idle, d.stall(m)):
			return d.do(Action{
				Kind: RemoveMember, Member: m, Machine: machine,
				Reason: fmt.Sprintf("this learner made no progress for %s", d.stall(m)),
			})
		case !m.Healthy && !attended && !d.early(min(m.Silent, m.Idle), d.Settings.AgentAbsence):
			return d.do(Action{Kind: RemoveMember, Member: m, Machine: machine, Reason: "the agent of this learner is gone"})
		}
	}
	return false
}

// stall returns how long a learner may be without progress. It doubles with each learner of the machine that failed
// before: a member does not answer until it has received and loaded the snapshot, which takes minutes for a large
// database or on a busy host.
func (d *decision) stall(m Member) time.Duration {
	const mostDoublings = 3 // 8 minutes: no other machine may join in that time
	return d.Settings.LearnerStall << min(m.Failed, mostDoublings)
}

// silent: while a voter is silent that does not leave, no other member is added or removed.
func (d *decision) silent() bool {
	for _, m := range d.voters {
		if m.Healthy {
			continue
		}
		for _, l := range d.leavers() {
			if l.ID != m.ID && !l.Bootstrap() {
				d.holdBack(RemoveMember, memberReference(l), nameOf(m)+" does not answer", "bring it back, or delete its machine")
			}
		}
		if len(m.ClientURLs) == 0 {
			return d.wait("%s to start", nameOf(m))
		}
		if m.Defragments {
			return d.wait("%s to be defragmented", nameOf(m))
		}
		text := nameOf(m) + " to answer"
		if m.Message != "" {
			text += " (" + m.Message + ")"
		}
		return d.wait("%s", text+d.homelessText(m))
	}
	return false
}

// homelessText says why a silent voter without a machine is not removed; empty for any other.
func (d *decision) homelessText(m Member) string {
	switch {
	case !d.homeless(m):
		return ""
	case !d.NodesKnown:
		return "; it has no machine, and is kept until it is known which nodes exist"
	}
	return fmt.Sprintf("; it has no machine, but its node %s exists: bring it back, or delete the node", m.Name)
}

// promote: a learner that is needed as a voter becomes one as soon as it has caught up. Nothing else happens before.
// One that is not needed yet, on a machine beyond the number of voters, waits until a voter's machine is deleted.
// Source: seed 000, 13.5.3.1.
func (d *decision) promote() bool {
	if len(d.learners) == 0 || d.leaver != nil || d.staying() >= d.Desired {
		return false
	}
	d.explainLeavers()
	m := d.learners[0] // etcd allows one at a time
	if m.Restarting {
		return false // its agent may take it down at any moment, which is for a learner alone; restart sees to it
	}
	machine, _ := d.MachineOfMember(m)
	switch {
	case !m.Healthy || len(m.ClientURLs) == 0:
		return d.wait("%s to start", nameOf(m))
	case d.leaderApplied() == 0:
		return d.wait("the leader to report how long its log is: %s is promoted when it has caught up with it", nameOf(m))
	case !d.caughtUp(m):
		return d.wait("%s to catch up (%d of %d log entries)", nameOf(m), m.Applied, d.leaderApplied())
	case d.MachinesKnown && !machine.Hooked:
		return d.wait("the hook on machine %s", machine.Name)
	case d.holdsPermit(m): // as a voter it could go down at any moment, perhaps with another one
		return d.wait("the end of the work on its machine before %s is promoted: %s", nameOf(m), d.permitText())
	case d.steadyVoters(0)+1 < Majority(len(d.voters)+1):
		if v, ok := d.disturbed(); ok {
			return d.wait("%s, which counts as down, since %s", nameOf(v), d.permitText())
		}
		return d.wait("more voters to answer")
	}
	return d.do(Action{
		Kind: Promote, Member: m, Machine: machine,
		Reason: fmt.Sprintf("%s has caught up (%d of %d log entries)", nameOf(m), m.Applied, d.leaderApplied()),
	})
}

// caughtUp asks for more than etcd does: etcd promotes a learner that is still loading its snapshot, and then every
// write waits for it.
func (d *decision) caughtUp(m Member) bool {
	leader := d.leaderApplied()
	return m.Healthy && leader > 0 && m.Applied > 0 && leader-m.Applied <= d.Settings.PromoteLag
}

func (d *decision) leaderApplied() int64 {
	for _, m := range d.voters {
		if m.Leader {
			return m.Applied
		}
	}
	return 0
}

// leave takes the next step of the voter whose turn it is. All other voters are healthy here.
func (d *decision) leave() bool {
	d.explainLeavers()
	if d.leaver == nil {
		return false
	}
	m := *d.leaver
	machine, _ := d.MachineOfMember(m)
	why := "machine " + machine.Name + " is being deleted and its replacement votes"
	if m.Bootstrap() {
		why = fmt.Sprintf("%d other members vote", d.healthyVoters(m.ID))
		if d.healthyVoters(m.ID) < d.Desired {
			why = "the member of its own host votes"
		}
	}
	act := func(k Kind) bool { return d.do(Action{Kind: k, Member: m, Machine: machine, Reason: why}) }

	if i := slices.IndexFunc(d.voters, func(v Member) bool { return len(v.ClientURLs) == 0 }); i >= 0 {
		return d.wait("%s to publish its address", nameOf(d.voters[i]))
	}
	if d.publish() {
		return true
	}
	if !m.Stopping && d.early(d.EndpointsAge, d.Settings.EndpointsRest) {
		return d.wait("clients to learn the new addresses before %s leaves", nameOf(m))
	}
	switch {
	case d.RollOut != "" && !m.Stopping && !m.Bootstrap():
		d.holdBack(StopMember, memberReference(m), d.RollOut+" is being rolled out", "wait until that is finished")
		return d.stuck("the roll-out of %s to end: %s leaves afterwards", d.RollOut, nameOf(m))
	case d.Permit != nil && !d.holdsPermit(m):
		d.holdBack(StopMember, memberReference(m), d.permitText(), "finish that work")
		return d.stuck("the disruption permit, which %s holds for %s (%s)", d.Permit.Holder, d.Permit.Machine.GetName(),
			d.Permit.Reason)
	case d.Permit == nil:
		return d.do(Action{Kind: AcquirePermit, Member: m, Machine: machine, Permit: ReplacementReason, Reason: why})
	case m.Leader:
		return d.do(Action{Kind: MoveLeader, Member: m, Machine: machine, Target: d.heir(m), Reason: why + ", and it leads"})
	case !m.Stopping && d.attended(m) && d.healthyVoters(m.ID) >= Majority(len(d.voters)): // they agree without it
		return act(StopMember)
	case m.Stopping && d.early(m.StoppingFor, d.Settings.StopPatience):
		return d.wait("%s to stop", nameOf(m))
	}
	return act(RemoveMember)
}

func (d *decision) permitText() string {
	return fmt.Sprintf("%s holds the disruption permit for %s (%s)", d.Permit.Holder, d.Permit.Machine.GetName(),
		d.Permit.Reason)
}

// attended reports whether there is who can stop the member: its agent, or this guardian.
func (d *decision) attended(m Member) bool {
	if m.Bootstrap() {
		return !d.BootstrapElsewhere
	}
	_, ok := d.offerOf(m)
	return ok
}

// heir returns the voter to which m transfers leadership: one that stays, with the longest log.
func (d *decision) heir(m Member) Member {
	var best Member
	better := func(a Member) bool {
		if best.ID == 0 {
			return true
		}
		stays, bestStays := !d.goes(a) && !a.Bootstrap(), !d.goes(best) && !best.Bootstrap()
		if stays != bestStays {
			return stays
		}
		return a.Applied > best.Applied
	}
	for _, v := range d.voters {
		if v.ID != m.ID && v.Healthy && better(v) {
			best = v
		}
	}
	return best
}

// explainLeavers says of those that have to leave and cannot yet why that is.
func (d *decision) explainLeavers() {
	for _, m := range d.leavers() {
		if d.leaver != nil && m.ID == d.leaver.ID {
			continue
		}
		machine, _ := d.MachineOfMember(m)
		switch {
		case m.Bootstrap():
		case d.leaver != nil:
			d.holdBack(RemoveMember, memberReference(m), nameOf(*d.leaver)+" leaves first", "")
		case len(d.learners) > 0:
			d.holdBack(RemoveMember, memberReference(m), fmt.Sprintf("%s, the replacement of machine %s, does not vote yet",
				nameOf(d.learners[0]), machine.Name), "")
		default:
			d.holdBack(RemoveMember, memberReference(m),
				fmt.Sprintf("without it %d of %d voters would be left, and no replacement of machine %s runs a member",
					d.healthyVoters(m.ID), d.Desired, machine.Name), "")
		}
	}
}

// publish records the addresses for clients: those of all voters except the one that leaves.
func (d *decision) publish() bool {
	var urls []string
	for _, m := range d.voters {
		if d.leaver == nil || m.ID != d.leaver.ID {
			urls = append(urls, m.ClientURLs...)
		}
	}
	slices.Sort(urls)
	urls = slices.Compact(urls)
	if len(urls) == 0 || slices.Equal(urls, d.Endpoints) {
		return false
	}
	return d.do(Action{Kind: PublishEndpoints, Endpoints: urls, Reason: "the voters' addresses changed"})
}

// grow adds a learner while voters are missing, or while one is to leave and has no replacement. A machine beyond the
// number of voters gets one as soon as its node has joined, so that it has caught up when the machine that it replaces
// is deleted.
func (d *decision) grow() bool {
	if len(d.learners) > 0 {
		return false // etcd has one at a time
	}
	leaving := len(d.leavers()) > 0
	if len(d.voters) > d.Desired || len(d.voters) == d.Desired && !leaving {
		return d.unclaimed() || !leaving && d.surplus() || len(d.voters) == d.Desired && d.prepare()
	}
	if !d.MachinesKnown {
		return d.stuck("machine-api to say which control-plane machines there are")
	}
	if d.AddRefused {
		d.wait("etcd to accept the next member, which it does 5 s after the last one began to vote")
	}
	var pending []string
	for _, m := range d.free() {
		offer, missing := d.candidate(m)
		if missing == "" {
			reason := fmt.Sprintf("%d of %d voters are there", len(d.voters), d.Desired)
			if len(d.voters) >= d.Desired {
				reason = "a voter is about to leave and needs a replacement"
			}
			return d.do(Action{Kind: AddLearner, Machine: m, Offer: offer, Reason: reason})
		}
		pending = append(pending, missing)
		d.holdBack(AddLearner, m.Reference(), missing, "")
	}
	if len(pending) == 0 {
		return d.stuck("another control-plane machine (%d of %d voters)", d.staying(), d.Desired)
	}
	return d.stuck("%s (%d of %d voters)", strings.Join(pending, "; "), d.staying(), d.Desired)
}

// unclaimed: a healthy voter without a machine is never removed; a user has to say what it is.
func (d *decision) unclaimed() bool {
	for _, m := range d.voters {
		switch {
		case !d.homeless(m):
		case d.orphan(m):
			return d.stuck("a user to identify %s: it votes and has neither a machine nor a node; it is removed %s after "+
				"its process was stopped", nameOf(m), d.Settings.OrphanAfter)
		default:
			return d.stuck("a user to identify %s: it votes and has no machine", nameOf(m))
		}
	}
	return false
}

// surplus: there are more voters than desired, and none of them is to leave. Which one goes is the user's choice.
func (d *decision) surplus() bool {
	more := len(d.voters) - d.Desired
	if more <= 0 {
		return false
	}
	return d.stuck("a user to delete %d of the control-plane machines, or to raise the replicas of their set: there are "+
		"%d voters, and %d are desired", more, len(d.voters), d.Desired)
}

// prepare adds a learner that waits until it is needed.
func (d *decision) prepare() bool {
	if !d.MachinesKnown {
		return false
	}
	for _, m := range d.free() {
		if offer, missing := d.candidate(m); missing == "" {
			return d.do(Action{
				Kind: AddLearner, Machine: m, Offer: offer,
				Reason: fmt.Sprintf("machine %s is beyond the %d voters, as a replacement is", m.Name, d.Desired),
			})
		}
	}
	return false
}

// free returns the machines that stay and have no member. Those of an index whose voter is about to leave come first,
// and that on the bootstrap member's host, which leaves then.
func (d *decision) free() []Machine {
	leaves := map[int]bool{}
	for _, m := range d.leavers() {
		if machine, ok := d.MachineOfMember(m); ok && machine.Index >= 0 {
			leaves[machine.Index] = true
		}
	}
	var first, rest []Machine
	for _, m := range d.Machines {
		switch {
		case m.Deleting || d.hosts(m):
		case leaves[m.Index] || slices.ContainsFunc(d.voters, func(v Member) bool {
			return v.Bootstrap() && m.Owns(v.PeerURLs)
		}):
			first = append(first, m)
		default:
			rest = append(rest, m)
		}
	}
	return append(first, rest...)
}

// staying returns how many voters there are that do not leave.
func (d *decision) staying() int { return len(d.voters) - len(d.leavers()) }

// candidate returns the offer by which a machine can get a member, or what is missing.
func (d *decision) candidate(m Machine) (Offer, string) {
	i := slices.IndexFunc(d.Offers, func(o Offer) bool {
		if o.MachineUID != "" {
			return o.MachineUID == m.UID
		}
		return o.Node == m.Node || o.Node == m.Name
	})
	switch {
	case i < 0 && m.Phase != "" && m.Phase != "Running":
		return Offer{}, fmt.Sprintf("machine %s to become a node (%s)", m.Name, m.Phase)
	case i < 0:
		return Offer{}, fmt.Sprintf("the agent of machine %s to offer a member", m.Name)
	case !m.Hooked:
		return Offer{}, fmt.Sprintf("the hook on machine %s", m.Name)
	case d.early(0, d.Offers[i].Wait):
		return Offer{}, fmt.Sprintf("machine %s to be tried again: its last member did not catch up", m.Name)
	case len(m.Addresses) > 0 && d.Offers[i].PeerURL != "" && !m.Owns([]string{d.Offers[i].PeerURL}):
		return Offer{}, fmt.Sprintf("the agent of machine %s to offer an address of its own, not %s", m.Name,
			d.Offers[i].PeerURL)
	}
	return d.Offers[i], ""
}

func nameOf(m Member) string {
	switch {
	case m.Learner && m.Name == "":
		return fmt.Sprintf("learner %x", m.ID)
	case m.Learner:
		return "learner " + m.Name
	case m.Name == "":
		return fmt.Sprintf("member %x", m.ID)
	}
	return "member " + m.Name
}

func memberReference(m Member) *metav1.ObjectReference {
	return &metav1.ObjectReference{Kind: "Member", Name: m.Name, Uid: fmt.Sprintf("%x", m.ID)}
}
