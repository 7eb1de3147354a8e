package release

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newVerify(e *session.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Show whether a cluster accepts the signatures of a release image, and whose they are",
		Long: `Show whether a cluster accepts the signatures of a release image, and whose they are: by the keys and signature
stores of the cluster, as before an update. IMAGE is as for "adm upgrade --to-image". The command fails if it does not.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error {
				r, err := updatev1.NewReleaseServiceClient(c.Conn()).VerifyRelease(cmd.Context(),
					&updatev1.VerifyReleaseRequest{Image: args[0]})
				if err != nil {
					return err
				}
				return showVerification(e.Out, r)
			})
		},
	}
}

func showVerification(out io.Writer, r *updatev1.VerifyReleaseResponse) error {
	fmt.Fprintf(out, "Image:    %s\nVerified: %v\n", r.GetImage(), r.GetVerified())
	rows := [][]string{{"KEY RING", "KEY", "SIGNED", "EXPIRES", "SIGNATURE"}}
	for _, p := range r.GetProofs() {
		expires := "never"
		if t := p.GetExpirationTime(); t != nil {
			expires = t.AsTime().Format(time.RFC3339)
		}
		rows = append(rows, []string{
			p.GetKeyRing(), p.GetKeyId(), p.GetSignedTime().AsTime().Format(time.RFC3339), expires,
			p.GetSignature() + " of " + p.GetStore(),
		})
	}
	if len(rows) > 1 {
		fmt.Fprintln(out)
		if err := table.New(out).Print(rows...); err != nil {
			return err
		}
	}
	if !r.GetVerified() {
		return errors.New(strings.TrimSpace(r.GetMessage()))
	}
	return nil
}
