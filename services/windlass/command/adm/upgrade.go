package adm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/cobra"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

type upgradeFlags struct {
	to, toImage                        string
	toLatest, clear, abort, force      bool
	notRecommended                     bool // show
	allowNotRecommended, allowExplicit bool
	allowWithWarnings, dryRun          bool

	waive    map[string]string // reasons, by check
	upstream string
}

func newUpgrade(e *session.Env) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade [--to VERSION | --to-image IMAGE | --to-latest | --clear | --abort]",
		Short: "Show available updates, or request one",
		Example: `  windlass adm upgrade
  windlass adm upgrade --include-not-recommended
  windlass adm upgrade recommend
  windlass adm upgrade --to 1.1.0
  windlass adm upgrade channel stable-1.1
  windlass adm upgrade --upstream file:///srv/graph`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error {
				return upgrade(cmd.Context(), e, c, f, cmd.Flags().Changed("upstream"))
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.to, "to", "", "version to update to: one of the available updates, or of the history")
	fs.StringVar(&f.toImage, "to-image", "", "release image to update to, by digest")
	fs.BoolVar(&f.toLatest, "to-latest", false, "update to the highest recommended version")
	fs.BoolVar(&f.clear, "clear", false, "cancel the requested update, unless it has begun")
	fs.BoolVar(&f.abort, "abort", false, "go back from an update that has begun to the release before it")
	fs.BoolVar(&f.force, "force", false,
		"ignore that the update skips versions or that operators object; recorded in the history")
	fs.StringToStringVar(&f.waive, "waive", nil,
		"ignore the failure of one check, as CHECK=REASON: VerifyPayload (the signature), ClusterVersionRollback, "+
			"ClusterVersionGiantHop, ClusterVersionUpgradeable, ClusterVersionSnapshot or MaintenanceWindow (it begins now); recorded in the history; can be "+
			"repeated")
	fs.BoolVar(&f.notRecommended, "include-not-recommended", false, "also show updates with known risks")
	fs.BoolVar(&f.allowNotRecommended, "allow-not-recommended", false, "allow an update to a version with known risks")
	fs.BoolVar(&f.allowExplicit, "allow-explicit-upgrade", false,
		"allow an update to an image that is not an available update")
	fs.BoolVar(&f.allowWithWarnings, "allow-upgrade-with-warnings", false,
		"allow an update while the cluster is updating or failing")
	fs.BoolVar(&f.dryRun, "dry-run", false,
		"make all checks of the update, and show what it would change; request nothing")
	fs.StringVar(&f.upstream, "upstream", "",
		"set the source of the update graph: an http(s) URL, file://DIRECTORY, or \"\" for none")
	cmd.AddCommand(newUpgradeChannel(e), newUpgradeHistory(e), newUpgradeAccept(e), newUpgradeStatus(e),
		newUpgradePause(e), newUpgradeResume(e), newUpgradeRecommend(e))
	return cmd
}

func newUpgradeChannel(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "channel [CHANNEL]",
		Short: "Set the update channel; without an argument, clear it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			channel := strings.Join(args, "")
			return e.WithClient(func(c *client.Client) error {
				if _, err := patchVersion(cmd.Context(), c, map[string]any{"channel": channel}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(e.Out, "channel set to %q\n", channel)
				return err
			})
		},
	}
}

func upgrade(ctx context.Context, e *session.Env, c *client.Client, f upgradeFlags, setUpstream bool) error {
	requests := 0
	for _, w := range []bool{f.to != "", f.toImage != "", f.toLatest, f.clear, f.abort} {
		if w {
			requests++
		}
	}
	if f.dryRun && (f.clear || requests == 0) {
		return errors.New("--dry-run needs one of --to, --to-image, --to-latest, or --abort")
	}
	if requests > 1 {
		return errors.New("only one of --to, --to-image, --to-latest, --clear, or --abort may be given")
	}
	if setUpstream {
		if _, err := patchVersion(ctx, c, map[string]any{"upstream": f.upstream}); err != nil {
			return err
		}
		if requests == 0 {
			_, err := fmt.Fprintf(e.Out, "upstream set to %q\n", f.upstream)
			return err
		}
	}
	cv, err := clusterVersion(ctx, c)
	if err != nil {
		return err
	}
	switch {
	case f.clear:
		return clearUpgrade(ctx, e, c, cv)
	case requests > 0:
		return requestUpgrade(ctx, e, c, cv, f)
	}
	return showUpgrade(e, cv, f.notRecommended)
}

func clusterVersion(ctx context.Context, c *client.Client) (*updatev1.ClusterVersion, error) {
	return updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx, &updatev1.GetClusterVersionRequest{
		Name: "version",
	})
}

