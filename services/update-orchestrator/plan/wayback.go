package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// historyEntry is an entry of a history with the way back to it.
type historyEntry = updatev1.PlanClusterVersionHistoryResponse_Entry

// WaysBack returns the history of a cluster at now, with how long each entry took, what was accepted for it, and
// whether and how the cluster can go back to it. What only the release itself says, such as its signature, is not known
// here.
func WaysBack(cv *updatev1.ClusterVersion, windows []*updatev1.MaintenanceWindow, now time.Time,
) *updatev1.PlanClusterVersionHistoryResponse {
	out := &updatev1.PlanClusterVersionHistoryResponse{}
	seen := map[string]bool{}
	for i, h := range cv.GetStatus().GetHistory() {
		e := &historyEntry{
			Entry: h, Current: i == 0 && SameImage(h.GetImage(), cv.GetStatus().GetDesired().GetImage()),
			Accepted: acceptedTexts(h.GetAcceptedRisks()),
		}
		if start := h.GetStartedTime(); start != nil {
			end := now
			if h.GetCompletionTime() != nil {
				end = h.GetCompletionTime().AsTime()
			}
			e.Duration = durationpb.New(max(0, end.Sub(start.AsTime())))
		}
		_, digest, _ := strings.Cut(h.GetImage(), "@")
		switch again := seen[digest] && digest != ""; {
		case e.GetCurrent():
		case again:
			e.Reason = "a newer entry is of the same release"
		default:
			wayBack(cv, e, windows, now)
		}
		if seen[digest] = true; e.GetCanGoBack() && out.GetPrevious() == "" {
			out.Previous = h.GetVersion()
		}
		out.Entries = append(out.Entries, e)
	}
	return out
}

// wayBack sets how a cluster goes back to an entry, or why it cannot.
func wayBack(cv *updatev1.ClusterVersion, e *historyEntry, windows []*updatev1.MaintenanceWindow, now time.Time) {
	h := e.GetEntry()
	target := &updatev1.ReleaseReference{Version: h.Version, Image: h.Image}
	from, err := semver.StrictNewVersion(cv.GetStatus().GetDesired().GetVersion())
	to, bad := semver.StrictNewVersion(h.GetVersion())
	switch {
	case h.GetImage() == "":
		e.Reason = "its image is not known"
		return
	case SameImage(h.GetImage(), cv.GetStatus().GetDesired().GetImage()):
		e.Reason = "the cluster is at this release"
		return
	case err != nil || bad != nil:
		e.Reason = "the versions cannot be compared"
		return
	case to.GreaterThan(from):
		e.Reason = "it is newer than the release that the cluster is at: an update leads to it, not a way back"
		return
	}
	verdict := Preconditions(cv, target)
	var blocks, warns, waive []string
	for _, f := range slices.Concat(verdict.Refusing, verdict.Blocking) {
		blocks = append(blocks, f.Message)
	}
	for _, f := range verdict.Blocking {
		waive = append(waive, f.Name)
	}
	for _, f := range verdict.Warnings {
		if f.Name != preconditionRecommended { // no graph recommends a way back
			warns = append(warns, f.Message)
		}
	}
	if len(verdict.Refusing) == 0 {
		e.Command = commandBack(cv, target, waive)
	}
	e.CanGoBack = len(blocks) == 0
	texts := slices.Concat(blocks, warns)
	if p := Paused(cv, now); p != nil {
		texts = append(texts, "It waits: updates are "+PauseText(p))
	}
	if w := Windows(cv, target.GetImage(), windows, now); w.Closed() {
		texts = append(texts, "It "+w.Waits)
	}
	e.Reason = strings.Join(texts, "\n")
}

// commandBack returns the command that requests a release of the history, with the checks that must be waived for it.
func commandBack(cv *updatev1.ClusterVersion, target *updatev1.ReleaseReference, waive []string) string {
	command := "windlass adm upgrade "
	if Aborts(cv, target.GetImage()) {
		return command + "--abort"
	}
	named := past(cv, target.GetVersion()).GetImage() == target.GetImage()
	for _, offer := range offers(cv) {
		if offer.GetVersion() == target.GetVersion() && offer.GetImage() != target.GetImage() {
			named = false // the version is that of another release, too
		}
	}
	if named {
		command += "--to " + target.GetVersion()
	} else {
		command += "--to-image " + target.GetImage() + " --allow-explicit-upgrade"
	}
	isTarget := func(r *updatev1.ReleaseReference) bool {
		return named && r.GetVersion() == target.GetVersion() || !named && r.GetImage() == target.GetImage()
	}
	if !slices.ContainsFunc(cv.GetStatus().GetAvailableUpdates(), isTarget) && slices.ContainsFunc(
		cv.GetStatus().GetConditionalUpdates(),
		func(u *updatev1.ConditionalUpdate) bool { return isTarget(u.GetRelease()) }) {
		command += " --allow-not-recommended"
	}
	conditions := cv.GetStatus().GetConditions()
	for _, kind := range []string{Invalid, Failing, Progressing} {
		if Find(conditions, kind).GetStatus() == True {
			command += " --allow-upgrade-with-warnings"
			break
		}
	}
	for _, check := range waive {
		command += fmt.Sprintf(" --waive %s=REASON", check)
	}
	return command
}

// offers returns the updates that a cluster version offers.
func offers(cv *updatev1.ClusterVersion) []*updatev1.ReleaseReference {
	out := slices.Clone(cv.GetStatus().GetAvailableUpdates())
	for _, c := range cv.GetStatus().GetConditionalUpdates() {
		out = append(out, c.GetRelease())
	}
	return out
}

// acceptedTexts returns what an entry accepts, one text each: a line that begins with an asterisk is of the one before.
func acceptedTexts(accepted string) (out []string) {
	for line := range strings.SplitSeq(accepted, "\n") {
		switch {
		case line == "":
		case strings.HasPrefix(line, "* ") && len(out) > 0:
			out[len(out)-1] += "\n" + line
		default:
			out = append(out, line)
		}
	}
	return out
}
