package adm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// machineAnnotation of a node names its machine as NAMESPACE/NAME.
const machineAnnotation = "machine.openshift.io/machine"

type taintFlags struct {
	target.Selection
	change.Flags
	overwrite bool
}

func newTaint(e *session.Env) *cobra.Command {
	var f taintFlags
	cmd := &cobra.Command{
		Use:   "taint nodes (NODE... | -l SELECTOR | --all) KEY=VALUE:EFFECT... KEY:EFFECT- KEY-",
		Short: "Update the taints of nodes",
		Long: `Update the taints of nodes. EFFECT is NoSchedule, PreferNoSchedule or NoExecute. A NoExecute taint
also evicts the running pods that do not tolerate it.`,
		Example: `  windlass adm taint nodes node1 key1=value1:NoSchedule
  windlass adm taint nodes node1 key1=value1:NoExecute --overwrite
  windlass adm taint nodes node1 key1:NoSchedule-
  windlass adm taint nodes node1 key1-
  windlass adm taint nodes -l rack=a dedicated=groupName:NoSchedule`,
		RunE: func(cmd *cobra.Command, args []string) error { return taint(cmd.Context(), e, args, f) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"nodes"}, cobra.ShellCompDirectiveNoFileComp
			}
			return target.CompleteNames(e, "node")(cmd, args[1:], typed)
		},
	}
	fs := cmd.Flags()
	f.Selection.AddFlags(fs)
	fs.BoolVar(&f.Selection.All, "all", false, "select all nodes")
	f.Flags.AddFlags(fs)
	fs.BoolVar(&f.overwrite, "overwrite", false, "overwrite existing taints")
	return cmd
}

// taintChange is one argument of taint: a taint to set, or the key (and effect) of those to remove.
type taintChange struct {
	taint  *nodev1.Taint // effect is empty in a removal of all effects
	remove bool
}

func (c taintChange) String() string {
	return strings.TrimSuffix(c.taint.GetKey()+":"+c.taint.GetEffect(), ":")
}

func taint(ctx context.Context, e *session.Env, args []string, f taintFlags) error {
	if len(args) == 0 || !slices.Contains([]string{"node", "nodes", "no"}, args[0]) {
		return errors.New("only nodes can be tainted: use `adm taint nodes`")
	}
	nodes, changes, err := splitTaints(args[1:])
	switch {
	case err != nil:
		return err
	case len(changes) == 0:
		return errors.New("at least one taint update is required")
	case f.Selection.All && f.Labels != "":
		return errors.New("setting --all and --selector at once is not supported")
	case len(nodes) == 0 && !f.Selects():
		return errors.New("at least one resource name must be specified since '--all' parameter is not set")
	}
	if err := f.Settle(); err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		list, err := target.Find(ctx, e, c, nodeArgs(nodes), f.Selection)
		var failed failure.List
		failed.Add(err)
		if err := checkTaints(list, changes, &f); err != nil {
			return err // before any node is changed
		}
		for _, t := range list {
			failed.Add(taintUntilStored(ctx, e, c, t, changes, &f))
		}
		return failed.Err()
	})
}

// splitTaints splits the arguments into nodes and changes; nodes come first.
func splitTaints(args []string) (nodes []string, changes []taintChange, err error) {
	for _, arg := range args {
		isChange := strings.ContainsAny(arg, "=:") || strings.HasSuffix(arg, "-")
		switch {
		case isChange:
			c, err := parseTaint(arg)
			if err != nil {
				return nil, nil, err
			}
			changes = append(changes, c)
		case len(changes) > 0:
			return nil, nil, fmt.Errorf("all nodes must be specified before taint changes: %s", arg)
		default:
			nodes = append(nodes, arg)
		}
	}
	for i, a := range changes {
		for _, b := range changes[:i] {
			same := a.taint.GetKey() == b.taint.GetKey() && (a.taint.GetEffect() == b.taint.GetEffect() || a.remove &&
				a.taint.GetEffect() == "" || b.remove && b.taint.GetEffect() == "")
			switch {
			case same && a.remove != b.remove:
				return nil, nil, fmt.Errorf("can not both modify and remove the following taint(s) in the same command: %s",
					a.taint.GetKey())
			case same && !a.remove:
				return nil, nil, fmt.Errorf("duplicated taints with the same key and effect: %s", a)
			}
		}
	}
	return nodes, changes, nil
}

// parseTaint reads KEY=VALUE:EFFECT, KEY:EFFECT, KEY:EFFECT- or KEY-.
func parseTaint(arg string) (taintChange, error) {
	text, remove := strings.CutSuffix(arg, "-")
	rest, effect, _ := strings.Cut(text, ":")
	key, value, assigns := strings.Cut(rest, "=")
	c := taintChange{taint: &nodev1.Taint{Key: key, Effect: effect}, remove: remove}
	if msgs := validation.IsQualifiedName(key); len(msgs) > 0 {
		return c, fmt.Errorf("invalid taint spec: %v, %s", arg, strings.Join(msgs, "; "))
	}
	if effect != "" && !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, effect) {
		return c,
			fmt.Errorf("invalid taint effect: %s, unsupported taint effect: must be NoSchedule, PreferNoSchedule or NoExecute",
				effect)
	}
	if remove {
		return c, nil
	}
	if effect == "" {
		return c, fmt.Errorf("invalid taint spec: %v, the effect is missing: use KEY=VALUE:EFFECT", arg)
	}
	if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 {
		return c, fmt.Errorf("invalid taint spec: %v, %s", arg, strings.Join(msgs, "; "))
	}
	if assigns {
		c.taint.Value = proto.String(value)
	}
	return c, nil
}

