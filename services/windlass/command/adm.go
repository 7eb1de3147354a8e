package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
)

// cordonAnnotation is set on a node while a user has cordoned it.
const cordonAnnotation = "windlass.dev/cordoned"

func newAdm(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "adm", Short: "Manage nodes, updates, release images and encryption keys",
	}
	cmd.AddCommand(newCordon(e), newUncordon(e), newDrain(e), newReboot(e), newTaint(e), newUpgrade(e), newAdmRelease(e),
		newEncryption(e))
	return cmd
}

func newCordon(e *env) *cobra.Command {
	return newNodeVerb(e, "cordon", "Mark nodes as unschedulable", e.cordon)
}

func newUncordon(e *env) *cobra.Command {
	return newNodeVerb(e, "uncordon", "Mark nodes as schedulable again", e.uncordon)
}

func newNodeVerb(e *env, verb, short string, do func(context.Context, *client.Client,
	*nodev1.Node) error,
) *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:               verb + " (NODE... | -l SELECTOR)",
		Short:             short,
		ValidArgsFunction: e.completeNames("node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withClient(func(c *client.Client) error { return e.eachNode(cmd.Context(), c, args, labels, do) })
		},
	}
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "label selector for nodes")
	return cmd
}

// eachNode calls do for each node that the names or labels select.
func (e *env) eachNode(ctx context.Context, c *client.Client, names []string, labels string,
	do func(context.Context, *client.Client, *nodev1.Node) error,
) error {
	if (len(names) == 0) == (labels == "") {
		return errors.New("specify either node names or a selector with -l")
	}
	list, err := e.targets(ctx, c, nodeArgs(names), selection{labels: labels})
	var failed failures
	failed.add(err)
	for _, t := range list {
		failed.add(do(ctx, c, t.object.(*nodev1.Node)))
	}
	return failed.err()
}

// nodeArgs accepts both NODE and node/NODE.
func nodeArgs(names []string) []string {
	args := []string{"node"}
	for _, n := range names {
		args = append(args, trimPair(n))
	}
	return args
}

func trimPair(name string) string {
	for _, prefix := range []string{"node/", "nodes/", "no/"} {
		if len(name) > len(prefix) && name[:len(prefix)] == prefix {
			return name[len(prefix):]
		}
	}
	return name
}

func (e *env) cordon(ctx context.Context, c *client.Client, n *nodev1.Node) error {
	name := n.GetMetadata().GetName()
	if _, already := n.GetMetadata().GetAnnotations()[cordonAnnotation]; already {
		_, err := fmt.Fprintf(e.out, "node/%s already cordoned\n", name)
		return err
	}
	if _, err := nodev1.NewNodeServiceClient(c.Conn()).CordonNode(ctx, &nodev1.CordonNodeRequest{Name: name}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "node/%s cordoned\n", name)
	return err
}

func (e *env) uncordon(ctx context.Context, c *client.Client, n *nodev1.Node) error {
	name := n.GetMetadata().GetName()
	if !n.GetSpec().GetUnschedulable() {
		_, err := fmt.Fprintf(e.out, "node/%s already uncordoned\n", name)
		return err
	}
	after, err := nodev1.NewNodeServiceClient(c.Conn()).UncordonNode(ctx, &nodev1.UncordonNodeRequest{Name: name})
	if err != nil {
		return err
	}
	if after.GetSpec().GetUnschedulable() {
		fmt.Fprintf(e.err, "node/%s remains unschedulable because of a drain; see `windlass describe node %s`\n", name, name)
	}
	_, err = fmt.Fprintf(e.out, "node/%s uncordoned\n", name)
	return err
}

type drainFlags struct {
	labels                      string
	timeout                     time.Duration
	grace                       int32
	ignoreDaemonSets, emptyDirs bool
	force                       bool
}

