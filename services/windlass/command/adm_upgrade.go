package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/spf13/cobra"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type upgradeFlags struct {
	to, toImage                        string
	toLatest, clear, force             bool
	notRecommended                     bool // show
	allowNotRecommended, allowExplicit bool
	allowWithWarnings                  bool

	upstream string
}

func newUpgrade(e *env) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade [--to VERSION | --to-image IMAGE | --to-latest | --clear]",
		Short: "Show available updates, or request one",
		Example: `  windlass adm upgrade
  windlass adm upgrade --include-not-recommended
  windlass adm upgrade --to 1.1.0
  windlass adm upgrade channel stable-1.1
  windlass adm upgrade --upstream file:///srv/graph`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.withClient(func(c *client.Client) error {
				return e.upgrade(cmd.Context(), c, f, cmd.Flags().Changed("upstream"))
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.to, "to", "", "version to update to, one of the available updates")
	fs.StringVar(&f.toImage, "to-image", "", "release image to update to, by digest")
	fs.BoolVar(&f.toLatest, "to-latest", false, "update to the highest recommended version")
	fs.BoolVar(&f.clear, "clear", false, "cancel the requested update")
	fs.BoolVar(&f.force, "force", false,
		"ignore failed verification and preconditions; what was waived is recorded in the history")
	fs.BoolVar(&f.notRecommended, "include-not-recommended", false, "also show updates with known risks")
	fs.BoolVar(&f.allowNotRecommended, "allow-not-recommended", false, "allow an update to a version with known risks")
	fs.BoolVar(&f.allowExplicit, "allow-explicit-upgrade", false,
		"allow an update to an image that is not an available update")
	fs.BoolVar(&f.allowWithWarnings, "allow-upgrade-with-warnings", false,
		"allow an update while the cluster is updating or failing")
	fs.StringVar(&f.upstream, "upstream", "",
		"set the source of the update graph: an http(s) URL, file://DIRECTORY, or \"\" for none")
	cmd.AddCommand(newUpgradeChannel(e))
	return cmd
}

func newUpgradeChannel(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "channel [CHANNEL]",
		Short: "Set the update channel; without an argument, clear it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			channel := strings.Join(args, "")
			return e.withClient(func(c *client.Client) error {
				if _, err := patchVersion(cmd.Context(), c, map[string]any{"channel": channel}); err != nil {
					return err
				}
				_, err := fmt.Fprintf(e.out, "channel set to %q\n", channel)
				return err
			})
		},
	}
}

func (e *env) upgrade(ctx context.Context, c *client.Client, f upgradeFlags, setUpstream bool) error {
	requests := 0
	for _, w := range []bool{f.to != "", f.toImage != "", f.toLatest, f.clear} {
		if w {
			requests++
		}
	}
	if requests > 1 {
		return errors.New("only one of --to, --to-image, --to-latest, or --clear may be given")
	}
	if setUpstream {
		if _, err := patchVersion(ctx, c, map[string]any{"upstream": f.upstream}); err != nil {
			return err
		}
		if requests == 0 {
			_, err := fmt.Fprintf(e.out, "upstream set to %q\n", f.upstream)
			return err
		}
	}
	cv, err := clusterVersion(ctx, c)
	if err != nil {
		return err
	}
	switch {
	case f.clear:
		return e.clearUpgrade(ctx, c, cv)
	case requests > 0:
		return e.requestUpgrade(ctx, c, cv, f)
	}
	return e.showUpgrade(cv, f.notRecommended)
}

func clusterVersion(ctx context.Context, c *client.Client) (*updatev1.ClusterVersion, error) {
	return updatev1.NewClusterVersionServiceClient(c.Conn()).GetClusterVersion(ctx, &updatev1.GetClusterVersionRequest{
		Name: "version",
	})
}

