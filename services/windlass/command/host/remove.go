package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/cluster"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newFence(e *session.Env) *cobra.Command {
	var dir, reason string
	cmd := &cobra.Command{
		Use:   "fence NAME --reason REASON",
		Short: "Confirm that a lost host is off",
		Long: `Confirm that a lost host is off, so that it and its machine can be removed. Turn it off first: nothing else
keeps what runs there from running on. It is refused while the host's agent attends.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return errors.New("--reason is required: how it is known that the host is off")
			}
			return asAdministrator(cmd.Context(), dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := hostv1.NewHostServiceClient(conn).FenceHost(ctx, &hostv1.FenceHostRequest{Name: args[0], Reason: reason})
				if err == nil {
					fmt.Fprintf(e.Out, "host.windlass.dev/%s fenced\n", args[0])
				}
				return err
			})
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&reason, "reason", "", "how it is known that the host is off (required)")
	return cmd
}

func newRemove(e *session.Env) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a host from the inventory, so that another one may have its name and address",
		Long: `Remove a host from the inventory, so that another one may have its name and address. A host that is lost is
fenced first. What is on its disk stays there, the keys of the cluster's authorities included.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asAdministrator(cmd.Context(), dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := hostv1.NewHostServiceClient(conn).RemoveHost(ctx, &hostv1.RemoveHostRequest{Name: args[0]})
				if err == nil {
					fmt.Fprintf(e.Out, "host.windlass.dev/%s removed\n", args[0])
				}
				return err
			})
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}

// asAdministrator calls f with a connection to the gateway of this host, as the cluster's administrator.
func asAdministrator(ctx context.Context, dir string, f func(context.Context, *grpc.ClientConn) error) error {
	c, err := cluster.OpenHost(dir)
	if err != nil {
		return err
	}
	files := c.AdminFiles()
	conn, err := client.Dial(client.Target{
		Server: strings.Join(c.Gateways(), ","), CA: files.CA, Cert: files.Cert, Key: files.Key,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, conn)
}
