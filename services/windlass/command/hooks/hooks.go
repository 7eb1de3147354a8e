// Package hooks makes the command hooks: the lifecycle hooks of machines, and the work of their owners.
package hooks

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/hooktask"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// New returns the command hooks.
func New(e *session.Env) *cobra.Command {
	var s target.Selection
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "hooks [MACHINE...]",
		Short: "Show the lifecycle hooks of machines, their owners and their state",
		Long: `Show the lifecycle hooks of machines, their owners and their state. STATE is Idle while the machine
is not being deleted, and Later until the deletion reaches the hook's point. Then it is the state of
the hook's task: Waiting (for other hooks), Pending (not claimed yet), Claimed, Completed or Failed.`,
		Example: `  windlass hooks
  windlass hooks complete a BackupFileSystem --message "copied to tape"`,
		ValidArgsFunction: target.CompleteNames(e, "machine"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.WithClient(func(c *client.Client) error { return hooks(cmd.Context(), e, c, args, s, noHeaders) })
		},
	}
	cmd.Flags().StringVarP(&s.Labels, "selector", "l", "", "label selector for machines")
	cmd.Flags().BoolVarP(&s.Everywhere, "all-namespaces", "A", false, "show objects of all namespaces")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print headers")
	cmd.AddCommand(newClaim(e), newComplete(e), newFail(e), newOverride(e))
	return cmd
}

func hooks(ctx context.Context, e *session.Env, c *client.Client, names []string, s target.Selection,
	noHeaders bool,
) error {
	k, err := client.FindKind("machine")
	if err != nil {
		return err
	}
	machines, err := target.Read(ctx, e, c, target.Group{Kind: k, Names: names}, s)
	var failed failure.List
	failed.Add(err)
	tasks, err := hooktask.All(ctx, c)
	failed.Add(err)
	var rows [][]string
	for _, t := range machines {
		rows = append(rows, rowsOf(t.Object.(*machinev1.Machine), tasks, time.Now())...)
	}
	if len(rows) == 0 {
		if len(failed) == 0 {
			fmt.Fprintln(e.Err, "No lifecycle hooks found")
		}
		return failed.Err()
	}
	if !noHeaders {
		rows = append([][]string{{"MACHINE", "POINT", "HOOK", "OWNER", "STATE", "CLAIMED-BY", "SINCE", "MESSAGE"}}, rows...)
	}
	failed.Add(table.New(e.Out).Print(rows...))
	return failed.Err()
}

// rowsOf returns a row for each hook of a machine.
func rowsOf(m *machinev1.Machine, tasks []*hookv1.HookTask, now time.Time) [][]string {
	var rows [][]string
	for _, p := range hooktask.Points(m.GetSpec().GetLifecycleHooks()) {
		for _, h := range p.Hooks {
			row := []string{m.GetMetadata().GetName(), p.Name, h.GetName(), h.GetOwner(), "Idle", "", "", ""}
			if t := m.GetMetadata().GetDeletionTimestamp(); t != nil {
				row[4], row[6] = "Later", table.Age(t, now)
			}
			for _, t := range tasks {
				if hooktask.Belongs(t, m) && t.GetSpec().GetPoint() == p.Name && t.GetSpec().GetHookName() == h.GetName() {
					row[4], row[5], row[6], row[7] = hooktask.State(t), t.GetStatus().GetClaimedBy(), table.Age(taskSince(t), now),
						t.GetStatus().GetMessage()
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// taskSince returns the time at which a task entered its phase.
func taskSince(t *hookv1.HookTask) *timestamppb.Timestamp {
	s := t.GetStatus()
	switch {
	case s.GetCompletionTime() != nil:
		return s.GetCompletionTime()
	case s.GetPhase() == "Claimed" && s.GetClaimTime() != nil:
		return s.GetClaimTime()
	}
	return t.GetMetadata().GetCreationTimestamp()
}

const taskUse = " (TASK | MACHINE HOOK)"

func newClaim(e *session.Env) *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "claim" + taskUse,
		Short: "Claim the task of a hook, so that no other owner works on it",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTask(cmd.Context(), e, args, "claimed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
				name string,
			) (*hookv1.HookTask, error) {
				req := &hookv1.ClaimHookTaskRequest{Name: name}
				if lasts > 0 {
					req.Duration = durationpb.New(lasts)
				}
				return s.ClaimHookTask(ctx, req)
			})
		},
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "duration of the claim (default: claimDuration of the hook's owner)")
	return cmd
}

func newComplete(e *session.Env) *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use:   "complete" + taskUse,
		Short: "Complete the task of a hook, so that the machine's deletion continues",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTask(cmd.Context(), e, args, "completed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
				name string,
			) (*hookv1.HookTask, error) {
				return s.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{Name: name, Message: message})
			})
		},
	}
	cmd.Flags().StringVar(&message, "message", "", "description of the completed work")
	return cmd
}

