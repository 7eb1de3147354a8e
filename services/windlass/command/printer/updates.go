package printer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// Update returns the name of an update: its version, else its image.
func Update(version, image string) string {
	switch {
	case version != "":
		return version
	case image != "":
		return image
	}
	return "<unknown>"
}

// RisksAccepted is the reason of the condition Recommended of an update that is recommended only since its risks are
// accepted.
const RisksAccepted = "AllExposedRisksAccepted"

// Recommended prints the recommended updates.
func Recommended(out io.Writer, list []*updatev1.ReleaseReference) error {
	if len(list) == 0 {
		_,
			err := fmt.Fprintln(out,
			"No updates available. You may still upgrade to a specific release image with --to-image or wait for new updates to be available.")
		return err
	}
	fmt.Fprint(out, "\nRecommended updates:\n\n")
	rows := [][]string{{"VERSION", "IMAGE"}}
	for _, r := range list {
		rows = append(rows, []string{r.GetVersion(), r.GetImage()})
	}
	return table.NewIndented(out, "  ").Print(rows...)
}

// Risky prints the updates with known risks, or only that there are some. now is for the ages of what is known of the
// risks.
func Risky(out io.Writer, list []*updatev1.ConditionalUpdate, show bool, now time.Time) error {
	var risky, accepted []*updatev1.ConditionalUpdate
	for _, u := range list {
		switch c := object.FindCondition(u.GetConditions(), "Recommended"); {
		case c.GetStatus() != "True":
			risky = append(risky, u)
		case c.GetReason() == RisksAccepted:
			accepted = append(accepted, u)
		}
	}
	if len(accepted) > 0 {
		fmt.Fprintln(out, "\nRecommended only since their risks are accepted:")
		for _, u := range accepted {
			if err := Conditional(out, u, now); err != nil {
				return err
			}
		}
	}
	switch {
	case len(risky) == 0 && show:
		fmt.Fprintln(out, "\nNo updates which are not recommended based on your cluster configuration are available.")
	case len(risky) > 0 && !show:
		fmt.Fprintln(out,
			"\nAdditional updates which are not recommended for your cluster configuration are available, to view those re-run the command with --include-not-recommended.")
	case show:
		fmt.Fprintln(out, "\nSupported but not recommended updates:")
		for _, u := range risky {
			if err := Conditional(out, u, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// Conditional prints what is known of an update with risks.
func Conditional(out io.Writer, u *updatev1.ConditionalUpdate, now time.Time) error {
	c := object.FindCondition(u.GetConditions(), "Recommended")
	fmt.Fprintf(out, "\n  Version: %s\n  Image: %s\n  Recommended: %s\n  Reason: %s\n  Message: %s\n",
		u.GetRelease().GetVersion(), u.GetRelease().GetImage(),
		c.GetStatus(), c.GetReason(), strings.ReplaceAll(strings.TrimSpace(c.GetMessage()), "\n", "\n  "))
	return risks(out, u.GetRisks(), now)
}

// risks prints what is known of risks that queries decide; nothing if there are none.
func risks(out io.Writer, list []*updatev1.ConditionalUpdateRisk, now time.Time) error {
	rows := [][]string{{"RISK", "APPLIES", "SINCE", "EVALUATED", "MESSAGE"}}
	for _, r := range list {
		if !slices.ContainsFunc(r.GetOutcomes(), func(o *updatev1.RuleOutcome) bool { return o.GetPromql() != "" }) {
			continue
		}
		last := r.GetOutcomes()[len(r.GetOutcomes())-1]
		applies := object.FindCondition(r.GetConditions(), "Applies")
		since, evaluated := "-", "-"
		if at := applies.GetLastTransitionTime(); at != nil {
			since = table.Age(at, now)
		}
		if at := last.GetAttempted(); at != nil {
			evaluated = table.Age(at, now)
		}
		rows = append(rows, []string{r.GetName(), applies.GetStatus(), since, evaluated, last.GetMessage()})
	}
	if len(rows) == 1 {
		return nil
	}
	fmt.Fprintln(out, "  Risks:")
	return table.NewIndented(out, "    ").Print(rows...)
}
