package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/hosttoken"
)

func newToken(e *session.Env) *cobra.Command {
	var dir string
	var controlPlane bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "token --control-plane",
		Short: "Make a token with which one other host joins the cluster",
		Long: `Make a token with which one other host joins the cluster, and print it. It must be made on a control-plane
host, by its root.

The files for a control-plane host, the keys of the cluster's authorities among them, are encrypted with a
key that only the token has, and kept in the cluster until the token expires: who has the token before it
is used becomes root of the cluster.`,
		Example: "  windlass host token --control-plane --ttl 5m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !controlPlane {
				return errors.New("--control-plane is required: hosts that are workers alone cannot join yet")
			}
			return makeToken(cmd.Context(), e, dir, ttl)
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().BoolVar(&controlPlane, "control-plane", false, "for a control-plane host")
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "how long the token is valid, from 1m to 24h")
	return cmd
}

func makeToken(ctx context.Context, e *session.Env, dir string, ttl time.Duration) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	bundle, err := c.Bundle()
	if err != nil {
		return err
	}
	token, err := hosttoken.New()
	if err != nil {
		return err
	}
	sealed, err := token.Seal(bundle)
	if err != nil {
		return err
	}
	var made *machinev1.CreateHostTokenResponse
	if err := asAdministrator(ctx, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
		var err error
		made, err = machinev1.NewHostJoinServiceClient(conn).CreateHostToken(ctx, &machinev1.CreateHostTokenRequest{
			Id: token.ID, ProofHash: token.ProofHash(), Roles: []string{"control-plane"}, Ttl: durationpb.New(ttl),
			Bundle: sealed,
		})
		return err
	}); err != nil {
		return err
	}
	token.CA, token.Gateways = made.GetAuthorityHash(), made.GetGateways()
	fmt.Fprintln(e.Out, token)
	fmt.Fprintf(e.Err, "For one control-plane host, until %s: windlass host join TOKEN --address ADDRESS\n",
		made.GetExpiryTime().AsTime().Local().Format(time.TimeOnly))
	return nil
}