func newFail(e *session.Env) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "fail" + taskUse + " --reason REASON",
		Short: "Mark the task of a hook as failed; the hook remains on the machine",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTask(cmd.Context(), e, args, "failed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
				name string,
			) (*hookv1.HookTask, error) {
				return s.FailHookTask(ctx, &hookv1.FailHookTaskRequest{Name: name, Reason: reason})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason for the failure")
	_ = cmd.MarkFlagRequired("reason") // fails only for an unknown flag
	return cmd
}

func newOverride(e *session.Env) *cobra.Command {
	var reason string
	var force bool
	cmd := &cobra.Command{
		Use:   "override" + taskUse + " --reason REASON",
		Short: "Complete the task of a hook in place of its owner",
		Long: `Complete the task of a hook in place of its owner, so that the machine's deletion continues: also if
another user has claimed it. This needs the right "override" on hooks. The reason is in the audit
log, in the task, and in an event of the machine.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return onTask(cmd.Context(), e, args, "overridden", func(ctx context.Context, s hookv1.HookTaskServiceClient,
				name string,
			) (*hookv1.HookTask, error) {
				return s.OverrideHookTask(ctx, &hookv1.OverrideHookTaskRequest{Name: name, Reason: reason, Force: force})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the owner is not waited for")
	cmd.Flags().BoolVar(&force, "force", false, "override also the hook that protects the etcd quorum")
	_ = cmd.MarkFlagRequired("reason") // fails only for an unknown flag
	return cmd
}

// onTask calls do with a task, which args name directly or by machine and hook.
func onTask(ctx context.Context, e *session.Env, args []string, verb string,
	do func(context.Context, hookv1.HookTaskServiceClient, string) (*hookv1.HookTask, error),
) error {
	return e.WithClient(func(c *client.Client) error {
		name := args[0]
		if len(args) == 2 {
			var err error
			if name, err = findTask(ctx, e, c, args[0], args[1]); err != nil {
				return err
			}
		}
		t, err := do(ctx, hookv1.NewHookTaskServiceClient(c.Conn()), name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.Out, "hooktask.windlass.dev/%s %s\n", t.GetMetadata().GetName(), verb)
		return err
	})
}

func findTask(ctx context.Context, e *session.Env, c *client.Client, machine, hook string) (string, error) {
	tasks, err := hooktask.All(ctx, c)
	if err != nil {
		return "", err
	}
	var found []string
	for _, t := range tasks {
		ns := t.GetSpec().GetMachineRef().GetNamespace()
		if t.GetSpec().GetMachineRef().GetName() == machine && t.GetSpec().GetHookName() == hook &&
			(e.Namespace == "" || ns == e.Namespace) {
			found = append(found, t.GetMetadata().GetName())
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", noTask(ctx, e, c, machine, hook)
	}
	return "", fmt.Errorf("hook %q on machine %q has several tasks, specify one: %s", hook, machine,
		strings.Join(found, ", "))
}

// noTask returns why a hook has no task.
func noTask(ctx context.Context, e *session.Env, c *client.Client, machine, hook string) error {
	k, err := client.FindKind("machine")
	if err != nil {
		return err
	}
	o, err := c.Get(ctx, k, e.NamespaceOf(k), machine)
	if err != nil {
		return err
	}
	m := o.(*machinev1.Machine)
	var others []string
	for _, p := range hooktask.Points(m.GetSpec().GetLifecycleHooks()) {
		for _, h := range p.Hooks {
			switch {
			case h.GetName() != hook:
				others = append(others, h.GetName())
			case m.GetMetadata().GetDeletionTimestamp() == nil:
				return fmt.Errorf("hook %q has no task: machine %q is not being deleted", hook, machine)
			default:
				return fmt.Errorf("hook %q has no task yet: it is created when the deletion of machine %q reaches %s", hook,
					machine, p.Name)
			}
		}
	}
	return fmt.Errorf("machine %q has no hook %q; its hooks: %s", machine, hook, table.OrNone(strings.Join(others, ", ")))
}
