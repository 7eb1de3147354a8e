package plan

import (
	"slices"
	"strings"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// What a check of a release came to.
const (
	CheckPassed     = "Passed"
	CheckWarned     = "Warned"     // recorded in the history, if the update is requested
	CheckWaived     = "Waived"     // it failed, which is waived; recorded in the history
	CheckFailed     = "Failed"     // the update is refused
	CheckNotChecked = "NotChecked" // an earlier check failed
)

// preconditions are the names of all preconditions, in the order in which they are shown.
var preconditions = []string{
	preconditionRollback, preconditionGiantHop, preconditionUpgradeable, preconditionRecommended, preconditionTrust,
}

// Checks returns what each precondition says, for an update with waivers, and how a failed one is waived, unless
// another one cannot be.
func (v Verdict) Checks(w Waivers) []*updatev1.ReleaseCheck {
	var out []*updatev1.ReleaseCheck
	for _, name := range preconditions {
		c := &updatev1.ReleaseCheck{Name: name, Result: CheckPassed}
		add := func(list []Finding, result func(Finding) string) {
			for _, f := range list {
				if f.Name != name {
					continue
				}
				r := result(f)
				if severity(r) > severity(c.GetResult()) {
					c.Result, c.Reason = r, f.Reason
				}
				c.Message = strings.TrimPrefix(c.GetMessage()+"\n"+f.Message, "\n")
			}
		}
		add(v.Refusing, func(Finding) string { return CheckFailed })
		add(v.Blocking, func(f Finding) string {
			if _, waived := w.Of(f.Name); waived {
				return CheckWaived
			}
			return CheckFailed
		})
		add(v.Warnings, func(Finding) string { return CheckWarned })
		if c.GetResult() == CheckFailed && len(v.Refusing) == 0 {
			c.Message += "\n" + hint([]string{name})
		}
		out = append(out, c)
	}
	return out
}

// SnapshotCheck is what a preflight says of the snapshot of etcd before an update.
func SnapshotCheck(w Waivers) *updatev1.ReleaseCheck {
	c := &updatev1.ReleaseCheck{
		Name: preconditionSnapshot, Result: CheckNotChecked, Message: "A snapshot of etcd is taken before the update begins.",
	}
	if text, waived := w.Of(preconditionSnapshot); waived {
		c.Result, c.Message = CheckWaived, text
	}
	return c
}

func severity(result string) int {
	return slices.Index([]string{CheckPassed, CheckWarned, CheckWaived, CheckFailed}, result)
}

// Unchecked returns the preconditions of a release that was refused before them.
func Unchecked() []*updatev1.ReleaseCheck {
	var out []*updatev1.ReleaseCheck
	for _, name := range preconditions {
		out = append(out, &updatev1.ReleaseCheck{Name: name, Result: CheckNotChecked})
	}
	return out
}