// patchVersion merges fields into the spec of the cluster version.
func patchVersion(ctx context.Context, c *client.Client, spec map[string]any) (*updatev1.ClusterVersion, error) {
	body, err := json.Marshal(map[string]any{"spec": spec})
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

func (e *env) clearUpgrade(ctx context.Context, c *client.Client, cv *updatev1.ClusterVersion) error {
	if cv.GetSpec().GetDesiredUpdate() == nil {
		_, err := fmt.Fprintln(e.out, "info: No update in progress")
		return err
	}
	wanted := updateName(cv.GetSpec().GetDesiredUpdate().GetVersion(), cv.GetSpec().GetDesiredUpdate().GetImage())
	if _, err := patchVersion(ctx, c, map[string]any{"desiredUpdate": nil}); err != nil {
		return err
	}
	now := updateName(cv.GetStatus().GetDesired().GetVersion(), cv.GetStatus().GetDesired().GetImage())
	text := "Cancelled requested upgrade to " + wanted
	if wanted == now {
		text = "Cleared the update field, still at " + now
	}
	_, err := fmt.Fprintln(e.out, text)
	return err
}

func updateName(version, image string) string {
	switch {
	case version != "":
		return version
	case image != "":
		return image
	}
	return "<unknown>"
}

// requestUpgrade requests an update after the same checks as oc.
func (e *env) requestUpgrade(ctx context.Context, c *client.Client, cv *updatev1.ClusterVersion, f upgradeFlags) error {
	wanted, err := f.choose(cv)
	if err != nil {
		return err
	}
	now := cv.GetStatus().GetDesired()
	if wanted.version != "" && wanted.version == now.GetVersion() && cv.GetSpec().GetDesiredUpdate().GetVersion() == "" {
		_, err := fmt.Fprintf(e.out, "info: Cluster is already at version %s\n", wanted.version)
		return err
	}
	if err := obstacles(cv); err != nil {
		if !f.allowWithWarnings && !f.force {
			return err
		}
		fmt.Fprintf(e.err, "warning: --allow-upgrade-with-warnings is bypassing: %s\n", err)
	}
	desired := map[string]any{"version": nil, "image": nil, "force": nil}
	if wanted.version != "" {
		desired["version"] = wanted.version
	}
	if wanted.image != "" {
		desired["image"] = wanted.image
	}
	if f.force {
		desired["force"] = true
		fmt.Fprintln(e.err,
			"warning: --force overrides cluster verification of your supplied release image and waives any update precondition failures.")
	}
	if _, err := patchVersion(ctx, c, map[string]any{"desiredUpdate": desired}); err != nil {
		return err
	}
	if wanted.version == "" {
		_, err = fmt.Fprintf(e.out, "Requested update to release image %s\n", wanted.image)
		return err
	}
	_, err = fmt.Fprintf(e.out, "Requested update to %s\n", wanted.version)
	return err
}

type chosen struct{ version, image string }

// choose returns the requested release if the flags and the offered updates allow it.
func (f upgradeFlags) choose(cv *updatev1.ClusterVersion) (chosen, error) {
	offered := cv.GetStatus().GetAvailableUpdates()
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
		if !f.allowNotRecommended && !f.force {
			c := object.FindCondition(u.GetConditions(), "Recommended")
			return chosen{},
				fmt.Errorf(
					"the update %s is not one of the recommended updates, but is available as a conditional update. To accept the Recommended=%s risk and to proceed with update use --allow-not-recommended.\n  Reason: %s\n  Message: %s",
					u.GetRelease().GetVersion(), c.GetStatus(), c.GetReason(), strings.ReplaceAll(c.GetMessage(), "\n", "\n  "))
		}
		return chosen{version: u.GetRelease().GetVersion(), image: u.GetRelease().GetImage()}, nil
	}
	switch {
	case f.to != "" && f.to == cv.GetStatus().GetDesired().GetVersion():
		return chosen{version: f.to}, nil
	case f.to != "":
		return chosen{}, fmt.Errorf("the update %s is not one of the available updates: %s", f.to, offeredVersions(offered))
	case !strings.Contains(f.toImage, "@sha256:"):
		return chosen{}, errors.New("--to-image must be a valid image pull spec by digest: NAME@sha256:…")
	case !f.allowExplicit && !f.force:
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
			return fmt.Errorf(
				"%s:\n\n  Reason: %s\n  Message: %s\n\nIf you want to upgrade anyway, use --allow-upgrade-with-warnings", o.text,
				c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

// showUpgrade prints what `oc adm upgrade` prints.
func (e *env) showUpgrade(cv *updatev1.ClusterVersion, notRecommended bool) error {
	conditions := cv.GetStatus().GetConditions()
	if c := object.FindCondition(conditions, "Failing"); c != nil && c.GetStatus() != "False" {
		fmt.Fprintf(e.out, "Failing=%s:\n\n  Reason: %s\n  Message: %s\n\n", c.GetStatus(), c.GetReason(), c.GetMessage())
	}
	if c := object.FindCondition(conditions, "Progressing"); c.GetStatus() == "True" {
		fmt.Fprintf(e.out, "info: An upgrade is in progress. %s\n", c.GetMessage())
	} else {
		fmt.Fprintln(e.out, c.GetMessage())
	}
	if c := object.FindCondition(conditions, "Upgradeable"); c.GetStatus() == "False" {
		fmt.Fprintf(e.out, "\nUpgradeable=False\n\n  Reason: %s\n  Message: %s\n", c.GetReason(), c.GetMessage())
	}
	if c := object.FindCondition(conditions, "ReleaseAccepted"); c != nil && c.GetStatus() != "True" {
		fmt.Fprintf(e.out, "\nReleaseAccepted=%s\n\n  Reason: %s\n  Message: %s\n", c.GetStatus(), c.GetReason(),
			c.GetMessage())
	}
	fmt.Fprintln(e.out)
	if up := cv.GetSpec().GetUpstream(); up != "" {
		fmt.Fprintln(e.out, "Upstream:", up)
	} else {
		fmt.Fprintln(e.out,
			"Upstream is unset, so no updates are recommended; set it with `windlass adm upgrade --upstream ADDRESS`.")
	}
	if ch := cv.GetSpec().GetChannel(); ch != "" {
		fmt.Fprintf(e.out, "Channel: %s", ch)
		if all := cv.GetStatus().GetDesired().GetChannels(); len(all) > 0 {
			fmt.Fprintf(e.out, " (available channels: %s)", strings.Join(all, ", "))
		}
		fmt.Fprintln(e.out)
	}
	if c := object.FindCondition(conditions, "RetrievedUpdates"); c.GetStatus() == "False" {
		fmt.Fprintf(e.err, "warning: Cannot display available updates:\n  Reason: %s\n  Message: %s\n\n", c.GetReason(),
			c.GetMessage())
	}
	if err := e.showRecommended(cv.GetStatus().GetAvailableUpdates()); err != nil {
		return err
	}
	e.showRisky(cv.GetStatus().GetConditionalUpdates(), notRecommended)
	return nil
}

func (e *env) showRecommended(list []*updatev1.ReleaseReference) error {
	if len(list) == 0 {
		_,
			err := fmt.Fprintln(e.out,
			"No updates available. You may still upgrade to a specific release image with --to-image or wait for new updates to be available.")
		return err
	}
	fmt.Fprint(e.out, "\nRecommended updates:\n\n")
	rows := [][]string{{"VERSION", "IMAGE"}}
	for _, r := range list {
		rows = append(rows, []string{r.GetVersion(), r.GetImage()})
	}
	return table.NewIndented(e.out, "  ").Print(rows...)
}

func (e *env) showRisky(list []*updatev1.ConditionalUpdate, show bool) {
	var risky []*updatev1.ConditionalUpdate
	for _, u := range list {
		if object.FindCondition(u.GetConditions(), "Recommended").GetStatus() != "True" {
			risky = append(risky, u)
		}
	}
	switch {
	case len(risky) == 0 && show:
		fmt.Fprintln(e.out, "\nNo updates which are not recommended based on your cluster configuration are available.")
	case len(risky) > 0 && !show:
		fmt.Fprintln(e.out,
			"\nAdditional updates which are not recommended for your cluster configuration are available, to view those re-run the command with --include-not-recommended.")
	case show:
		fmt.Fprintln(e.out, "\nSupported but not recommended updates:")
		for _, u := range risky {
			c := object.FindCondition(u.GetConditions(), "Recommended")
			fmt.Fprintf(e.out, "\n  Version: %s\n  Image: %s\n  Recommended: %s\n  Reason: %s\n  Message: %s\n",
				u.GetRelease().GetVersion(), u.GetRelease().GetImage(),
				c.GetStatus(), c.GetReason(), strings.ReplaceAll(strings.TrimSpace(c.GetMessage()), "\n", "\n  "))
		}
	}
}
