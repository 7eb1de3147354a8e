package plan

import (
	"fmt"
	"slices"
	"strings"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// VerifyPayload is the check of a release's signature, and the reason of the condition ReleaseAccepted where it fails.
const VerifyPayload = "VerifyPayload"

// Waivers say which failed checks an update goes on in spite of. Each is waived by its name, with a reason. force
// waives what speaks against the step from the present release, and nothing that speaks against the release itself:
// neither its signature nor that it is an older one.
type Waivers struct {
	force   bool
	reasons map[string]string // by check
}

// WaiversOf returns what a desired update waives.
func WaiversOf(d *updatev1.DesiredUpdate) Waivers {
	w := Waivers{force: d.GetForce(), reasons: map[string]string{}}
	for _, c := range d.GetWaive() {
		w.reasons[c.GetName()] = c.GetReason()
	}
	return w
}

// Of reports whether a check is waived, and how that is recorded.
func (w Waivers) Of(check string) (text string, waived bool) {
	if reason, ok := w.reasons[check]; ok {
		return fmt.Sprintf("%s is waived: %q", check, reason), true
	}
	return "the update is forced", w.force && slices.Contains([]string{preconditionGiantHop, preconditionUpgradeable},
		check)
}

// Carried says which waivers a desired update has from the one before it, which was for another release; empty if there
// are none.
func Carried(before, d *updatev1.DesiredUpdate) string {
	first := before.GetVersion() == "" && before.GetImage() == "" // it was for the update that is desired now
	if first || before.GetVersion() == d.GetVersion() && before.GetImage() == d.GetImage() {
		return ""
	}
	old := WaiversOf(before).reasons
	var kept []string
	for _, c := range d.GetWaive() {
		if reason, ok := old[c.GetName()]; ok && reason == c.GetReason() {
			kept = append(kept, c.GetName())
		}
	}
	for _, risk := range d.GetAcceptRisks() {
		if slices.ContainsFunc(before.GetAcceptRisks(), func(r *updatev1.AcceptedRisk) bool {
			return r.GetName() == risk.GetName()
		}) {
			kept = append(kept, "the risk "+risk.GetName())
		}
	}
	if before.GetForce() && d.GetForce() {
		kept = append(kept, "what force waives")
	}
	if len(kept) == 0 {
		return ""
	}
	return "spec.desiredUpdate: still waived, as for the update before: " + strings.Join(kept, ", ")
}

// Accepted returns the names of the risks that are accepted for the next update. Those that were accepted for an update
// that is completed are not: it was that update that had them.
func Accepted(cv *updatev1.ClusterVersion) []string {
	d := cv.GetSpec().GetDesiredUpdate()
	if history := cv.GetStatus().GetHistory(); len(history) > 0 && history[0].GetState() == StateCompleted &&
		(d.GetVersion() != "" || d.GetImage() != "") &&
		(d.GetArchitecture() == "" || d.GetArchitecture() == cv.GetStatus().GetDesired().GetArchitecture()) &&
		(d.GetVersion() == "" || d.GetVersion() == history[0].GetVersion()) &&
		(d.GetImage() == "" || SameImage(d.GetImage(), history[0].GetImage())) {
		return nil
	}
	var names []string
	for _, r := range d.GetAcceptRisks() {
		names = append(names, r.GetName())
	}
	return names
}

// hint says how failed checks are waived.
func hint(checks []string) string {
	var flags []string
	for _, c := range checks {
		if f := fmt.Sprintf("--waive %s=REASON", c); !slices.Contains(flags, f) {
			flags = append(flags, f)
		}
	}
	return "To update all the same: " + strings.Join(flags, " ")
}

// Unverified returns why a release that cannot be verified is refused; or, if that is waived, what is recorded.
func (w Waivers) Unverified(release string, fault error) (blocked, accepted string) {
	text, waived := w.Of(VerifyPayload)
	if !waived {
		return fmt.Sprintf("%v. %s", fault, hint([]string{VerifyPayload})), ""
	}
	return "", fmt.Sprintf("Target release %s cannot be verified, but %s: %v", release, text, fault)
}