func newDrain(e *env) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain (NODE... | -l SELECTOR)",
		Short: "Cordon nodes and evict their pods",
		Long: `Cordon nodes and evict their pods. A control-plane node is drained only if the etcd quorum tolerates
the loss of its member. The nodes remain cordoned after the drain; use uncordon to make them
schedulable again.`,
		ValidArgsFunction: e.completeNames("node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if f.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, f.timeout)
				defer cancel()
			}
			return e.withClient(func(c *client.Client) error {
				return e.eachNode(ctx, c, args, f.labels, func(ctx context.Context, c *client.Client, n *nodev1.Node) error {
					return e.drain(ctx, c, n, f)
				})
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.labels, "selector", "l", "", "label selector for nodes")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait; 0 means no limit")
	fs.Int32Var(&f.grace, "grace-period", -1, "seconds that pods have to terminate; a negative value uses each pod's own")
	fs.BoolVar(&f.ignoreDaemonSets, "ignore-daemonsets", false, "ignore pods managed by daemon sets")
	fs.BoolVar(&f.emptyDirs, "delete-emptydir-data", false, "also evict pods that lose data in emptyDir volumes")
	fs.BoolVar(&f.force, "force", false, "also evict pods that have no controller")
	return cmd
}

func (f drainFlags) of(n *nodev1.Node) *nodev1.Drain {
	name := n.GetMetadata().GetName()
	d := &nodev1.Drain{
		Metadata: &metav1.ObjectMeta{GenerateName: "user-" + name + "-"},
		Spec: &nodev1.DrainSpec{
			NodeName: name, Reason: "windlass adm drain",
			IgnoreDaemonSets: proto.Bool(f.ignoreDaemonSets), Force: proto.Bool(f.force),
			DeleteEmptyDirData: proto.Bool(f.emptyDirs),
		},
	}
	if f.grace >= 0 {
		d.Spec.GracePeriodSeconds = proto.Int32(f.grace)
	}
	return d
}

// drain drains one node. It always deletes the Drain object, so that an abandoned drain does not keep the node
// unschedulable.
func (e *env) drain(ctx context.Context, c *client.Client, n *nodev1.Node, f drainFlags) error {
	if err := e.cordon(ctx, c, n); err != nil {
		return err
	}
	k, err := client.FindKind("drain")
	if err != nil {
		return err
	}
	d, err := c.Create(ctx, k, f.of(n), false)
	if err != nil {
		return err
	}
	err = e.awaitDrain(ctx, c, target{k, d})
	if cleanup := removeDrain(ctx, c, target{k, d}); err == nil {
		err = cleanup
	}
	if err != nil {
		return fmt.Errorf("unable to drain node %q: %s", n.GetMetadata().GetName(), describe(err))
	}
	_, err = fmt.Fprintf(e.out, "node/%s drained\n", n.GetMetadata().GetName())
	return err
}

func (e *env) awaitDrain(ctx context.Context, c *client.Client, t target) error {
	return e.await(ctx, c, goal{
		kind: t.kind, name: t.name(), what: "drain",
		met: func(o object.Object) (bool, error) {
			if o == nil {
				return false, errors.New("the drain was deleted")
			}
			s := o.(*nodev1.Drain).GetStatus()
			if s.GetPhase() == "Failed" {
				return false, errors.New(s.GetMessage())
			}
			return s.GetPhase() == "Succeeded", nil
		},
		reason: func(_ context.Context, o object.Object) string {
			if o == nil {
				return ""
			}
			return o.(*nodev1.Drain).GetStatus().GetMessage()
		},
	})
}

// removeDrain deletes a drain, also if ctx has ended.
func removeDrain(ctx context.Context, c *client.Client, t target) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := c.Delete(ctx, t.kind, "", t.name(), client.DeleteOptions{
		Preconditions: &metav1.Preconditions{Uid: t.object.GetMetadata().GetUid()},
	})
	if isNotFound(err) {
		return nil
	}
	return err
}