// patchVersion merges fields into the spec of the cluster version.
func patchVersion(ctx context.Context, c *client.Client, spec map[string]any) (*updatev1.ClusterVersion, error) {
	return patchVersionAt(ctx, c, nil, spec)
}

// patchVersionAt is patchVersion, and fails if the cluster version changed since it was read; nil: whatever it is.
func patchVersionAt(ctx context.Context, c *client.Client, read *updatev1.ClusterVersion, spec map[string]any) (
	*updatev1.ClusterVersion, error,
) {
	patch := map[string]any{"spec": spec}
	if read != nil {
		patch["metadata"] = map[string]any{"resourceVersion": read.GetMetadata().GetResourceVersion()}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	k, err := client.FindKind("clusterversion")
	if err != nil {
		return nil, err
	}
	o, err := c.Patch(ctx, k, "", "version", manifest.MergePatch, body, false)
	if err != nil {
		return nil, err
	}
	return o.(*updatev1.ClusterVersion), nil
}

func clearUpgrade(ctx context.Context, e *session.Env, c *client.Client, cv *updatev1.ClusterVersion) error {
	if cv.GetSpec().GetDesiredUpdate() == nil {
		_, err := fmt.Fprintln(e.Out, "info: No update in progress")
		return err
	}
	wanted := cv.GetSpec().GetDesiredUpdate()
	cv, err := patchVersion(ctx, c, map[string]any{"desiredUpdate": nil})
	if err != nil {
		return err
	}
	now := cv.GetStatus().GetDesired()
	here := printer.Update(now.GetVersion(), now.GetImage())
	if n := len(wanted.GetAcceptRisks()); n > 0 {
		fmt.Fprintf(e.Out, "The %d accepted risks are accepted no longer.\n", n)
	}
	switch {
	case wanted.GetVersion() == "" && wanted.GetImage() == "":
		_, err = fmt.Fprintln(e.Out, "Cleared the update field, which requested no release; still at "+here)
	case wanted.GetVersion() != now.GetVersion() && !resolves(wanted.GetImage(), now.GetImage()):
		_, err = fmt.Fprintln(e.Out, "Cancelled requested upgrade to "+printer.Update(wanted.GetVersion(), wanted.GetImage()))
	case begun(cv):
		_, err = fmt.Fprintf(e.Out, "Cleared the update field, but the update to %s has begun and goes on.\n"+
			"To go back to the release before it: windlass adm upgrade --abort\n", here)
	default:
		_, err = fmt.Fprintln(e.Out, "Cleared the update field, still at "+here)
	}
	return err
}

// resolves reports whether an image that was asked for, by digest or by a name, is the one with a digest.
func resolves(asked, image string) bool {
	name, digest, _ := strings.Cut(image, "@")
	return asked != "" && (asked == name || strings.HasSuffix(asked, "@"+digest))
}

// begun reports whether the cluster is on its way from one release to another.
func begun(cv *updatev1.ClusterVersion) bool {
	history := cv.GetStatus().GetHistory()
	return len(history) > 0 && history[0].GetState() == "Partial" && completed(history) != nil
}

// completed returns the history entry that was completed last; nil if there is none.
func completed(history []*updatev1.UpdateHistory) *updatev1.UpdateHistory {
	for _, h := range history {
		if h.GetState() == "Completed" {
			return h
		}
	}
	return nil
}

// requestUpgrade requests an update after the same checks as oc.
func requestUpgrade(ctx context.Context, e *session.Env, c *client.Client, cv *updatev1.ClusterVersion,
	f upgradeFlags,
) error {
	wanted, err := f.choose(cv)
	if err != nil {
		return err
	}
	now := cv.GetStatus().GetDesired()
	if wanted.version != "" && wanted.version == now.GetVersion() && cv.GetSpec().GetDesiredUpdate().GetVersion() == "" {
		_, err := fmt.Fprintf(e.Out, "info: Cluster is already at version %s\n", wanted.version)
		return err
	}
	if f.dryRun {
		return preflight(ctx, e, c, wanted, f)
	}
	if err := obstacles(cv); err != nil && !f.abort {
		if !f.allowWithWarnings {
			return err
		}
		fmt.Fprintf(e.Err, "warning: --allow-upgrade-with-warnings is bypassing: %s\n", err)
	}
	desired := map[string]any{"version": nil, "image": nil, "architecture": nil, "force": nil, "waive": nil}
	if reached(cv) { // what was accepted for it is not for another one
		desired["acceptRisks"] = nil
	} else if risks := acceptedRisks(cv); len(risks) > 0 {
		fmt.Fprintf(e.Err, "warning: risks that are accepted, as far as the update has them: %s\n", strings.Join(risks, ", "))
	}
	if wanted.version != "" {
		desired["version"] = wanted.version
	}
	if wanted.image != "" {
		desired["image"] = wanted.image
	}
	if f.force {
		desired["force"] = true
		fmt.Fprintln(e.Err,
			"warning: --force waives the preconditions ClusterVersionGiantHop and ClusterVersionUpgradeable, but neither the "+
				"signature of the release nor that it is older: see --waive.")
	}
	var waive []map[string]any
	for _, w := range f.waivers() {
		waive = append(waive, map[string]any{"name": w.name, "reason": w.reason})
		fmt.Fprintf(e.Err, "warning: %s is waived: %q\n", w.name, w.reason)
	}
	if len(waive) > 0 {
		desired["waive"] = waive
	}
	stored, err := patchVersion(ctx, c, map[string]any{"desiredUpdate": desired})
	if err != nil {
		return err
	}
	if line := pauseLine(stored, time.Now()); line != "" {
		fmt.Fprintf(e.Err, "warning: the update waits. %s\n", line)
	}
	if f.abort {
		_, err = fmt.Fprintf(e.Out, "Aborting the update to %s: going back to %s\n",
			printer.Update(now.GetVersion(), now.GetImage()), wanted.version)
		return err
	}
	if wanted.version == "" {
		_, err = fmt.Fprintf(e.Out, "Requested update to release image %s\n", wanted.image)
		return err
	}
	_, err = fmt.Fprintf(e.Out, "Requested update to %s\n", wanted.version)
	return err
}

type waiver struct{ name, reason string }

// waivers returns the checks that the flags waive, in order.
func (f upgradeFlags) waivers() []waiver {
	var out []waiver
	for _, name := range slices.Sorted(maps.Keys(f.waive)) {
		out = append(out, waiver{name, f.waive[name]})
	}
	return out
}

type chosen struct{ version, image string }

// choose returns the requested release if the flags and the offered updates allow it.
func (f upgradeFlags) choose(cv *updatev1.ClusterVersion) (chosen, error) {
	offered := cv.GetStatus().GetAvailableUpdates()
	if f.abort {
		if !begun(cv) {
			return chosen{}, errors.New("there is no update to abort")
		}
		before := completed(cv.GetStatus().GetHistory())
		return chosen{version: before.GetVersion(), image: before.GetImage()}, nil
	}
	if f.toLatest {
		if len(offered) == 0 {
			return chosen{}, errors.New("no updates available: cannot find the latest")
		}
		best := slices.MaxFunc(offered, func(a, b *updatev1.ReleaseReference) int {
			return compareVersions(a.GetVersion(), b.GetVersion())
		})
		return chosen{version: best.GetVersion(), image: best.GetImage()}, nil
	}
	same := func(r *updatev1.ReleaseReference) bool {
		return f.to != "" && r.GetVersion() == f.to || f.toImage != "" && r.GetImage() == f.toImage
	}
	if i := slices.IndexFunc(offered, same); i >= 0 {
		if f.toImage != "" {
			return chosen{version: offered[i].GetVersion(), image: f.toImage}, nil
		}
		return chosen{version: f.to}, nil
	}
	for _, u := range cv.GetStatus().GetConditionalUpdates() {
		if !same(u.GetRelease()) {
			continue
		}
		if !f.allowNotRecommended {
			c := object.FindCondition(u.GetConditions(), "Recommended")
			return chosen{},
				fmt.Errorf(
					"the update %s is not one of the recommended updates, but is available as a conditional update. To accept the Recommended=%s risk and to proceed with update use --allow-not-recommended.\n  Reason: %s\n  Message: %s",
					u.GetRelease().GetVersion(), c.GetStatus(), c.GetReason(), strings.ReplaceAll(c.GetMessage(), "\n", "\n  "))
		}
		return chosen{version: u.GetRelease().GetVersion(), image: u.GetRelease().GetImage()}, nil
	}
	for _, h := range cv.GetStatus().GetHistory() {
		if f.to != "" && h.GetVersion() == f.to && h.GetImage() != "" {
			return chosen{version: f.to, image: h.GetImage()}, nil
		}
	}
	switch {
	case f.to != "" && f.to == cv.GetStatus().GetDesired().GetVersion():
		return chosen{version: f.to}, nil
	case f.to != "":
		return chosen{}, fmt.Errorf("the update %s is not one of the available updates: %s", f.to, offeredVersions(offered))
	case !strings.Contains(f.toImage, "@sha256:"):
		return chosen{}, errors.New("--to-image must be a valid image pull spec by digest: NAME@sha256:…")
	case !f.allowExplicit:
		return chosen{},
			errors.New(
				"the requested upgrade image is not one of the available updates, you must pass --allow-explicit-upgrade to continue")
	}
	return chosen{image: f.toImage}, nil
}

func offeredVersions(list []*updatev1.ReleaseReference) string {
	if len(list) == 0 {
		return "no updates available"
	}
	var out []string
	for _, r := range list {
		out = append(out, r.GetVersion())
	}
	return strings.Join(out, ", ")
}

func compareVersions(a, b string) int {
	x, err := semver.NewVersion(a)
	if err != nil {
		return -1
	}
	y, err := semver.NewVersion(b)
	if err != nil {
		return 1
	}
	return x.Compare(y)
}

// obstacles returns an error if a condition of the cluster version forbids another update.
func obstacles(cv *updatev1.ClusterVersion) error {
	for _, o := range []struct{ typ, status, text string }{
		{"Invalid", "True", "the cluster version object is invalid, you must correct the invalid state first"},
		{"Failing", "True", "the cluster is experiencing an error reconciling"},
		{"Progressing", "True", "the cluster is already upgrading"},
	} {
		if c := object.FindCondition(cv.GetStatus().GetConditions(), o.typ); c.GetStatus() == o.status {
			text := fmt.Sprintf(
				"%s:\n\n  Reason: %s\n  Message: %s\n\nIf you want to upgrade anyway, use --allow-upgrade-with-warnings", o.text,
				c.GetReason(), c.GetMessage())
			if begun(cv) {
				before := completed(cv.GetStatus().GetHistory())
				text += "\nTo go back to " + printer.Update(before.GetVersion(), before.GetImage()) +
					": windlass adm upgrade --abort"
			}
			return errors.New(text)
		}
	}
	return nil
}

// showUpgrade prints what `oc adm upgrade` prints.
func showUpgrade(e *session.Env, cv *updatev1.ClusterVersion, notRecommended bool) error {
	conditions := cv.GetStatus().GetConditions()
	if c := object.FindCondition(conditions, "Failing"); c != nil && c.GetStatus() != "False" {
		fmt.Fprintf(e.Out, "Failing=%s:\n\n  Reason: %s\n  Message: %s\n\n", c.GetStatus(), c.GetReason(), c.GetMessage())
	}
	if c := object.FindCondition(conditions, "Progressing"); c.GetStatus() == "True" {
		fmt.Fprintf(e.Out, "info: An upgrade is in progress. %s\n", c.GetMessage())
		if before := completed(cv.GetStatus().GetHistory()); begun(cv) {
			fmt.Fprintf(e.Out, "info: To go back to %s: windlass adm upgrade --abort\n",
				printer.Update(before.GetVersion(), before.GetImage()))
		}
	} else {
		fmt.Fprintln(e.Out, c.GetMessage())
	}
	if line := pauseLine(cv, time.Now()); line != "" {
		fmt.Fprintln(e.Out, "info: "+line)
	}
	if c := object.FindCondition(conditions, "Upgradeable"); c.GetStatus() == "False" {
		fmt.Fprintf(e.Out, "\nUpgradeable=False\n\n  Reason: %s\n  Message: %s\n", c.GetReason(), c.GetMessage())
	}
	if c := object.FindCondition(conditions, "ReleaseAccepted"); c != nil && c.GetStatus() != "True" {
		fmt.Fprintf(e.Out, "\nReleaseAccepted=%s\n\n  Reason: %s\n  Message: %s\n", c.GetStatus(), c.GetReason(),
			c.GetMessage())
	}
	fmt.Fprintln(e.Out)
	showSource(e, cv)
	if c := object.FindCondition(conditions, "RetrievedUpdates"); c.GetStatus() == "False" {
		fmt.Fprintf(e.Err, "warning: Cannot display available updates:\n  Reason: %s\n  Message: %s\n\n", c.GetReason(),
			c.GetMessage())
	}
	if err := printer.Recommended(e.Out, cv.GetStatus().GetAvailableUpdates()); err != nil {
		return err
	}
	return printer.Risky(e.Out, cv.GetStatus().GetConditionalUpdates(), notRecommended, time.Now())
}

// showSource prints where updates come from.
func showSource(e *session.Env, cv *updatev1.ClusterVersion) {
	if up := cv.GetSpec().GetUpstream(); up != "" {
		fmt.Fprintln(e.Out, "Upstream:", up)
	} else {
		fmt.Fprintln(e.Out,
			"Upstream is unset, so no updates are recommended; set it with `windlass adm upgrade --upstream ADDRESS`.")
	}
	if ch := cv.GetSpec().GetChannel(); ch != "" {
		fmt.Fprintf(e.Out, "Channel: %s", ch)
		if all := cv.GetStatus().GetDesired().GetChannels(); len(all) > 0 {
			fmt.Fprintf(e.Out, " (available channels: %s)", strings.Join(all, ", "))
		}
		fmt.Fprintln(e.Out)
	}
}
