package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

type rebootFlags struct {
	labels, reason string
	wait           bool
	timeout        time.Duration
}

func newReboot(e *env) *cobra.Command {
	var f rebootFlags
	cmd := &cobra.Command{
		Use:               "reboot (NODE... | -l SELECTOR)",
		Short:             "Reboot nodes one at a time; a control-plane node only if the etcd quorum tolerates it",
		ValidArgsFunction: e.completeNames("node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return e.withClient(func(c *client.Client) error {
				return e.eachNode(ctx, c, args, f.labels, func(ctx context.Context, c *client.Client, n *nodev1.Node) error {
					return e.reboot(ctx, c, n, f)
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
func (e *env) reboot(ctx context.Context, c *client.Client, n *nodev1.Node, f rebootFlags) error {
	name := n.GetMetadata().GetName()
	resp, err := nodev1.NewNodeServiceClient(c.Conn()).RebootNode(ctx, &nodev1.RebootNodeRequest{
		Name: name, Reason: f.reason,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "node/%s reboot requested\n", name)
	if !f.wait {
		return nil
	}
	k, err := client.FindKind("node")
	if err != nil {
		return err
	}
	err = e.await(ctx, c, goal{
		kind: k, name: name, what: "reboot",
		met: func(o object.Object) (bool, error) {
			if o == nil {
				return false, fmt.Errorf("node/%s was deleted", name)
			}
			return rebooted(o.(*nodev1.Node), resp.GetBootId()), nil
		},
		reason: func(_ context.Context, o object.Object) string {
			if n, ok := o.(*nodev1.Node); ok && n.GetStatus().GetNodeInfo().GetBootId() != resp.GetBootId() {
				return "the node has booted but is not Ready yet"
			}
			return "the node is shutting down"
		},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "node/%s rebooted\n", name)
	return err
}

func rebooted(n *nodev1.Node, before string) bool {
	return n.GetStatus().GetNodeInfo().GetBootId() != before && isReady(n)
}
