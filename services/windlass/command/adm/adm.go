// Package adm makes the command adm: cordon, drain, reboot and taint nodes, update the cluster, and rotate the keys
// of encrypted records. Its subcommand release is in package release.
package adm

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
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
)

// cordonAnnotation is set on a node while a user has cordoned it.
const cordonAnnotation = "windlass.dev/cordoned"

// New returns the command adm, without its subcommand release.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "adm", Short: "Manage nodes, updates, release images and encryption keys",
	}
	cmd.AddCommand(NewCordon(e), NewUncordon(e), NewDrain(e), newReboot(e), newTaint(e), newUpgrade(e),
		newUpdateService(e),
		newEncryption(e))
	return cmd
}

// NewCordon returns the command cordon.
func NewCordon(e *session.Env) *cobra.Command {
	return newNodeVerb(e, "cordon", "Mark nodes as unschedulable",
		func(ctx context.Context, c *client.Client, n *nodev1.Node) error { return cordon(ctx, e, c, n) })
}

// NewUncordon returns the command uncordon.
func NewUncordon(e *session.Env) *cobra.Command {
	return newNodeVerb(e, "uncordon", "Mark nodes as schedulable again",
		func(ctx context.Context, c *client.Client, n *nodev1.Node) error { return uncordon(ctx, e, c, n) })
}

func newNodeVerb(e *session.Env, verb, short string, do func(context.Context, *client.Client,
	*nodev1.Node) error,
) *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:               verb + " (NODE... | -l SELECTOR)",
		Short:             short,
		ValidArgsFunction: target.CompleteNames(e, "node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error { return eachNode(cmd.Context(), e, c, args, labels, do) })
		},
	}
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "label selector for nodes")
	return cmd
}

// eachNode calls do for each node that the names or labels select.
func eachNode(ctx context.Context, e *session.Env, c *client.Client, names []string, labels string,
	do func(context.Context, *client.Client, *nodev1.Node) error,
) error {
	if (len(names) == 0) == (labels == "") {
		return errors.New("specify either node names or a selector with -l")
	}
	list, err := target.Find(ctx, e, c, nodeArgs(names), target.Selection{Labels: labels})
	var failed failure.List
	failed.Add(err)
	for _, t := range list {
		failed.Add(do(ctx, c, t.Object.(*nodev1.Node)))
	}
	return failed.Err()
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

func cordon(ctx context.Context, e *session.Env, c *client.Client, n *nodev1.Node) error {
	name := n.GetMetadata().GetName()
	if _, already := n.GetMetadata().GetAnnotations()[cordonAnnotation]; already {
		_, err := fmt.Fprintf(e.Out, "node/%s already cordoned\n", name)
		return err
	}
	if _, err := nodev1.NewNodeServiceClient(c.Conn()).CordonNode(ctx, &nodev1.CordonNodeRequest{Name: name}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.Out, "node/%s cordoned\n", name)
	return err
}

func uncordon(ctx context.Context, e *session.Env, c *client.Client, n *nodev1.Node) error {
	name := n.GetMetadata().GetName()
	if !n.GetSpec().GetUnschedulable() {
		_, err := fmt.Fprintf(e.Out, "node/%s already uncordoned\n", name)
		return err
	}
	after, err := nodev1.NewNodeServiceClient(c.Conn()).UncordonNode(ctx, &nodev1.UncordonNodeRequest{Name: name})
	if err != nil {
		return err
	}
	if after.GetSpec().GetUnschedulable() {
		fmt.Fprintf(e.Err, "node/%s remains unschedulable because of a drain; see `windlass describe node %s`\n", name, name)
	}
	_, err = fmt.Fprintf(e.Out, "node/%s uncordoned\n", name)
	return err
}

type drainFlags struct {
	labels                      string
	timeout                     time.Duration
	grace                       int32
	ignoreDaemonSets, emptyDirs bool
	force                       bool
}

// NewDrain returns the command drain.
func NewDrain(e *session.Env) *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain (NODE... | -l SELECTOR)",
		Short: "Cordon nodes and evict their pods",
		Long: `Cordon nodes and evict their pods. A control-plane node is drained only if the etcd quorum tolerates
the loss of its member. The nodes remain cordoned after the drain; use uncordon to make them
schedulable again.`,
		ValidArgsFunction: target.CompleteNames(e, "node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if f.grace == 0 && !f.force {
				return errors.New("--grace-period=0 removes the objects of pods while their processes may still be running: " +
					"add --force, or use --grace-period=1")
			}
			if f.timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, f.timeout)
				defer cancel()
			}
			return e.WithClient(func(c *client.Client) error {
				return eachNode(ctx, e, c, args, f.labels, func(ctx context.Context, c *client.Client, n *nodev1.Node) error {
					return drain(ctx, e, c, n, f)
				})
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.labels, "selector", "l", "", "label selector for nodes")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait; 0 means no limit")
	fs.Int32Var(&f.grace, "grace-period", -1,
		"seconds that pods have to terminate; a negative value uses each pod's own, 0 requires --force")
	fs.BoolVar(&f.ignoreDaemonSets, "ignore-daemonsets", false, "ignore pods managed by daemon sets")
	fs.BoolVar(&f.emptyDirs, "delete-emptydir-data", false, "also evict pods that lose data in emptyDir volumes")
	fs.BoolVar(&f.force, "force", false,
		"also evict pods that have no controller; with --grace-period=0, remove objects although processes may still run")
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
func drain(ctx context.Context, e *session.Env, c *client.Client, n *nodev1.Node, f drainFlags) error {
	if err := cordon(ctx, e, c, n); err != nil {
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
	err = awaitDrain(ctx, e, c, target.Item{Kind: k, Object: d})
	if cleanup := removeDrain(ctx, c, target.Item{Kind: k, Object: d}); err == nil {
		err = cleanup
	}
	if err != nil {
		return fmt.Errorf("unable to drain node %q: %s", n.GetMetadata().GetName(), failure.Describe(err))
	}
	_, err = fmt.Fprintf(e.Out, "node/%s drained\n", n.GetMetadata().GetName())
	return err
}

func awaitDrain(ctx context.Context, e *session.Env, c *client.Client, t target.Item) error {
	return waiting.Await(ctx, e, c, waiting.Goal{
		Kind: t.Kind, Name: t.Name(), What: "drain",
		Met: func(o object.Object) (bool, error) {
			if o == nil {
				return false, errors.New("the drain was deleted")
			}
			s := o.(*nodev1.Drain).GetStatus()
			if s.GetPhase() == "Failed" {
				return false, errors.New(s.GetMessage())
			}
			return s.GetPhase() == "Succeeded", nil
		},
		Reason: func(_ context.Context, o object.Object) string {
			if o == nil {
				return ""
			}
			return o.(*nodev1.Drain).GetStatus().GetMessage()
		},
	})
}

// removeDrain deletes a drain, also if ctx has ended.
func removeDrain(ctx context.Context, c *client.Client, t target.Item) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := c.Delete(ctx, t.Kind, "", t.Name(), client.DeleteOptions{
		Preconditions: &metav1.Preconditions{Uid: t.Object.GetMetadata().GetUid()},
	})
	if failure.IsNotFound(err) {
		return nil
	}
	return err
}
