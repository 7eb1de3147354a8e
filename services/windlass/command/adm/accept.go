package adm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"

	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newUpgradeAccept(e *session.Env) *cobra.Command {
	var replace, clear bool
	cmd := &cobra.Command{
		Use:   "accept (RISK... | --clear)",
		Short: "Accept risks of updates",
		Long: "Accept risks of the next update, by their names, beside those that are accepted already. An update whose " +
			"risks are accepted, or do not apply, is recommended. Once an update is completed, nothing is accepted any more.",
		Example: `  windlass adm upgrade accept BeaconTooSlow
  windlass adm upgrade accept --replace BeaconTooSlow,LedgerLosesCents
  windlass adm upgrade accept --clear`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := strings.FieldsFunc(strings.Join(args, ","), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
			switch {
			case clear && (replace || len(names) > 0):
				return errors.New("--clear takes no risks, and excludes --replace")
			case !clear && len(names) == 0:
				return errors.New("specify the names of risks, or --clear")
			}
			return e.WithClient(func(c *client.Client) error {
				return accept(cmd.Context(), e, c, names, replace || clear)
			})
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "accept these risks only")
	cmd.Flags().BoolVar(&clear, "clear", false, "accept no risk any more")
	return cmd
}

// accept sets the accepted risks; without replace, they are added to those that are accepted already.
func accept(ctx context.Context, e *session.Env, c *client.Client, names []string, replace bool) error {
	cv, err := clusterVersion(ctx, c)
	if err != nil {
		return err
	}
	var accepted []string
	if !replace {
		accepted = acceptedRisks(cv)
	}
	known := risksOf(cv)
	for _, name := range names {
		if !slices.Contains(known, name) {
			fmt.Fprintf(e.Err, "warning: no update that is available now has the risk %s\n", name)
		}
		if !slices.Contains(accepted, name) {
			accepted = append(accepted, name)
		}
	}
	var list []map[string]any
	for _, name := range accepted {
		list = append(list, map[string]any{"name": name})
	}
	desired := map[string]any{"acceptRisks": list}
	update := cv.GetSpec().GetDesiredUpdate()
	if reached(cv) { // it is for the next update
		for _, field := range []string{"version", "image", "architecture", "force", "waive"} {
			desired[field] = nil
		}
	}
	if len(list) == 0 && (reached(cv) || update.GetVersion() == "" && update.GetImage() == "") {
		desired = nil // otherwise an empty update would stay
	}
	if _, err := patchVersionAt(ctx, c, cv, map[string]any{"desiredUpdate": desired}); err != nil {
		return err
	}
	if len(accepted) == 0 {
		_, err = fmt.Fprintln(e.Out, "info: No risks are accepted")
		return err
	}
	_, err = fmt.Fprintf(e.Out, "info: Accepted risks: %s\n", strings.Join(accepted, ", "))
	return err
}

// reached reports whether the desired update is completed.
func reached(cv *updatev1.ClusterVersion) bool {
	history := cv.GetStatus().GetHistory()
	return len(history) > 0 && history[0].GetState() == "Completed" &&
		desires(cv, history[0].GetVersion(), history[0].GetImage())
}

// acceptedRisks returns the risks that are accepted for the next update: those of one that is completed are not.
func acceptedRisks(cv *updatev1.ClusterVersion) (out []string) {
	if reached(cv) {
		return nil
	}
	for _, r := range cv.GetSpec().GetDesiredUpdate().GetAcceptRisks() {
		out = append(out, r.GetName())
	}
	return out
}

// risksOf returns the names of the risks of the updates that are available.
func risksOf(cv *updatev1.ClusterVersion) (names []string) {
	for _, u := range cv.GetStatus().GetConditionalUpdates() {
		for _, r := range u.GetRisks() {
			names = append(names, r.GetName())
		}
	}
	return names
}
