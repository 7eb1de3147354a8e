package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/change"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/command/waiting"
)

type deleteFlags struct {
	target.Selection
	input.Files
	change.DryRun
	output  string
	wait    bool
	timeout time.Duration
	cascade string
	ignore  bool
	grace   int32
	now     bool
	force   bool
	forget  bool
	shrink  bool
	reason  string
}

// graceSeconds is the requested grace period; nil for the object's own.
func (f deleteFlags) graceSeconds() *int32 {
	switch {
	case f.force && f.grace < 0:
		return proto.Int32(0)
	case f.now:
		return proto.Int32(1)
	case f.grace < 0:
		return nil
	}
	return proto.Int32(f.grace)
}

// NewDelete returns the command delete.
func NewDelete(e *session.Env) *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete (-f FILE | TYPE [NAME... | -l SELECTOR | --all] | TYPE/NAME...)",
		Short: "Delete objects",
		Long: `Delete objects and wait until they are removed. A machine is deleted in steps: the owners of its
lifecycle hooks act, its node is drained, and its instance is deleted. If this takes longer than one
second, the command prints what the machine waits for. Its machine set replaces it, unless
--shrink-set also lowers the replicas of the set by one: both are one write, so that the set deletes
no other machine instead.`,
		Example: `  windlass delete machine a
  windlass delete machine a --wait=false
  windlass delete machine a --reason "its disk is slow"
  windlass delete machine a --shrink-set
  windlass delete machinesets -l team=web --cascade=orphan
  windlass delete machine a --forget --reason "the cloud account was closed"`,
		ValidArgsFunction: target.CompleteObjects(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return remove(cmd.Context(), e, args, f) },
	}
	fs := cmd.Flags()
	f.Selection.AddFlags(fs)
	f.AddAll(fs)
	f.Files.AddFlags(fs, "the objects to delete")
	f.AddFlag(fs)
	fs.StringVarP(&f.output, "output", "o", "", "output format: name")
	fs.BoolVar(&f.wait, "wait", true, "wait until the objects are removed")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait; 0 means no limit")
	fs.StringVar(&f.cascade, "cascade", "background",
		"background (also delete dependent objects) or orphan (keep them)")
	fs.Lookup("cascade").NoOptDefVal = "background"
	fs.BoolVar(&f.ignore, "ignore-not-found", false, "exit with 0 if an object does not exist")
	fs.Int32Var(&f.grace, "grace-period", -1,
		"seconds that a pod's containers have to terminate; -1 uses the pod's own value, 0 requires --force")
	fs.BoolVar(&f.now, "now", false, "same as --grace-period=1")
	fs.BoolVar(&f.force, "force", false, "remove a pod's object immediately, even if its processes may still be running")
	fs.BoolVar(&f.forget, "forget", false,
		"delete a machine whose provider is permanently lost, without deleting its resources at the provider")
	fs.BoolVar(&f.shrink, "shrink-set", false,
		"also lower the replicas of the machine's set by one, so that the machine is not replaced")
	fs.StringVar(&f.reason, "reason", "", "reason for the deletion of a machine, recorded in its status")
	return cmd
}

func (f deleteFlags) settle(args []string) (propagation string, err error) {
	if err := f.Check(); err != nil {
		return "", err
	}
	if f.output != "" && f.output != printer.Name {
		return "", fmt.Errorf("unexpected -o output mode: %s. We only support '-o name'", f.output)
	}
	if f.grace == 0 && !f.force {
		return "",
			errors.New("--grace-period=0 removes the object while its processes may still be running: add --force, or use --now")
	}
	if f.forget && f.Suffix() != "" {
		return "", errors.New("--forget does not support --dry-run")
	}
	if f.shrink && f.forget {
		return "", errors.New("--shrink-set and --forget cannot be used together")
	}
	if len(f.Names) > 0 && len(args) > 0 {
		return "", errors.New("cannot specify both -f and names")
	}
	switch f.cascade {
	case "background", "true":
		return "Background", nil
	case "orphan", "false":
		return "Orphan", nil
	}
	return "", fmt.Errorf(`invalid cascade value %q: must be "background" or "orphan"`, f.cascade)
}

func remove(ctx context.Context, e *session.Env, args []string, f deleteFlags) error {
	propagation, err := f.settle(args)
	if err != nil {
		return err
	}
	return e.WithClient(func(c *client.Client) error {
		var failed failure.List
		list, err := toDelete(ctx, e, c, args, f)
		failed.Add(err)
		if f.ignore {
			failed = slices.DeleteFunc(failed, failure.IsNotFound)
		}
		if len(list) == 0 && len(failed) == 0 && !f.ignore {
			fmt.Fprintln(e.Err, "No resources found")
		}
		var gone []target.Item
		for _, t := range list {
			err := deleteOne(ctx, e, c, t, f, propagation)
			if err != nil && !(f.ignore && failure.IsNotFound(err)) {
				failed.Add(err)
			} else if err == nil {
				gone = append(gone, t)
			}
		}
		if f.wait && f.dry() == "" {
			failed.Add(awaitGone(ctx, e, c, gone, f.timeout))
		}
		return failed.Err()
	})
}

