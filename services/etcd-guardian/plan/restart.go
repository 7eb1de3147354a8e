package plan

import (
	"cmp"
	"fmt"
	"slices"
)

// rotates reports whether the permit is held because a member is started again for other authorities, another quota or
// another version of etcd.
func (d *decision) rotates() bool {
	return d.Permit != nil && d.Permit.Ours &&
		slices.Contains([]string{RotationReason, QuotaReason, VersionReason}, d.Permit.Reason)
}

// outdated returns the reason of the permit under which a member has to be started again, and why in words; empty if it
// need not be. What a member did not say is not known, and no reason to take it down.
func (v View) outdated(m Member) (permit, why string) {
	switch {
	case v.Trust != "" && m.Trust != "" && m.Trust != v.Trust:
		return RotationReason, nameOf(m) + " does not trust the authorities of now: etcd reads them when it starts"
	case v.Quota > 0 && m.Quota > 0 && m.Quota != v.Quota && !m.Bootstrap():
		return QuotaReason, fmt.Sprintf("the quota of %s is %d MiB, and %d MiB are set: etcd reads it when it starts",
			nameOf(m), m.Quota>>20, v.Quota>>20)
	case m.Version != "" && m.NextVersion != "" && m.NextVersion != m.Version && !m.Bootstrap():
		return VersionReason, fmt.Sprintf("%s runs etcd %s, and the executable of its host has %s", nameOf(m), m.Version,
			m.NextVersion)
	}
	return "", ""
}

// Current reports whether a member says that it was started with the authorities and the quota of now. A version of
// etcd that its agent did not report is not compared.
func (v View) Current(m Member) bool {
	permit, _ := v.outdated(m)
	return m.Trust != "" && m.Trust == v.Trust && permit == ""
}

// renewed reports whether the member that the permit is held for was started again as that has to be.
func (d *decision) renewed(m Member) bool {
	return d.rotates() && d.Current(m) && (d.Permit.Reason != VersionReason || m.Version == m.NextVersion)
}

// aimOf returns for what a member is started again under a permit with a reason.
func aimOf(permit string) string {
	switch permit {
	case QuotaReason:
		return "so that it has the quota that is set"
	case VersionReason:
		return "so that it runs the etcd of its host's executable"
	}
	return "so that it trusts the authorities of now"
}

// finishRestart ends a restart that has begun before anything else takes a voter down.
func (d *decision) finishRestart() bool { return d.rotates() && d.restart() }

// restart has members that trust other authorities than those of now, or have another quota or version of etcd than
// they should, started again, since etcd reads them at its start alone: learners, then one voter at a time under the
// permit, the leader last and after leadership was moved. All voters are healthy here.
func (d *decision) restart() bool {
	var outdated []Member
	for _, m := range slices.Concat(d.learners, d.voters) {
		if permit, _ := d.outdated(m); m.Healthy && permit != "" {
			outdated = append(outdated, m)
		}
	}
	slices.SortStableFunc(outdated, func(a, b Member) int {
		return cmp.Or(cmp.Compare(d.rankRestart(a), d.rankRestart(b)), cmp.Compare(rankLeader(a), rankLeader(b)))
	})
	for _, m := range outdated {
		if why, unblock := d.restartable(m); why != "" {
			d.holdBack(RestartMember, memberReference(m), why, unblock)
			continue
		}
		machine, _ := d.MachineOfMember(m)
		permit, why := d.outdated(m)
		switch {
		case m.Restarting && d.early(m.RestartFor, d.Settings.RestartAgain):
			return d.wait("%s to start again, %s", nameOf(m), aimOf(permit))
		// without space it cannot be written, and no other client can get it
		case !m.Learner && d.Permit == nil && !d.NoSpace:
			return d.do(Action{Kind: AcquirePermit, Member: m, Machine: machine, Permit: permit, Reason: why})
		case m.Leader:
			return d.do(Action{Kind: MoveLeader, Member: m, Machine: machine, Target: d.heir(m), Reason: why + ", and it leads"})
		}
		return d.do(Action{Kind: RestartMember, Member: m, Machine: machine, Reason: why})
	}
	return false
}

// rankRestart puts the member first that has the permit, then learners.
func (d *decision) rankRestart(m Member) int {
	switch {
	case d.holdsPermit(m):
		return 0
	case m.Learner:
		return 1
	}
	return 2
}

// restartable returns why a member cannot be started again now, and what would help; nothing if it can.
func (d *decision) restartable(m Member) (why, unblock string) {
	_, hosted := d.MachineOfMember(m)
	left := d.healthyVoters(m.ID)
	switch {
	case !hosted:
		return "no machine of the control plane runs it", "wait until the members are on machines"
	case earlierMinor(m.NextVersion, m.Version):
		return fmt.Sprintf("%s runs etcd %s, and etcd does not go back to %s", nameOf(m), m.Version, m.NextVersion),
			"update to a release with etcd " + m.Version + " or later"
	case !d.attended(m):
		return "the agent of " + nameOf(m) + " is away", "bring it back, or delete its machine"
	case m.Learner:
		return "", ""
	case d.Permit != nil && !(d.rotates() && d.holdsPermit(m)):
		return d.permitText(), "finish that work"
	case left < Majority(len(d.voters)):
		return fmt.Sprintf("without it %d of %d voters would be left, and %d are needed", left, len(d.voters),
			Majority(len(d.voters))), "add control-plane machines"
	}
	return "", ""
}

// earlierMinor reports whether etcd of version a refuses the data of version b, as that of an earlier minor version
// does. Source: etcd's downgrade guide.
func earlierMinor(a, b string) bool {
	var x, y [2]int
	_, xErr := fmt.Sscanf(a, "%d.%d.", &x[0], &x[1])
	_, yErr := fmt.Sscanf(b, "%d.%d.", &y[0], &y[1])
	return xErr == nil && yErr == nil && slices.Compare(x[:], y[:]) < 0
}
