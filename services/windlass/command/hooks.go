package command

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
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newHooks(e *env) *cobra.Command {
	var s selection
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "hooks [MACHINE...]",
		Short: "Show the lifecycle hooks of machines, their owners and their state",
		Long: `Show the lifecycle hooks of machines, their owners and their state. STATE is Idle while the machine
is not being deleted, and Later until the deletion reaches the hook's point. Then it is the state of
the hook's task: Pending (not claimed yet), Claimed, Completed or Failed.`,
		Example: `  windlass hooks
  windlass hooks complete a BackupFileSystem --message "copied to tape"`,
		ValidArgsFunction: e.completeNames("machine"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.withClient(func(c *client.Client) error { return e.hooks(cmd.Context(), c, args, s, noHeaders) })
		},
	}
	cmd.Flags().StringVarP(&s.labels, "selector", "l", "", "label selector for machines")
	cmd.Flags().BoolVarP(&s.everywhere, "all-namespaces", "A", false, "show objects of all namespaces")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print headers")
	cmd.AddCommand(newHookClaim(e), newHookComplete(e), newHookFail(e))
	return cmd
}

func (e *env) hooks(ctx context.Context, c *client.Client, names []string, s selection, noHeaders bool) error {
	k, err := client.FindKind("machine")
	if err != nil {
		return err
	}
	machines, err := e.read(ctx, c, group{k, names}, s)
	var failed failures
	failed.add(err)
	tasks, err := allTasks(ctx, c)
	failed.add(err)
	var rows [][]string
	for _, t := range machines {
		rows = append(rows, hookRows(t.object.(*machinev1.Machine), tasks, time.Now())...)
	}
	if len(rows) == 0 {
		if len(failed) == 0 {
			fmt.Fprintln(e.err, "No lifecycle hooks found")
		}
		return failed.err()
	}
	if !noHeaders {
		rows = append([][]string{{"MACHINE", "POINT", "HOOK", "OWNER", "STATE", "CLAIMED-BY", "SINCE", "MESSAGE"}}, rows...)
	}
	failed.add(table.New(e.out).Print(rows...))
	return failed.err()
}

func allTasks(ctx context.Context, c *client.Client) ([]*hookv1.HookTask, error) {
	k, err := client.FindKind("hooktask")
	if err != nil {
		return nil, err
	}
	list, _, err := c.List(ctx, k, client.Selection{})
	out := make([]*hookv1.HookTask, len(list))
	for i, o := range list {
		out[i] = o.(*hookv1.HookTask)
	}
	return out, err
}

// tasksOf returns the tasks of a machine.
func tasksOf(ctx context.Context, c *client.Client, m *machinev1.Machine) ([]*hookv1.HookTask, error) {
	all, err := allTasks(ctx, c)
	var out []*hookv1.HookTask
	for _, t := range all {
		if isTaskOf(t, m) {
			out = append(out, t)
		}
	}
	return out, err
}

func isTaskOf(t *hookv1.HookTask, m *machinev1.Machine) bool {
	return t.GetSpec().GetMachineRef().GetUid() == m.GetMetadata().GetUid()
}

// hookRows returns a row for each hook of a machine.
func hookRows(m *machinev1.Machine, tasks []*hookv1.HookTask, now time.Time) [][]string {
	var rows [][]string
	for _, p := range hookPoints(m.GetSpec().GetLifecycleHooks()) {
		for _, h := range p.hooks {
			row := []string{m.GetMetadata().GetName(), p.point, h.GetName(), h.GetOwner(), "Idle", "", "", ""}
			if t := m.GetMetadata().GetDeletionTimestamp(); t != nil {
				row[4], row[6] = "Later", table.Age(t, now)
			}
			for _, t := range tasks {
				if isTaskOf(t, m) && t.GetSpec().GetPoint() == p.point && t.GetSpec().GetHookName() == h.GetName() {
					row[4], row[5], row[6], row[7] = taskState(t), t.GetStatus().GetClaimedBy(), table.Age(taskSince(t), now),
						t.GetStatus().GetMessage()
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// taskState returns a task's phase and its problems: "Pending (overdue, owner never seen)".
func taskState(t *hookv1.HookTask) string {
	phase := t.GetStatus().GetPhase()
	if phase == "" {
		phase = "Pending"
	}
	var wrong []string
	if object.IsTrue(t.GetStatus().GetConditions(), "Overdue") {
		wrong = append(wrong, "overdue")
	}
	if c := object.FindCondition(t.GetStatus().GetConditions(), "OwnerSeen"); c.GetStatus() == "False" {
		wrong = append(wrong, "owner never seen")
	}
	if len(wrong) > 0 && phase != "Completed" {
		phase += " (" + strings.Join(wrong, ", ") + ")"
	}
	return phase
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

func newHookClaim(e *env) *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "claim" + taskUse,
		Short: "Claim the task of a hook, so that no other owner works on it",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.onTask(cmd.Context(), args, "claimed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
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

func newHookComplete(e *env) *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use:   "complete" + taskUse,
		Short: "Complete the task of a hook, so that the machine's deletion continues",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.onTask(cmd.Context(), args, "completed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
				name string,
			) (*hookv1.HookTask, error) {
				return s.CompleteHookTask(ctx, &hookv1.CompleteHookTaskRequest{Name: name, Message: message})
			})
		},
	}
	cmd.Flags().StringVar(&message, "message", "", "description of the completed work")
	return cmd
}

func newHookFail(e *env) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "fail" + taskUse + " --reason REASON",
		Short: "Mark the task of a hook as failed; the hook remains on the machine",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.onTask(cmd.Context(), args, "failed", func(ctx context.Context, s hookv1.HookTaskServiceClient,
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

// onTask calls do with a task, which args name directly or by machine and hook.
func (e *env) onTask(ctx context.Context, args []string, verb string,
	do func(context.Context, hookv1.HookTaskServiceClient, string) (*hookv1.HookTask, error),
) error {
	return e.withClient(func(c *client.Client) error {
		name := args[0]
		if len(args) == 2 {
			var err error
			if name, err = e.findTask(ctx, c, args[0], args[1]); err != nil {
				return err
			}
		}
		t, err := do(ctx, hookv1.NewHookTaskServiceClient(c.Conn()), name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.out, "hooktask.windlass.dev/%s %s\n", t.GetMetadata().GetName(), verb)
		return err
	})
}

func (e *env) findTask(ctx context.Context, c *client.Client, machine, hook string) (string, error) {
	tasks, err := allTasks(ctx, c)
	if err != nil {
		return "", err
	}
	var found []string
	for _, t := range tasks {
		ns := t.GetSpec().GetMachineRef().GetNamespace()
		if t.GetSpec().GetMachineRef().GetName() == machine && t.GetSpec().GetHookName() == hook &&
			(e.namespace == "" || ns == e.namespace) {
			found = append(found, t.GetMetadata().GetName())
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "",
			fmt.Errorf(
				"no task of hook %q on machine %q: the task is created when the machine's deletion reaches the hook's point", hook,
				machine)
	}
	return "", fmt.Errorf("hook %q on machine %q has several tasks, specify one: %s", hook, machine,
		strings.Join(found, ", "))
}
