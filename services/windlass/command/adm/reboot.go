package adm

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
)

type rebootFlags struct {
	labels, reason string
	wait           bool
	timeout        time.Duration
}

func newReboot(e *session.Env) *cobra.Command {
	var f rebootFlags
	cmd := &cobra.Command{
		Use:               "reboot (NODE... | -l SELECTOR)",
		Short:             "Reboot nodes one at a time; a control-plane node only if the etcd quorum tolerates it",
		ValidArgsFunction: target.CompleteNames(e, "node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return e.WithClient(func(c *client.Client) error {
				return eachNode(ctx, e, c, args, f.labels, func(ctx context.Context, c *client.Client, n *nodev1.Node) error {
					return reboot(ctx, e, c, n, f)
				})
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.labels, "selector", "l", "", "label selector for nodes")
	fs.StringVar(&f.reason, "reason", "", "reason, recorded for other users")
	fs.BoolVar(&f.wait, "wait", true, "wait until each node is Ready before rebooting the next one")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "total time to wait")
	return cmd
}

// reboot reboots a node and waits until it has another boot ID and is Ready.
func reboot(ctx context.Context, e *session.Env, c *client.Client, n *nodev1.Node, f rebootFlags) error {
	name := n.GetMetadata().GetName()
	resp, err := nodev1.NewNodeServiceClient(c.Conn()).RebootNode(ctx, &nodev1.RebootNodeRequest{
		Name: name, Reason: f.reason,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "node/%s reboot requested\n", name)
	if !f.wait {
		return nil
	}
	k, err := client.FindKind("node")
	if err != nil {
		return err
	}
	err = waiting.Await(ctx, e, c, waiting.Goal{
		Kind: k, Name: name, What: "reboot",
		Met: func(o object.Object) (bool, error) {
			if o == nil {
				return false, fmt.Errorf("node/%s was deleted", name)
			}
			return rebooted(o.(*nodev1.Node), resp.GetBootId()), nil
		},
		Reason: func(_ context.Context, o object.Object) string {
			if n, ok := o.(*nodev1.Node); ok && n.GetStatus().GetNodeInfo().GetBootId() != resp.GetBootId() {
				return "the node has booted but is not Ready yet"
			}
			return "the node is shutting down"
		},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.Out, "node/%s rebooted\n", name)
	return err
}

func rebooted(n *nodev1.Node, before string) bool {
	return n.GetStatus().GetNodeInfo().GetBootId() != before && probe.NodeReady(n)
}
