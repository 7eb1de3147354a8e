package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// Names of the preconditions.
const (
	preconditionRollback    = "ClusterVersionRollback"
	preconditionGiantHop    = "ClusterVersionGiantHop"
	preconditionUpgradeable = "ClusterVersionUpgradeable"
	preconditionRecommended = "ClusterVersionRecommendedUpdate"
	preconditionTrust       = "ClusterVersionVerificationKeys"
	preconditionSnapshot    = "ClusterVersionSnapshot"
)

// Reasons of the precondition ClusterVersionGiantHop.
const (
	majorVersionUpdate          = "MajorVersionUpdate"
	multipleMinorVersionsUpdate = "MultipleMinorVersionsUpdate"
)

// Reasons of Upgradeable=False that are no operator's.
const (
	versionUpdating  = "ClusterVersionUpdating"
	versionOverrides = "ClusterVersionOverrides"
)

// Finding is what one precondition says against an update.
type Finding struct {
	Name    string // such as ClusterVersionUpgradeable
	Reason  string
	Message string
}

func (f Finding) String() string {
	return fmt.Sprintf("Precondition %q failed because of %q: %s", f.Name, f.Reason, f.Message)
}

// Verdict is what all preconditions together say. The zero Verdict has no objection.
type Verdict struct {
	Refusing []Finding // cannot be waived: what they warn of could not be undone by another update
	Blocking []Finding
	Warnings []Finding
}

// Decide says whether an update may go on. blocked is why not (reason UpgradePreconditionCheckFailed), empty if it may;
// accepted is what goes to the history as accepted risks then.
func (v Verdict) Decide(w Waivers) (blocked, accepted string) {
	var texts, open, waived []string
	for _, f := range v.Blocking {
		if text, ok := w.Of(f.Name); !ok {
			open = append(open, f.Name)
		} else if !slices.Contains(waived, text) {
			waived = append(waived, text)
		}
	}
	for _, f := range slices.Concat(v.Refusing, v.Blocking, v.Warnings) {
		texts = append(texts, f.String())
	}
	text := strings.Join(texts, "")
	if len(texts) > 1 {
		text = "Multiple precondition checks failed:\n* " + strings.Join(texts, "\n* ")
	}
	switch {
	case len(v.Refusing) > 0:
		return text, ""
	case len(open) > 0:
		return text + "\n" + hint(open), ""
	case len(waived) > 0:
		return "", fmt.Sprintf("Forced through blocking failures (%s): %s", strings.Join(waived, ", "), text)
	}
	return "", text
}

func (v *Verdict) block(name, reason, format string, args ...any) {
	v.Blocking = append(v.Blocking, Finding{name, reason, fmt.Sprintf(format, args...)})
}

func (v *Verdict) warn(name, reason, format string, args ...any) {
	v.Warnings = append(v.Warnings, Finding{name, reason, fmt.Sprintf(format, args...)})
}

// Preconditions checks an update of a cluster to a release whose version is known. The current version is the one that
// is being reconciled, not the one completed last.
func Preconditions(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference) Verdict {
	var v Verdict
	to, err := semver.StrictNewVersion(target.GetVersion())
	if err != nil {
		v.block(preconditionRollback, "InvalidDesiredVersion", "%q is no semantic version.", target.GetVersion())
		return v
	}
	from, err := semver.StrictNewVersion(cv.GetStatus().GetDesired().GetVersion())
	if err != nil {
		v.warn(preconditionRollback, invalidCurrentVersion, "The current version %q is no semantic version.",
			cv.GetStatus().GetDesired().GetVersion())
	} else {
		v.rollback(cv, target, from, to)
		v.giantHop(from, to)
		v.upgradeable(cv, from, to)
	}
	v.recommended(cv, target)
	return v
}

// WithTrust adds what is wrong with the keys and stores that a release brings for the verification of the update after
// it; fault is nil if nothing is. It cannot be waived: the signature of the next update would have to be waived too,
// and so on.
func (v Verdict) WithTrust(fault error) Verdict {
	if fault != nil {
		v.Refusing = append(slices.Clone(v.Refusing), Finding{
			preconditionTrust, "UnusableTrust",
			fmt.Sprintf("%v. No later update could be verified, so this cannot be waived.", fault),
		})
	}
	return v
}

