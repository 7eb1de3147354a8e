package adm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/cobra"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// shownOfMinor is how many releases of a minor version are listed, the newest first.
const shownOfMinor = 2

func newUpgradeRecommend(e *session.Env) *cobra.Command {
	var version string
	var outdated bool
	cmd := &cobra.Command{
		Use:   "recommend [--version VERSION]",
		Short: "Show which updates are recommended, and what is known against the others",
		Long: `Show which updates are recommended, and what is known against the others, with the state of the cluster that
counts against any update. With --version, also make all checks of that update, as --dry-run does; the command fails
if a check does, or if a risk of the update applies, or may apply, that "adm upgrade accept" has not accepted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error {
				cv, err := clusterVersion(cmd.Context(), c)
				if err != nil {
					return err
				}
				concerns(e, cv)
				if version != "" {
					return recommendOne(cmd.Context(), e, c, cv, version)
				}
				return recommend(e, cv, outdated)
			})
		},
	}
	cmd.Flags().StringVar(&version, "version", "", "show what is known of the update to this version")
	cmd.Flags().BoolVar(&outdated, "show-outdated-releases", false, "also list older releases of each minor version")
	return cmd
}

// concerns prints what of the state of the cluster counts against any update.
func concerns(e *session.Env, cv *updatev1.ClusterVersion) {
	var fine, missing []string
	said := false
	for _, want := range []struct{ typ, fine string }{
		{"Failing", "False"},
		{"Progressing", "False"},
		{"Upgradeable", "True"},
		{"ReleaseAccepted", "True"},
		{"RetrievedUpdates", "True"},
	} {
		c := object.FindCondition(cv.GetStatus().GetConditions(), want.typ)
		switch {
		case c == nil && want.typ == "Upgradeable": // it is only there if something objects
			fine = append(fine, want.typ)
			continue
		case c == nil:
			missing = append(missing, want.typ)
			continue
		case c.GetStatus() == want.fine:
			fine = append(fine, want.typ)
			continue
		}
		if !said {
			fmt.Fprint(e.Out, "The following conditions found cause for concern in updating this cluster to later releases:\n\n")
			said = true
		}
		fmt.Fprintf(e.Out, "%s=%s:\n\n  Reason: %s\n  Message: %s\n\n", want.typ, c.GetStatus(), table.OrNone(c.GetReason()),
			strings.ReplaceAll(strings.TrimSpace(c.GetMessage()), "\n", "\n  "))
	}
	if !said {
		fmt.Fprintf(e.Out,
			"The following conditions found no cause for concern in updating this cluster to later releases: %s\n\n",
			table.OrNone(strings.Join(fine, ", ")))
	}
	if len(missing) > 0 {
		fmt.Fprintf(e.Out, "Not known yet: %s\n\n", strings.Join(missing, ", "))
	}
	showSource(e, cv)
}

// offer is an update with what is known against it.
type offer struct {
	release *updatev1.ReleaseReference
	update  *updatev1.ConditionalUpdate // nil without risks
	issues  []string                    // names of risks that apply or may apply, and are not accepted
	waived  []string                    // and of those that are
}

// text says what is known against an update.
func (o offer) text() string {
	switch {
	case len(o.issues) > 0 && len(o.waived) > 0:
		return strings.Join(o.issues, ", ") + "; accepted: " + strings.Join(o.waived, ", ")
	case len(o.issues) > 0:
		return strings.Join(o.issues, ", ")
	case len(o.waived) > 0:
		return "accepted: " + strings.Join(o.waived, ", ")
	}
	return "no known issues relevant to this cluster"
}

// offers returns the updates that a graph offers, the newest first. An update with risks of which none applies is in
// both lists of the status.
func offers(cv *updatev1.ClusterVersion) []offer {
	var out []offer
	seen := map[string]bool{}
	for _, u := range cv.GetStatus().GetConditionalUpdates() {
		seen[u.GetRelease().GetVersion()] = true
		o := offer{release: u.GetRelease(), update: u}
		o.issues, o.waived = issues(cv, u)
		out = append(out, o)
	}
	for _, r := range cv.GetStatus().GetAvailableUpdates() {
		if !seen[r.GetVersion()] {
			out = append(out, offer{release: r})
		}
	}
	slices.SortStableFunc(out, func(a, b offer) int {
		x, errX := semver.StrictNewVersion(a.release.GetVersion())
		y, errY := semver.StrictNewVersion(b.release.GetVersion())
		if errX != nil || errY != nil {
			return cmp.Compare(b.release.GetVersion(), a.release.GetVersion())
		}
		return y.Compare(x)
	})
	return out
}

// issues returns the names of an update's risks that count, and of those that are accepted. An update that is not
// recommended for another reason than a risk has that reason.
func issues(cv *updatev1.ClusterVersion, u *updatev1.ConditionalUpdate) (out, waived []string) {
	recommended := object.FindCondition(u.GetConditions(), "Recommended")
	if recommended.GetStatus() == "True" && recommended.GetReason() != printer.RisksAccepted {
		return nil, nil
	}
	for _, r := range u.GetRisks() {
		if object.FindCondition(r.GetConditions(), "Applies").GetStatus() == "False" {
			continue
		}
		if slices.Contains(acceptedRisks(cv), r.GetName()) {
			waived = append(waived, r.GetName())
			continue
		}
		out = append(out, r.GetName())
	}
	if len(out)+len(waived) == 0 {
		out = append(out, cmp.Or(recommended.GetReason(), "Recommended="+recommended.GetStatus()))
	}
	return out, waived
}

// recommend lists the updates by minor version.
func recommend(e *session.Env, cv *updatev1.ClusterVersion, outdated bool) error {
	all := offers(cv)
	if len(all) == 0 {
		fmt.Fprintln(e.Out, "No updates available. You may still upgrade to a specific release image with --to-image or "+
			"wait for new updates to be available.")
		return nil
	}
	for len(all) > 0 {
		minor := minorOf(all[0].release.GetVersion())
		n := slices.IndexFunc(all, func(t offer) bool { return minorOf(t.release.GetVersion()) != minor })
		if n < 0 {
			n = len(all)
		}
		if err := recommendMinor(e, minor, all[:n], outdated); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// recommendMinor lists the newest releases of a minor version, down to one without issues.
func recommendMinor(e *session.Env, minor string, list []offer, outdated bool) error {
	rows := [][]string{{"VERSION", "ISSUES"}}
	clean := false
	for i, t := range list {
		if !outdated && i >= shownOfMinor && clean {
			break
		}
		clean = clean || len(t.issues) == 0
		rows = append(rows, []string{t.release.GetVersion(), t.text()})
	}
	fmt.Fprintf(e.Out, "\nUpdates to %s:\n\n", minor)
	if err := table.NewIndented(e.Out, "  ").Print(rows...); err != nil {
		return err
	}
	if more := len(list) - len(rows) + 1; more > 0 {
		fmt.Fprintf(e.Out,
			"And %d older %s updates you can see with '--show-outdated-releases' or '--version VERSION'.\n", more, minor)
	}
	return nil
}

// minorOf returns the major and minor version; the version itself if it is none.
func minorOf(version string) string {
	v, err := semver.StrictNewVersion(version)
	if err != nil {
		return version
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

// recommendOne shows what is known of one update, and makes its checks.
func recommendOne(ctx context.Context, e *session.Env, c *client.Client, cv *updatev1.ClusterVersion,
	version string,
) error {
	all := offers(cv)
	i := slices.IndexFunc(all, func(t offer) bool { return t.release.GetVersion() == version })
	if i < 0 {
		return fmt.Errorf("no update to %s is available: `windlass plan clusterversion --why-not %s` says why", version,
			version)
	}
	t := all[i]
	if len(t.issues)+len(t.waived) == 0 {
		fmt.Fprintf(e.Out, "\nUpdate to %s has no known issues relevant to this cluster.\nImage: %s\n", version,
			t.release.GetImage())
	} else if err := printer.Conditional(e.Out, t.update, time.Now()); err != nil {
		return err
	}
	fmt.Fprintln(e.Out)
	err := preflight(ctx, e, c, chosen{version: version, image: t.release.GetImage()}, upgradeFlags{})
	if err == nil && len(t.issues) > 0 {
		err = errors.New("issues that apply to this cluster, or may, and are not accepted: " + strings.Join(t.issues, ", "))
	}
	return err
}
