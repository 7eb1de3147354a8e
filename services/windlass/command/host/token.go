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
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/topology"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/hosttoken"
)

func newToken(e *session.Env) *cobra.Command {
	var dir string
	var controlPlane bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "token [--control-plane]",
		Short: "Make a token with which one other host joins the cluster",
		Long: `Make a token with which one other host joins the cluster, and print it. It must be made on a control-plane
host, by its root.

With --control-plane the files for a control-plane host, the keys of the cluster's authorities among them,
are encrypted with a key that only the token has, and kept in the cluster until the token expires: who has
the token before it is used becomes root of the cluster. Without it the host becomes a worker, and the
token leads to the certificate of one host alone.`,
		Example: `  windlass host token
  windlass host token --control-plane --ttl 5m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return makeToken(cmd.Context(), e, dir, controlPlane, ttl)
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().BoolVar(&controlPlane, "control-plane", false, "for a control-plane host, instead of a worker")
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "how long the token is valid, from 1m to 24h")
	return cmd
}

func makeToken(ctx context.Context, e *session.Env, dir string, controlPlane bool, ttl time.Duration) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	if e.Target.Named() {
		return errors.New(
			"a token is of the cluster of this host: --server, --name, credentials and their variables are not for it")
	}
	if c.Member.Worker {
		return fmt.Errorf("host %s is a worker: make the token on a control-plane host", c.Member.Name)
	}
	token, err := hosttoken.New()
	if err != nil {
		return err
	}
	what, roles, sealed := "worker", []string{"worker"}, []byte(nil)
	if controlPlane {
		for _, name := range topology.Authorities() {
			step, err := c.Rotation(name)
			if err != nil {
				return err
			}
			if step != identity.Steady {
				return fmt.Errorf("authority %s is being rotated (%s): make the token when `windlass auth rotate` has finished it",
					name, step)
			}
		}
		bundle, err := c.Bundle()
		if err != nil {
			return err
		}
		if sealed, err = token.Seal(bundle); err != nil {
			return err
		}
		what, roles = "control-plane host", []string{"control-plane"}
	}
	var made *machinev1.CreateHostTokenResponse
	if err := asAdministrator(ctx, e, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
		var err error
		made, err = machinev1.NewHostJoinServiceClient(conn).CreateHostToken(ctx, &machinev1.CreateHostTokenRequest{
			Id: token.ID, ProofHash: token.ProofHash(), Roles: roles, Ttl: durationpb.New(ttl), Bundle: sealed,
		})
		return err
	}); err != nil {
		return err
	}
	token.CA, token.Gateways = made.GetAuthorityHash(), made.GetGateways()
	token.Worker, token.Isolated = !controlPlane, c.PodsIsolated()
	fmt.Fprintln(e.Out, token)
	fmt.Fprintf(e.Err, "For one %s, until %s: windlass host join TOKEN --address ADDRESS\n", what,
		made.GetExpiryTime().AsTime().Local().Format(time.TimeOnly))
	return nil
}