func sameMinor(a, b *semver.Version) bool { return a.Major() == b.Major() && a.Minor() == b.Minor() }

// rollback refuses to go back, except to the very release before this one, if it is of the same minor version or the
// update from it was not completed.
func (v *Verdict) rollback(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference, from, to *semver.Version) {
	if !to.LessThan(from) {
		return
	}
	before := previous(cv)
	switch {
	case SameImage(before.GetImage(), target.GetImage()) && sameMinor(from, to):
		return
	case Aborts(cv, target.GetImage()):
		v.warn(preconditionRollback, "UpdateAborted", "The update from %s to %s was not completed. What %s has changed in "+
			"stored data stays, and %s may not know it.", to, from, from, to)
		return
	}
	last := "there is none"
	if before != nil {
		last = fmt.Sprintf("it is %s, %s", before.GetVersion(), before.GetImage())
	}
	v.block(preconditionRollback, "LowDesiredVersion",
		"%s is less than the current target %s; the only way back is to the previous release, within the same minor version "+
			"or while the update from it is not completed (%s).", to, from, last)
}

// previous returns the newest history entry that differs from the current one, also a partial one; nil if there is
// none.
func previous(cv *updatev1.ClusterVersion) *updatev1.UpdateHistory {
	desired := cv.GetStatus().GetDesired()
	for _, h := range cv.GetStatus().GetHistory() {
		if h.GetVersion() != desired.GetVersion() || h.GetImage() != desired.GetImage() {
			return h
		}
	}
	return nil
}

// Aborts reports whether an image is that of the release that was completed last, while the cluster is on its way to
// another one.
func Aborts(cv *updatev1.ClusterVersion, image string) bool {
	history := cv.GetStatus().GetHistory()
	i := slices.IndexFunc(history, completed)
	return Underway(cv) && i > 0 && SameImage(history[i].GetImage(), image)
}

// bridge is the one pair of major versions between which an update leads: the last of the fourth and the first of the
// fifth.
func bridge(from, to *semver.Version) bool {
	return from.Major() == 4 && to.Major() == 5 && to.Minor() == 0
}

// giantHop returns the reason why an update skips too much; empty if it does not.
func giantHop(from, to *semver.Version) string {
	switch {
	case to.Major() > from.Major() && !bridge(from, to):
		return majorVersionUpdate
	case to.Major() == from.Major() && to.Minor() > from.Minor()+1:
		return multipleMinorVersionsUpdate
	}
	return ""
}

func (v *Verdict) giantHop(from, to *semver.Version) {
	switch giantHop(from, to) {
	case majorVersionUpdate:
		v.block(preconditionGiantHop, majorVersionUpdate, "%s has a larger major version than the current target %s.", to,
			from)
	case multipleMinorVersionsUpdate:
		v.block(preconditionGiantHop, multipleMinorVersionsUpdate,
			"%s is more than one minor version beyond the current target %s.", to, from)
	}
}

// upgradeable lets the condition Upgradeable=False hold back minor and major updates. Patches are warned of what
// operators object to.
func (v *Verdict) upgradeable(cv *updatev1.ClusterVersion, from, to *semver.Version) {
	c := Find(cv.GetStatus().GetConditions(), Upgradeable)
	switch {
	case c.GetStatus() != False:
	case to.GreaterThan(from) && !sameMinor(from, to):
		v.block(preconditionUpgradeable, c.GetReason(), "%s", c.GetMessage())
	case sameMinor(from, to):
		v.patch(cv, from, to)
		if r := c.GetReason(); to.GreaterThan(from) && r != versionUpdating && r != versionOverrides {
			v.warn(preconditionUpgradeable, c.GetReason(), "%s", c.GetMessage())
		}
	}
}

