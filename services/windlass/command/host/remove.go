package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newFence(e *session.Env) *cobra.Command {
	var dir, reason string
	var force bool
	cmd := &cobra.Command{
		Use:   "fence NAME --reason REASON",
		Short: "Confirm that a lost host is off",
		Long: `Confirm that a lost host is off, so that it and its machine can be removed. Turn it off first: nothing else
keeps what runs there from running on. It is refused while the host's agent attends, and while the node of its
machine is Ready: only ` + "`windlass host run`" + ` has ended there then.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return errors.New("--reason is required: how it is known that the host is off")
			}
			return asAdministrator(cmd.Context(), e, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
				if !force {
					if err := nodeIsDown(ctx, conn, args[0]); err != nil {
						return err
					}
				}
				_, err := hostv1.NewHostServiceClient(conn).FenceHost(ctx, &hostv1.FenceHostRequest{Name: args[0], Reason: reason})
				if err == nil {
					fmt.Fprintf(e.Out, "host.windlass.dev/%s fenced\n", args[0])
				}
				return err
			})
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().BoolVar(&force, "force", false, "fence it though its node is Ready")
	cmd.Flags().StringVar(&reason, "reason", "", "how it is known that the host is off (required)")
	return cmd
}

// nodeIsDown returns an error if the node of the machine that has a host is Ready: the host is not off then.
func nodeIsDown(ctx context.Context, conn *grpc.ClientConn, name string) error {
	h, err := hostv1.NewHostServiceClient(conn).GetHost(ctx, &hostv1.GetHostRequest{Name: name})
	ref := h.GetStatus().GetMachineRef()
	if err != nil || ref == nil {
		return err
	}
	m, err := machinev1.NewMachineServiceClient(conn).GetMachine(ctx, &machinev1.GetMachineRequest{
		Namespace: ref.GetNamespace(), Name: ref.GetName(),
	})
	if status.Code(err) == codes.NotFound || err == nil && m.GetStatus().GetNodeRef() == nil {
		return nil
	}
	if err != nil {
		return err
	}
	node, err := nodev1.NewNodeServiceClient(conn).GetNode(ctx, &nodev1.GetNodeRequest{
		Name: m.GetStatus().GetNodeRef().GetName(),
	})
	if err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	for _, c := range node.GetStatus().GetConditions() {
		if c.GetType() == "Ready" && c.GetStatus() == "True" {
			return fmt.Errorf("host %s is not off: its node %s is Ready; start `windlass host run` there, or turn the host off "+
				"first (--force fences it all the same)", name, node.GetMetadata().GetName())
		}
	}
	return nil
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
			return asAdministrator(cmd.Context(), e, dir, func(ctx context.Context, conn *grpc.ClientConn) error {
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

// asAdministrator calls f with a connection to the cluster of this host, as its administrator, unless a flag or a
// variable names another one.
func asAdministrator(ctx context.Context, e *session.Env, dir string,
	f func(context.Context, *grpc.ClientConn) error,
) error {
	if err := aim(e, dir); err != nil {
		return err
	}
	t, err := e.Target.Resolve()
	if err != nil {
		return err
	}
	conn, err := client.Dial(t)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, conn)
}
