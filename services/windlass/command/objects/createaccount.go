package objects

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newCreateServiceAccount(e *session.Env) *cobra.Command {
	var w change.Flags
	cmd := &cobra.Command{
		Use:     "serviceaccount NAME",
		Aliases: []string{"sa"},
		Short:   "Create a service account, an identity for pods",
		Example: `  windlass create serviceaccount operator -n dev`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return createOne(cmd.Context(), e, &schedulingv1.ServiceAccount{
				ApiVersion: "v1", Kind: "ServiceAccount", Metadata: named(e, args[0]),
			}, &w)
		},
	}
	w.AddFlags(cmd.Flags())
	return cmd
}

func newCreateToken(e *session.Env) *cobra.Command {
	r := &schedulingv1.CreateServiceAccountTokenRequest{}
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "token NAME [--duration=1h] [--audience=AUDIENCE] [--pod=POD]",
		Short: "Create a token of a service account and print it",
		Example: `  WINDLASS_TOKEN=$(windlass create token operator -n dev) windlass auth whoami
  windlass create token operator --duration=10m --audience=vault`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			seconds := math.Ceil(duration.Seconds())
			if seconds < 0 || seconds > math.MaxInt32 {
				return fmt.Errorf("--duration %s is out of range", duration)
			}
			r.Namespace, r.Name, r.ExpirationSeconds = e.PodNamespace(), args[0], int32(seconds)
			return e.WithClient(func(c *client.Client) error {
				out, err := schedulingv1.NewServiceAccountTokenServiceClient(c.Conn()).CreateServiceAccountToken(cmd.Context(), r)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(e.Out, out.GetToken())
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&duration, "duration", 0, "lifetime, from 10m to 24h; 0 is one hour")
	cmd.Flags().StringSliceVar(&r.Audiences, "audience", nil,
		"who accepts the token; may be repeated (default: the API of this cluster)")
	cmd.Flags().StringVar(&r.PodName, "pod", "", "pod of the service account with which the token ends")
	return cmd
}
