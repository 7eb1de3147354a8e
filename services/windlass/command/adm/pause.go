package adm

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/pause"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newUpgradePause(e *session.Env) *cobra.Command {
	var flags pause.Flags
	cmd := &cobra.Command{
		Use:   "pause --reason TEXT [--for DURATION | --until TIME]",
		Short: "Hold updates back",
		Long: "Hold updates back: none begins, and one that has begun applies no further manifest. A cluster that is not being " +
			"updated is kept at its release all the same, and nodes that change to a machine configuration go on (pause their " +
			"pool to stop them).",
		Example: `  windlass adm upgrade pause --reason "trade fair" --for 48h
  windlass adm upgrade resume`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			patch, err := flags.Patch("updates", time.Now())
			if err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return pauseUpgrades(cmd.Context(), e, c, patch) })
		},
	}
	flags.Add(cmd.Flags(), "why; required")
	return cmd
}

func pauseUpgrades(ctx context.Context, e *session.Env, c *client.Client, patch map[string]any) error {
	cv, err := patchVersion(ctx, c, map[string]any{"pause": patch})
	if err != nil {
		return err
	}
	fmt.Fprintln(e.Out, "info: "+pauseLine(cv, time.Now()))
	if begun(cv) {
		fmt.Fprintf(e.Out, "info: The update to %s has begun; it applies no further manifest. Nodes that change go on.\n",
			cv.GetStatus().GetDesired().GetVersion())
	}
	return nil
}

func newUpgradeResume(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Let updates go on that were paused",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.WithClient(func(c *client.Client) error {
				cv, err := clusterVersion(cmd.Context(), c)
				if err != nil {
					return err
				}
				if cv.GetSpec().GetPause() == nil {
					_, err = fmt.Fprintln(e.Out, "info: Updates are not paused")
					return err
				}
				if _, err := patchVersionAt(cmd.Context(), c, cv, map[string]any{"pause": nil}); err != nil {
					return err
				}
				_, err = fmt.Fprintln(e.Out, "info: Updates are no longer paused")
				return err
			})
		},
	}
}

// pauseLine says what holds updates back at now; empty if nothing does.
func pauseLine(cv *updatev1.ClusterVersion, now time.Time) string {
	p := cv.GetSpec().GetPause()
	if p == nil || p.GetUntil() != nil && !now.Before(p.GetUntil().AsTime()) {
		return ""
	}
	until := "until they are resumed (windlass adm upgrade resume)"
	if p.GetUntil() != nil {
		until = "until " + p.GetUntil().AsTime().UTC().Format(time.RFC3339)
	}
	return oneLine(fmt.Sprintf("Updates are paused by %s for %s, %s: %s", p.GetBy(), table.Age(p.GetSince(), now), until,
		p.GetReason()))
}