func (f deleteFlags) dry() string { return f.Suffix() }

// toDelete returns the objects that the arguments or files name.
func toDelete(ctx context.Context, e *session.Env, c *client.Client, args []string, f deleteFlags) ([]target.Item,
	error,
) {
	if len(f.Names) == 0 {
		return target.Find(ctx, e, c, args, f.Selection)
	}
	documents, err := f.Files.ReadAny(ctx, e)
	var failed failure.List
	failed.Add(err)
	var out []target.Item
	for _, d := range documents {
		if err := input.Place(e, d); err != nil {
			failed.Add(err)
			continue
		}
		ns := d.Object.GetMetadata().GetNamespace()
		if ns == "" {
			ns = e.NamespaceOf(d.Kind)
		}
		o, err := c.Get(ctx, d.Kind, ns, d.Object.GetMetadata().GetName())
		switch {
		case err == nil:
			out = append(out, target.Item{Kind: d.Kind, Object: o})
		case !(f.ignore && failure.IsNotFound(err)):
			failed.Add(d.Placed(err))
		}
	}
	return out, failed.Err()
}

// deleteOne requests a deletion with the uid as precondition, so that a new object of the same name is not deleted.
func deleteOne(ctx context.Context, e *session.Env, c *client.Client, t target.Item, f deleteFlags,
	propagation string,
) error {
	if f.shrink {
		if err := shrink(ctx, c, t, f); err != nil {
			return err
		}
	} else if f.forget {
		if err := forget(ctx, c, t, f.reason); err != nil {
			return err
		}
	} else if f.reason != "" && t.Kind.GetKind() != "Machine" {
		return fmt.Errorf("%s: --reason applies to machines only", t)
	} else if !f.Client() {
		pre := &metav1.Preconditions{Uid: t.Object.GetMetadata().GetUid()}
		if _, err := c.Delete(ctx, t.Kind, t.Namespace(), t.Name(), client.DeleteOptions{
			Preconditions: pre, Propagation: propagation, GraceSeconds: f.graceSeconds(), DryRun: f.Server(), Reason: f.reason,
		}); err != nil {
			return err
		}
	}
	if f.output == printer.Name {
		fmt.Fprintln(e.Out, t)
		return nil
	}
	kind, _, _ := strings.Cut(t.String(), "/")
	from := ""
	if t.Kind.GetNamespaced() {
		from = fmt.Sprintf(" from %s namespace", t.Namespace())
	}
	_, err := fmt.Fprintf(e.Out, "%s %q deleted%s%s\n", kind, t.Name(), from, f.dry())
	return err
}

// forget deletes a machine without its provider.
func forget(ctx context.Context, c *client.Client, t target.Item, reason string) error {
	m, ok := t.Object.(*machinev1.Machine)
	if !ok {
		return fmt.Errorf("%s: --forget applies to machines only", t)
	}
	_, err := machinev1.NewMachineServiceClient(c.Conn()).ForgetMachine(ctx, &machinev1.ForgetMachineRequest{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(), Uid: m.GetMetadata().GetUid(),
		Reason: reason,
	})
	return err
}

// shrink deletes a machine and lowers the replicas of its set.
func shrink(ctx context.Context, c *client.Client, t target.Item, f deleteFlags) error {
	m, ok := t.Object.(*machinev1.Machine)
	if !ok {
		return fmt.Errorf("%s: --shrink-set applies to machines only", t)
	}
	if f.Client() {
		return nil
	}
	req := &machinev1.DeleteAndShrinkRequest{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(), Reason: f.reason,
		Preconditions: &metav1.Preconditions{Uid: m.GetMetadata().GetUid()},
	}
	if f.Server() {
		req.DryRun = "All"
	}
	_, err := machinev1.NewMachineServiceClient(c.Conn()).DeleteAndShrink(ctx, req)
	return err
}

// awaitGone waits until objects are removed.
func awaitGone(ctx context.Context, e *session.Env, c *client.Client, list []target.Item, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var failed failure.List
	for _, t := range list {
		failed.Add(waiting.Await(ctx, e, c, gone(c, t)))
	}
	return failed.Err()
}

// gone is the goal that an object does not exist any more.
func gone(c *client.Client, t target.Item) waiting.Goal {
	uid := t.Object.GetMetadata().GetUid()
	return waiting.Goal{
		Kind: t.Kind, Namespace: t.Namespace(), Name: t.Name(), What: "deletion", Reason: waiting.Deletion(c),
		Met: func(o object.Object) (bool, error) { return o == nil || o.GetMetadata().GetUid() != uid, nil },
	}
}
