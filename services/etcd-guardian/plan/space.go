package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Limits of etcd's space. Freed space stays in the file of a database until it is defragmented, during which the member
// serves no request.
const (
	defragmentFrom = 100 << 20 // bytes: a smaller file is not worth the stop
	// percent of the file that must be free; source: OpenShift's etcd operator, which takes 45
	defragmentFree = 50
	shrinkFree     = 10 // the same while writes are refused for want of space
	// percent of the quota that every database must be below before writes are allowed again
	disarmBelow  = 80
	compactAgain = 30 * time.Second // until old revisions are dropped once more
	retryFirst   = time.Minute      // until a member is defragmented again whose database did not get smaller; doubles
	retryMost    = time.Hour
)

// space defragments what is mostly free while etcd accepts writes: one member at a time, the leader last, under the
// permit. All voters are healthy here.
func (d *decision) space() bool {
	if m, ok := d.underway(); ok {
		return d.wait("%s to be defragmented", nameOf(m))
	}
	if d.Permit != nil || d.NoSpace {
		return false
	}
	for _, m := range d.leaderLast() {
		if d.mostlyFree(m) && !d.pausing(m) {
			return d.defragment(m)
		}
	}
	return false
}

// mostlyFree reports whether a member's database is worth being defragmented.
func (d *decision) mostlyFree(m Member) bool {
	return m.DBSize >= defragmentFrom && m.free()*100 >= m.DBSize*defragmentFree
}

// relieve gives an etcd space that refuses writes (alarm NOSPACE): it drops old revisions, defragments, and ends the
// alarm when every database that answers is small enough. The first and the last of these stop no member and need no
// permit, so they are done also while a voter is silent; one that comes back with a full database raises the alarm
// again. Defragmentation stops a member: if a voter is silent, a majority must be left without it. The permit cannot be
// written without space, and no other client can get it either; endPermit ends one that is held.
func (d *decision) relieve() bool {
	if !d.NoSpace || d.rotates() || d.leaver != nil && d.leaver.Stopping {
		return false // what was begun under the permit is ended first
	}
	if m, ok := d.underway(); ok {
		return d.wait("%s to be defragmented: %s", nameOf(m), d.noSpace())
	}
	var full []Member
	outgrown := false
	for _, m := range d.leaderLast() {
		if m.Healthy && m.Quota != 0 && m.DBSize*100 >= m.Quota*disarmBelow {
			full, outgrown = append(full, m), outgrown || d.Quota > m.Quota
		}
	}
	compact := Action{Kind: Compact, Reason: "etcd has no space left and refuses writes"}
	switch {
	case len(full) == 0:
		return d.do(Action{Kind: Disarm, Reason: "there is space again"})
	case !d.Compacted:
		return d.do(compact) // first, so that what it frees is given back too
	}
	for _, m := range full {
		if m.free()*100 >= m.DBSize*shrinkFree && d.mayDefragment(m) {
			return d.defragment(m)
		}
	}
	switch {
	case !d.early(d.CompactedFor, compactAgain):
		return d.do(compact)
	case outgrown && d.Permit == nil && d.healthyVoters(0) == len(d.voters) && d.restart():
		return true
	}
	return d.stuck("space: %s; %s", d.noSpace(), d.remedy())
}

// mayDefragment reports whether a member can be defragmented now for want of space; otherwise it is held back with the
// reason.
func (d *decision) mayDefragment(m Member) bool {
	hold := func(reason, unblock string) bool {
		d.holdBack(Defragment, memberReference(m), reason, unblock)
		return false
	}
	silent, some := d.firstSilent()
	switch {
	case d.Permit != nil:
		return hold(d.permitText(), "finish that work")
	case some && d.healthyVoters(m.ID) < Majority(len(d.voters)):
		return hold(fmt.Sprintf("%s does not answer, and without %s %d of %d voters would be left", nameOf(silent), nameOf(m),
			d.healthyVoters(m.ID), len(d.voters)),
			"bring it back, or delete its machine")
	case d.pausing(m):
		return hold(fmt.Sprintf("its database did not get smaller in %d tries", m.Tries),
			fmt.Sprintf("wait until %s after the last try", pauseAfter(m.Tries)))
	}
	return true
}

// noSpace says that etcd refuses writes and since when.
func (d *decision) noSpace() string {
	if d.NoSpaceSince == "" {
		return "etcd refuses writes"
	}
	return "etcd refuses writes since " + d.NoSpaceSince
}

// remedy says what gives a full etcd space where the guardian can do no more: what holds it back, if anything does.
func (d *decision) remedy() string {
	silent, some := d.firstSilent()
	held := slices.ContainsFunc(d.plan.HeldBack, func(h *metav1.HeldBack) bool {
		return h.GetAction() == string(Defragment)
	})
	switch {
	case held && d.Permit != nil:
		return "members are defragmented when " + d.Permit.Holder + " has given the disruption permit back"
	case held && some:
		return fmt.Sprintf("the others are defragmented when %s%s answers: bring it back, or delete its machine",
			nameOf(silent), silent.sinceText())
	case held:
		return "members are defragmented again after a pause"
	}
	text := "delete objects, or give the members a larger quota"
	if some {
		text += fmt.Sprintf("; %s%s does not answer: bring it back, or delete its machine", nameOf(silent),
			silent.sinceText())
	}
	return text
}

func (d *decision) firstSilent() (Member, bool) {
	i := slices.IndexFunc(d.voters, func(m Member) bool { return !m.Healthy })
	if i < 0 {
		return Member{}, false
	}
	return d.voters[i], true
}

// underway returns the member that is being defragmented.
func (d *decision) underway() (Member, bool) {
	i := slices.IndexFunc(d.voters, func(m Member) bool { return m.Defragments })
	if i < 0 {
		return Member{}, false
	}
	return d.voters[i], true
}

func (d *decision) defragment(m Member) bool {
	machine, _ := d.MachineOfMember(m)
	return d.do(Action{
		Kind: Defragment, Member: m, Machine: machine,
		Reason: fmt.Sprintf("%d of the %d MiB of its database are free", m.free()>>20, m.DBSize>>20),
	})
}

// pausing reports whether it is too early to defragment a member again, and asks for another look when it is not.
func (d *decision) pausing(m Member) bool {
	return m.Tries > 0 && d.early(m.TriedFor, pauseAfter(m.Tries))
}

// pauseAfter returns the pause after a number of tries in a row that did not help.
func pauseAfter(tries int) time.Duration {
	pause := retryFirst
	for ; tries > 1 && pause < retryMost; tries-- {
		pause *= 2
	}
	return min(pause, retryMost)
}

func (d *decision) leaderLast() []Member {
	voters := slices.Clone(d.voters)
	slices.SortStableFunc(voters, func(a, b Member) int { return cmp.Compare(rankLeader(a), rankLeader(b)) })
	return voters
}

// sinceText says since when a member is silent; empty if that is not known.
func (m Member) sinceText() string {
	if m.SilentSince == "" {
		return ""
	}
	return " (silent since " + m.SilentSince + ")"
}

// free returns how much of the file of its database is free, in bytes.
func (m Member) free() int64 { return m.DBSize - m.DBInUse }

// ForSpace reports whether the action is one by which a full etcd gets space again.
func (a Action) ForSpace() bool {
	return slices.Contains([]Kind{FreePermit, Compact, Defragment, Disarm, MoveLeader, RestartMember}, a.Kind)
}

func rankLeader(m Member) int {
	if m.Leader {
		return 1
	}
	return 0
}
