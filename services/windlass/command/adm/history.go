package adm

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newUpgradeHistory(e *session.Env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the releases that the cluster was at, the newest first, and how to go back to them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			form, err := printer.Parse(output, printer.JSON, printer.YAML)
			if err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error {
				r, err := updatev1.NewClusterVersionServiceClient(c.Conn()).PlanClusterVersionHistory(cmd.Context(),
					&updatev1.PlanClusterVersionHistoryRequest{})
				if status.Code(err) == codes.Unimplemented { // a cluster that is older than this program
					var cv *updatev1.ClusterVersion
					if cv, err = clusterVersion(cmd.Context(), c); err == nil {
						r = recorded(cv)
					}
				}
				switch {
				case err != nil:
					return err
				case form.Word != printer.Table:
					return printer.Whole(e.Out, form, r)
				}
				return showHistory(e.Out, r)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// recorded is the history of a cluster that does not say its ways back.
func recorded(cv *updatev1.ClusterVersion) *updatev1.PlanClusterVersionHistoryResponse {
	r := &updatev1.PlanClusterVersionHistoryResponse{}
	for _, h := range cv.GetStatus().GetHistory() {
		e := &updatev1.PlanClusterVersionHistoryResponse_Entry{Entry: h}
		if h.GetAcceptedRisks() != "" {
			e.Accepted = []string{h.GetAcceptedRisks()}
		}
		r.Entries = append(r.Entries, e)
	}
	return r
}

func showHistory(out io.Writer, r *updatev1.PlanClusterVersionHistoryResponse) error {
	if len(r.GetEntries()) == 0 {
		_, err := fmt.Fprintln(out, "The cluster was at no release yet.")
		return err
	}
	const at = "2006-01-02T15:04:05Z"
	rows := [][]string{{"VERSION", "STATE", "STARTED", "COMPLETED", "DURATION", "VERIFIED", "SNAPSHOT", "IMAGE"}}
	for _, e := range r.GetEntries() {
		h := e.GetEntry()
		ended, took := "", ""
		if t := h.GetCompletionTime(); t != nil {
			ended = t.AsTime().Format(at)
		}
		if d := e.GetDuration(); d != nil {
			took = d.AsDuration().Round(time.Second).String()
		}
		rows = append(rows, []string{
			h.GetVersion(), h.GetState(), h.GetStartedTime().AsTime().Format(at), table.OrNone(ended), table.OrNone(took),
			fmt.Sprint(h.GetVerified()), table.OrNone(h.GetSnapshot()), h.GetImage(),
		})
	}
	if err := table.New(out).Print(rows...); err != nil {
		return err
	}
	indented := func(text string) string { return strings.ReplaceAll(text, "\n", "\n    ") }
	for _, e := range r.GetEntries() {
		if len(e.GetAccepted()) > 0 {
			fmt.Fprintf(out, "\nAccepted for %s:\n", e.GetEntry().GetVersion())
			for _, text := range e.GetAccepted() {
				fmt.Fprintf(out, "  %s\n", indented(text))
			}
		}
	}
	for _, e := range r.GetEntries() {
		version := e.GetEntry().GetVersion()
		switch {
		case e.GetCanGoBack():
			fmt.Fprintf(out, "\nTo go back to %s: %s\n", version, e.GetCommand())
		case e.GetCommand() != "":
			fmt.Fprintf(out, "\nTo go back to %s, checks must be waived: %s\n", version, e.GetCommand())
		default:
			continue
		}
		if e.GetReason() != "" {
			fmt.Fprintf(out, "    %s\n", indented(e.GetReason()))
		}
	}
	return nil
}
