package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

func newHooks(e *session.Env) *cobra.Command {
	f := &flags{}
	var add, remove []string
	var user string
	cmd := command(e, "hooks MACHINE (-f FILE | --add POINT:NAME=OWNER... | --remove POINT:NAME...)",
		"Show whether a change of a machine's lifecycle hooks is allowed", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			after, err := changedHooks(ctx, e, c, f, args, add, remove)
			if err != nil {
				return err
			}
			req := &machinev1.ValidateHooksRequest{Namespace: machineNamespace(e), NewMachine: after, User: user}
			if len(args) > 0 {
				req.Name = args[0]
			}
			resp, err := machinev1.NewMachineServiceClient(c.Conn()).ValidateHooks(ctx, req)
			if err != nil {
				return err
			}
			if err := answer(e, f, resp, func(p *planText) { p.hooks(resp) }); err != nil {
				return err
			}
			if !resp.GetAllowed() {
				return failure.Exit{Code: 1}
			}
			return nil
		})
	cmd.Long = cmd.Short + ". The exit code is 0 if it is allowed, 1 if not."
	cmd.Flags().StringArrayVar(&add, "add", nil, "hook to add, such as preDrain:MigrateApp=my-controller")
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "hook to remove, such as preDrain:MigrateApp")
	cmd.Flags().StringVar(&user, "as", "", "user who makes the change (default: the current user)")
	cmd.ValidArgsFunction = target.CompleteNames(e, "machine")
	return cmd
}

// changedHooks returns the machine with the change applied.
func changedHooks(ctx context.Context, e *session.Env, c *client.Client, f *flags, args, add,
	remove []string,
) (*machinev1.Machine, error) {
	if len(f.Names) > 0 {
		if len(add)+len(remove) > 0 {
			return nil, errors.New("specify the change either with -f, or with --add and --remove")
		}
		g, err := readGiven(e, f, "Machine")
		if err != nil {
			return nil, err
		}
		return one[*machinev1.Machine](g)
	}
	if len(args) == 0 || len(add)+len(remove) == 0 {
		return nil, errors.New("specify a machine and the change: -f, --add or --remove")
	}
	k, err := client.FindKind("machine")
	if err != nil {
		return nil, err
	}
	live, err := c.Get(ctx, k, machineNamespace(e), args[0])
	if err != nil {
		return nil, err
	}
	m := proto.Clone(live).(*machinev1.Machine)
	if m.Spec == nil {
		m.Spec = &machinev1.MachineSpec{}
	}
	if m.Spec.LifecycleHooks == nil {
		m.Spec.LifecycleHooks = &machinev1.LifecycleHooks{}
	}
	for _, s := range remove {
		if err := removeHook(m.Spec.LifecycleHooks, s); err != nil {
			return nil, err
		}
	}
	for _, s := range add {
		if err := addHook(m.Spec.LifecycleHooks, s); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// hooksAt returns the list of hooks at the point of "preDrain:NAME", and NAME.
func hooksAt(h *machinev1.LifecycleHooks, s string) (*[]*machinev1.LifecycleHook, string, error) {
	point, rest, ok := strings.Cut(s, ":")
	switch {
	case !ok:
	case strings.EqualFold(point, "preDrain"):
		return &h.PreDrain, rest, nil
	case strings.EqualFold(point, "preTerminate"):
		return &h.PreTerminate, rest, nil
	}
	return nil, "", fmt.Errorf("hook %q: must be preDrain:NAME or preTerminate:NAME", s)
}

func addHook(h *machinev1.LifecycleHooks, s string) error {
	list, rest, err := hooksAt(h, s)
	if err != nil {
		return err
	}
	name, owner, ok := strings.Cut(rest, "=")
	if !ok {
		return fmt.Errorf("hook %q: the owner is missing: must be preDrain:NAME=OWNER", s)
	}
	*list = append(*list, &machinev1.LifecycleHook{Name: name, Owner: owner})
	return nil
}

func removeHook(h *machinev1.LifecycleHooks, s string) error {
	list, name, err := hooksAt(h, s)
	if err != nil {
		return err
	}
	before := len(*list)
	*list = slices.DeleteFunc(*list, func(hook *machinev1.LifecycleHook) bool { return hook.GetName() == name })
	if len(*list) == before {
		return fmt.Errorf("hook %q: the machine has no such hook", s)
	}
	return nil
}

func newHookTasks(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "hooktasks (MACHINE | -f FILE)",
		"Show which hook tasks of a machine would be created and removed, and which hooks block its deletion", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &hookv1.PlanHookTasksRequest{Namespace: machineNamespace(e), Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Machine", "HookTask", "HookOwner")
				if err != nil {
					return err
				}
				if req.Machine, err = one[*machinev1.Machine](g); err != nil {
					return err
				}
				if tasks := all[*hookv1.HookTask](g); len(tasks) > 0 {
					req.Tasks = &hookv1.HookTaskList{Items: tasks}
				}
				if owners := all[*hookv1.HookOwner](g); len(owners) > 0 {
					req.Owners = &hookv1.HookOwnerList{Items: owners}
				}
			}
			resp, err := hookv1.NewHookTaskServiceClient(c.Conn()).PlanHookTasks(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.hookTasks(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, "machine")
	cmd.Aliases = []string{"hooktask"}
	return cmd
}