func (c taintChange) matches(t *nodev1.Taint) bool {
	return c.taint.GetKey() == t.GetKey() && (c.taint.GetEffect() == t.GetEffect() || c.remove &&
		c.taint.GetEffect() == "")
}

// checkTaints returns why a change cannot be made on one of the nodes. Of nodes that are not named, those that lack a
// taint to remove are passed over, unless all of them do.
func checkTaints(list []target.Item, changes []taintChange, f *taintFlags) error {
	found := make([]bool, len(changes))
	for _, t := range list {
		have := t.Object.(*nodev1.Node).GetSpec().GetTaints()
		for i, c := range changes {
			there := slices.ContainsFunc(have, c.matches)
			found[i] = found[i] || there
			switch {
			case c.remove && !there && !f.Selects():
				return fmt.Errorf("node %s: taint %q not found", t.Name(), c.String())
			case !c.remove && there && !f.overwrite:
				return fmt.Errorf("node %s already has %s taint(s) with same effect(s) and --overwrite is false", t.Name(),
					c.taint.GetKey())
			}
		}
	}
	for i, c := range changes {
		if c.remove && !found[i] && len(list) > 0 {
			return fmt.Errorf("taint %q not found on any of the selected nodes: %d", c.String(), len(list))
		}
	}
	return nil
}

// mostTries is how often the change of a node is tried that others write to at the same time.
const mostTries = 10

// taintUntilStored changes the taints of one node. If the node has changed since it was read, it is read and checked
// again.
func taintUntilStored(ctx context.Context, e *session.Env, c *client.Client, t target.Item, changes []taintChange,
	f *taintFlags,
) error {
	pause := backoff.Spread(20*time.Millisecond, time.Second)
	for try := 1; ; try++ {
		err := taintOne(ctx, e, c, t, changes, f)
		if rpcerr.Reason(err) != metav1.ErrorReason_ERROR_REASON_CONFLICT || try == mostTries || !pause.Wait(ctx) {
			return err
		}
		if t.Object, err = c.Get(ctx, t.Kind, "", t.Name()); err != nil {
			return err
		}
		if err := checkTaints([]target.Item{t}, changes, f); err != nil {
			return err
		}
	}
}

// warnOfMachine warns of taints that are removed from a node and that its machine puts there again.
func warnOfMachine(ctx context.Context, e *session.Env, c *client.Client, t target.Item, changes []taintChange) {
	namespace, name, ok := strings.Cut(t.Object.GetMetadata().GetAnnotations()[machineAnnotation], "/")
	if !ok || !slices.ContainsFunc(changes, func(c taintChange) bool { return c.remove }) {
		return
	}
	kind, err := client.FindKind("machines")
	if err != nil {
		return
	}
	found, err := c.Get(ctx, kind, namespace, name)
	if err != nil {
		return // the node is changed, whether the machine can be read or not
	}
	machine, ok := found.(*machinev1.Machine)
	if !ok {
		return
	}
	for _, taint := range machine.GetSpec().GetTaints() {
		for _, c := range changes {
			if c.remove && c.matches(taint) {
				fmt.Fprintf(e.Err, "Warning: node %s: the taint %s:%s is in spec.taints of machine %s/%s, which sets it again\n",
					t.Name(), taint.GetKey(), taint.GetEffect(), namespace, name)
			}
		}
	}
}

// taintOne changes the taints of one node; it fails if the node has changed since it was read.
func taintOne(ctx context.Context, e *session.Env, c *client.Client, t target.Item, changes []taintChange,
	f *taintFlags,
) error {
	have := t.Object.(*nodev1.Node).GetSpec().GetTaints()
	next := slices.Clone(have)
	set, removed := false, false
	for _, change := range changes {
		before := len(next)
		next = slices.DeleteFunc(next, change.matches)
		if change.remove {
			removed = removed || len(next) < before
			continue
		}
		set = true
		next = append(next, change.taint)
	}
	done := map[bool]string{true: "tainted", false: "untainted"}[set]
	if set && (removed || f.overwrite) {
		done = "modified"
	}
	if !set && !removed {
		return f.Print(e.Out, t.Kind, t.Object, "unchanged")
	}
	taints := make([]any, len(next))
	for i, taint := range next {
		v, err := printer.Plain(taint)
		if err != nil {
			return err
		}
		taints[i] = v
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": t.Object.GetMetadata().GetResourceVersion()},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	var after object.Object
	if f.Client() {
		after, err = change.PatchLocally(t, manifest.MergePatch, body)
	} else {
		after, err = c.Patch(ctx, t.Kind, "", t.Name(), manifest.MergePatch, body, f.Server())
	}
	if err != nil {
		return err
	}
	warnOfMachine(ctx, e, c, t, changes)
	return f.Print(e.Out, t.Kind, after, done)
}