// patch warns of what an update within a minor version may meet.
func (v *Verdict) patch(cv *updatev1.ClusterVersion, from, to *semver.Version) {
	if overridden(cv) {
		v.warn(preconditionUpgradeable, "ClusterVersionOverridesSet",
			"Disabling ownership by overrides keeps objects from being updated: remove them before the next minor update.")
	}
	started, err := semver.StrictNewVersion(lastCompleted(cv.GetStatus().GetHistory()))
	if err != nil || !Underway(cv) || sameMinor(started, from) {
		return
	}
	kind := "Minor"
	if started.Major() != from.Major() {
		kind = "Major"
	}
	v.warn(preconditionUpgradeable, kind+"VersionClusterUpdateInProgress",
		"Retargeting to %s while a %s version update from %s to %s is in progress.", to, strings.ToLower(kind), started, from)
}

func overridden(cv *updatev1.ClusterVersion) bool {
	return slices.ContainsFunc(cv.GetSpec().GetOverrides(), (*updatev1.ComponentOverride).GetUnmanaged)
}

// updating reports whether the cluster is on its way from one release to another.
func Underway(cv *updatev1.ClusterVersion) bool {
	history := cv.GetStatus().GetHistory()
	return len(history) > 0 && history[0].GetState() == statePartial && lastCompleted(history) != ""
}

// recommended warns of a target that is not recommended. It never blocks.
func (v *Verdict) recommended(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference) {
	status := cv.GetStatus()
	if target.GetImage() == status.GetDesired().GetImage() {
		return
	}
	same := func(r *updatev1.ReleaseReference) bool { return identity(r) == identity(target) }
	for _, u := range status.GetConditionalUpdates() {
		if !same(u.GetRelease()) {
			continue
		}
		switch c := Find(u.GetConditions(), Recommended); {
		case c.GetStatus() != True:
			v.warn(preconditionRecommended, c.GetReason(), "Update from %s to %s is not recommended:\n\n%s",
				status.GetDesired().GetVersion(), target.GetVersion(), c.GetMessage())
		case c.GetReason() == allExposedRisksAccepted:
			v.warn(preconditionRecommended, c.GetReason(),
				"Update from %s to %s is recommended only since risks are accepted:\n\n%s",
				status.GetDesired().GetVersion(), target.GetVersion(), c.GetMessage())
		}
		return
	}
	if slices.ContainsFunc(status.GetAvailableUpdates(), same) {
		return
	}
	if cv.GetSpec().GetChannel() == "" {
		v.warn(preconditionRecommended, noChannel,
			"Configured channel is unset, so the recommended status of updating from %s to %s is unknown.",
			status.GetDesired().GetVersion(), target.GetVersion())
		return
	}
	reason := "UnknownUpdate"
	if c := Find(status.GetConditions(), RetrievedUpdates); c.GetStatus() == False {
		reason = c.GetReason()
	}
	v.warn(preconditionRecommended, reason, "The %q channel says nothing of an update from %s to %s.",
		cv.GetSpec().GetChannel(),
		status.GetDesired().GetVersion(), target.GetVersion())
}

// UpgradeableCondition is the condition Upgradeable of a ClusterVersion, without time: nil if nothing objects to a
// minor or major update, and it is not shown then.
func UpgradeableCondition(cv *updatev1.ClusterVersion, operators []*updatev1.ClusterOperator) *metav1.Condition {
	type objection struct{ reason, message string }
	var all []objection
	if Underway(cv) {
		all = append(all, objection{versionUpdating, fmt.Sprintf("An update to %s is in progress.",
			cv.GetStatus().GetDesired().GetVersion())})
	}
	if overridden(cv) {
		all = append(all,
			objection{
				versionOverrides,
				"Disabling ownership by overrides keeps objects from being updated: remove them from spec.overrides.",
			})
	}
	for _, o := range operators {
		if c := Find(o.GetStatus().GetConditions(), Upgradeable); c.GetStatus() == False {
			name := o.GetMetadata().GetName()
			all = append(all, objection{
				"ClusterOperatorUpgradeable-" + name,
				fmt.Sprintf("Cluster operator %s should not be upgraded between minor or major versions: %s: %s", name,
					c.GetReason(), c.GetMessage()),
			})
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return condition(Upgradeable, False, all[0].reason, all[0].message)
	}
	text := "Cluster should not be upgraded between minor or major versions for multiple reasons:"
	for _, o := range all {
		text += "\n* " + o.message
	}
	return condition(Upgradeable, False, multipleReasons, text)
}
