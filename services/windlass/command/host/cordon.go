package host

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

// aim has e call the cluster of the host in dir, as its administrator, unless a flag or a variable names another one.
func aim(e *session.Env, dir string) error {
	if e.Target.Named() {
		return nil
	}
	var err error
	e.Target, err = e.Target.AtHost(dir)
	return err
}

// newList makes ls of cmd, the command get.
func newList(e *session.Env, cmd *cobra.Command) *cobra.Command {
	var dir string
	list := cmd.RunE
	cmd.Use, cmd.Aliases, cmd.Short = "ls [NAME...]", []string{"list"}, "List the hosts of the inventory"
	cmd.Example = "  windlass host ls -o wide"
	cmd.ValidArgsFunction = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := aim(e, dir); err != nil {
			return err
		}
		return list(cmd, append([]string{"hosts"}, args...))
	}
	dirFlag(cmd, &dir)
	return cmd
}

func newCordon(e *session.Env) *cobra.Command {
	var dir, reason string
	cmd := &cobra.Command{
		Use:   "cordon NAME [--reason REASON]",
		Short: "Keep machines from claiming a host; a machine that has it keeps it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asAdministrator(cmd.Context(), e, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := hostv1.NewHostServiceClient(conn).CordonHost(ctx, &hostv1.CordonHostRequest{
					Name: args[0], Reason: reason,
				})
				if err == nil {
					fmt.Fprintf(e.Out, "host.windlass.dev/%s cordoned\n", args[0])
				}
				return err
			})
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	return cmd
}

func newUncordon(e *session.Env) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "uncordon NAME",
		Short: "Let machines claim a host again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asAdministrator(cmd.Context(), e, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := hostv1.NewHostServiceClient(conn).UncordonHost(ctx, &hostv1.UncordonHostRequest{Name: args[0]})
				if err == nil {
					fmt.Fprintf(e.Out, "host.windlass.dev/%s uncordoned\n", args[0])
				}
				return err
			})
		},
	}
	dirFlag(cmd, &dir)
	return cmd
}
