package command

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
)

type deleteFlags struct {
	selection
	files
	dryRun
	output  string
	wait    bool
	timeout time.Duration
	cascade string
	ignore  bool
	grace   int32
	now     bool
	force   bool
	forget  bool
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

func newDelete(e *env) *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete (-f FILE | TYPE [NAME... | -l SELECTOR | --all] | TYPE/NAME...)",
		Short: "Delete objects",
		Long: `Delete objects and wait until they are removed. A machine is deleted in steps: the owners of its
lifecycle hooks act, its node is drained, and its instance is deleted. If this takes longer than one
second, the command prints what the machine waits for.`,
		Example: `  windlass delete machine a
  windlass delete machine a --wait=false
  windlass delete machinesets -l team=web --cascade=orphan
  windlass delete machine a --forget --reason "the cloud account was closed"`,
		ValidArgsFunction: e.completeObjects,
		RunE:              func(cmd *cobra.Command, args []string) error { return e.delete(cmd.Context(), args, f) },
	}
	fs := cmd.Flags()
	f.selection.flags(fs)
	f.allFlag(fs)
	f.files.flags(fs, "the objects to delete")
	f.flag(fs)
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
	fs.StringVar(&f.reason, "reason", "", "reason for --forget, recorded in the machine's events")
	return cmd
}

func (f deleteFlags) settle(args []string) (propagation string, err error) {
	if err := f.check(); err != nil {
		return "", err
	}
	if f.output != "" && f.output != formatName {
		return "", fmt.Errorf("unexpected -o output mode: %s. We only support '-o name'", f.output)
	}
	if f.grace == 0 && !f.force {
		return "",
			errors.New("--grace-period=0 removes the object while its processes may still be running: add --force, or use --now")
	}
	if f.reason != "" && !f.forget {
		return "", errors.New("--reason requires --forget")
	}
	if f.forget && f.suffix() != "" {
		return "", errors.New("--forget does not support --dry-run")
	}
	if len(f.names) > 0 && len(args) > 0 {
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

func (e *env) delete(ctx context.Context, args []string, f deleteFlags) error {
	propagation, err := f.settle(args)
	if err != nil {
		return err
	}
	return e.withClient(func(c *client.Client) error {
		var failed failures
		list, err := e.toDelete(ctx, c, args, f)
		failed.add(err)
		if f.ignore {
			failed = slices.DeleteFunc(failed, isNotFound)
		}
		if len(list) == 0 && len(failed) == 0 && !f.ignore {
			fmt.Fprintln(e.err, "No resources found")
		}
		var gone []target
		for _, t := range list {
			err := e.deleteOne(ctx, c, t, f, propagation)
			if err != nil && !(f.ignore && isNotFound(err)) {
				failed.add(err)
			} else if err == nil {
				gone = append(gone, t)
			}
		}
		if f.wait && f.dry() == "" {
			failed.add(e.awaitGone(ctx, c, gone, f.timeout))
		}
		return failed.err()
	})
}

func (f deleteFlags) dry() string { return f.suffix() }

// toDelete returns the objects that the arguments or files name.
func (e *env) toDelete(ctx context.Context, c *client.Client, args []string, f deleteFlags) ([]target, error) {
	if len(f.names) == 0 {
		return e.targets(ctx, c, args, f.selection)
	}
	documents, err := f.files.read(e.in)
	var failed failures
	failed.add(err)
	var out []target
	for _, d := range documents {
		if err := e.place(d); err != nil {
			failed.add(err)
			continue
		}
		ns := d.object.GetMetadata().GetNamespace()
		if ns == "" {
			ns = e.namespaceOf(d.kind)
		}
		o, err := c.Get(ctx, d.kind, ns, d.object.GetMetadata().GetName())
		switch {
		case err == nil:
			out = append(out, target{d.kind, o})
		case !(f.ignore && isNotFound(err)):
			failed.add(d.placed(err))
		}
	}
	return out, failed.err()
}

// deleteOne requests a deletion with the uid as precondition, so that a new object of the same name is not deleted.
func (e *env) deleteOne(ctx context.Context, c *client.Client, t target, f deleteFlags, propagation string) error {
	if f.forget {
		if err := forget(ctx, c, t, f.reason); err != nil {
			return err
		}
	} else if !f.client() {
		pre := &metav1.Preconditions{Uid: t.object.GetMetadata().GetUid()}
		if _, err := c.Delete(ctx, t.kind, t.namespace(), t.name(), client.DeleteOptions{
			Preconditions: pre, Propagation: propagation, GraceSeconds: f.graceSeconds(), DryRun: f.server(),
		}); err != nil {
			return err
		}
	}
	if f.output == formatName {
		fmt.Fprintln(e.out, t)
		return nil
	}
	kind, _, _ := strings.Cut(t.String(), "/")
	from := ""
	if t.kind.GetNamespaced() {
		from = fmt.Sprintf(" from %s namespace", t.namespace())
	}
	_, err := fmt.Fprintf(e.out, "%s %q deleted%s%s\n", kind, t.name(), from, f.dry())
	return err
}

// forget deletes a machine without its provider.
func forget(ctx context.Context, c *client.Client, t target, reason string) error {
	m, ok := t.object.(*machinev1.Machine)
	if !ok {
		return fmt.Errorf("%s: --forget applies to machines only", t)
	}
	_, err := machinev1.NewMachineServiceClient(c.Conn()).ForgetMachine(ctx, &machinev1.ForgetMachineRequest{
		Namespace: m.GetMetadata().GetNamespace(), Name: m.GetMetadata().GetName(), Uid: m.GetMetadata().GetUid(),
		Reason: reason,
	})
	return err
}

// awaitGone waits until objects are removed.
func (e *env) awaitGone(ctx context.Context, c *client.Client, list []target, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var failed failures
	for _, t := range list {
		failed.add(e.await(ctx, c, gone(c, t)))
	}
	return failed.err()
}

// gone is the goal that an object does not exist any more.
func gone(c *client.Client, t target) goal {
	uid := t.object.GetMetadata().GetUid()
	return goal{
		kind: t.kind, namespace: t.namespace(), name: t.name(), what: "deletion", reason: holdsUp(c),
		met: func(o object.Object) (bool, error) { return o == nil || o.GetMetadata().GetUid() != uid, nil },
	}
}
