// Package plans makes the command plan, which prints what the controllers would do.
package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/probe"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

// New returns the command plan.
func New(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the planned actions of the cluster, their order and reasons",
		Long: `Show the planned actions of the cluster, their order and reasons, without performing them. The plan is
made by the code that controls the cluster. Its input is an object in the cluster, or the objects of
a file, which do not have to exist.`,
		Example: `  windlass plan machineset workers --replicas=2
  windlass plan controlplanemachineset
  windlass plan machinehealthcheck workers
  windlass plan machine a
  windlass plan hooks a --add preTerminate:BackupFileSystem=my-backup-controller
  windlass plan hooktasks a
  windlass plan deployment hello --replicas=5
  windlass plan service hello
  windlass plan quorum
  windlass plan maintenance
  windlass plan instances
  windlass plan hosts --role master --zone rack-1
  windlass plan programs
  windlass plan autoscaler
  windlass plan zones
  windlass plan taints worker-a
  windlass plan machineconfig worker -f config.yaml
  windlass plan clusterversion --run
  windlass plan release 1.1.0-1f2e3d4c5b6a --removals
  windlass plan evictions -f cluster.yaml --events events.yaml --span 10m`,
	}
	cmd.AddCommand(newMachineSet(e), newControlPlane(e), newHealthCheck(e), newMachine(e), newHooks(e), newHookTasks(e),
		newQuorum(e), newMaintenance(e), newInstances(e), newHosts(e), newPrograms(e), newAutoscaler(e), newDrain(e),
		newNode(e),
		newEvictions(e), newZones(e), newTaints(e), newConfig(e), newPool(e), newClusterVersion(e), newRelease(e))
	cmd.AddCommand(newWorkloads(e)...)
	return cmd
}

// flags are the flags of all plans.
type flags struct {
	input.Files
	output string
	form   printer.Format
}

// command makes the command of one plan. names is the maximum number of names.
func command(e *session.Env, use, short string, f *flags, names int, run func(context.Context, *client.Client,
	[]string) error,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(names),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.form, err = printer.Parse(f.output, printer.JSON, printer.YAML); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return run(cmd.Context(), c, args) })
		},
	}
	cmd.Flags().StringSliceVarP(&f.Names, "filename", "f", nil,
		"file or - with the objects to plan for, instead of objects in the cluster")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json or yaml")
	return cmd
}

// given holds the objects of a plan's files.
type given []object.Object

// readGiven reads the files of a plan. It rejects objects of other kinds, since the plan would ignore them.
func readGiven(e *session.Env, f *flags, kinds ...string) (given, error) {
	documents, err := f.Read(e.In)
	if err != nil {
		return nil, err
	}
	var g given
	for _, d := range documents {
		if err := input.Place(e, d); err != nil {
			return nil, err
		}
		if kind := d.Kind.GetKind(); !slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("%s:%d: kind %s is not part of this plan; its kinds are: %s", d.File, d.Line, kind,
				strings.Join(kinds, ", "))
		}
		g = append(g, d.Object)
	}
	return g, nil
}

// all returns the objects of one type.
func all[T object.Object](g given) []T {
	var out []T
	for _, o := range g {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// first returns the first object of a type, nil if there is none.
func first[T object.Object](g given) (none T) {
	for _, t := range all[T](g) {
		return t
	}
	return none
}

// one returns the only object of a type.
func one[T object.Object](g given) (T, error) {
	list := all[T](g)
	if len(list) != 1 {
		var zero T
		return zero, fmt.Errorf("the file must contain one %s, not %d", zero.ProtoReflect().Descriptor().Name(), len(list))
	}
	return list[0], nil
}

// machineList returns the machines for a request; nil if there are none, so that those in the cluster are used.
func (g given) machineList() *machinev1.MachineList {
	if m := all[*machinev1.Machine](g); len(m) > 0 {
		return &machinev1.MachineList{Items: m}
	}
	return nil
}

func (g given) readyNodes() []string {
	var out []string
	for _, n := range all[*nodev1.Node](g) {
		if probe.NodeReady(n) {
			out = append(out, n.GetMetadata().GetName())
		}
	}
	return out
}

var errNameOrFile = errors.New("specify the name of an object, or a file with -f")

// name returns the name in the arguments; empty with -f.
func (f *flags) name(args []string, otherwise string) (string, error) {
	switch {
	case len(f.Names) > 0 && len(args) > 0:
		return "", errNameOrFile
	case len(args) > 0:
		return args[0], nil
	case len(f.Names) == 0 && otherwise == "":
		return "", errNameOrFile
	case len(f.Names) > 0:
		return "", nil
	}
	return otherwise, nil
}

// answer prints a plan as JSON or YAML, or by calling text.
func answer(e *session.Env, f *flags, m proto.Message, text func(*planText)) error {
	if f.form.Word != printer.Table {
		return printer.Message(e.Out, f.form, m)
	}
	p := &planText{out: e.Out}
	text(p)
	return p.err
}

// answerWhole is answer, and shows empty lists, zero and false of the message as such.
func answerWhole(e *session.Env, f *flags, m proto.Message, text func(*planText)) error {
	if f.form.Word != printer.Table {
		return printer.Whole(e.Out, f.form, m)
	}
	return answer(e, f, m, text)
}

func machineNamespace(e *session.Env) string {
	k, err := client.FindKind("machine")
	if err != nil {
		return e.Namespace
	}
	return e.NamespaceOf(k)
}

func newMachineSet(e *session.Env) *cobra.Command {
	f := &flags{}
	replicas := int32(-1)
	cmd := command(e, "machineset (NAME | -f FILE)",
		"Show which machines a machine set would create, adopt and delete", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &machinev1.PlanMachineSetRequest{Namespace: machineNamespace(e), Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "MachineSet", "Machine", "Node")
				if err != nil {
					return err
				}
				if req.MachineSet, err = one[*machinev1.MachineSet](g); err != nil {
					return err
				}
				req.Machines, req.ReadyNodes = g.machineList(), g.readyNodes()
			}
			if replicas >= 0 {
				req.Replicas = proto.Int32(replicas)
			}
			resp, err := machinev1.NewMachineSetServiceClient(c.Conn()).PlanMachineSet(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.machineSet(resp) })
		})
	replicasFlag(cmd, &replicas, "machines to plan for, instead of the set's own")
	cmd.ValidArgsFunction = target.CompleteNames(e, "machineset")
	cmd.Aliases = []string{"machinesets"}
	return cmd
}

// replicasFlag adds the flag --replicas, which refuses a negative number as scale does.
func replicasFlag(cmd *cobra.Command, replicas *int32, usage string) {
	cmd.Flags().Func("replicas", "`number` of "+usage, func(text string) error {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return errors.New("must be a number, 0 or more")
		}
		*replicas = int32(n)
		return nil
	})
}

func newControlPlane(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "controlplanemachineset [NAME | -f FILE]",
		"Show the indexes and failure domains of the control plane and the planned actions", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "cluster")
			if err != nil {
				return err
			}
			req := &machinev1.PlanControlPlaneMachineSetRequest{Namespace: machineNamespace(e), Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "ControlPlaneMachineSet", "Machine", "Node")
				if err != nil {
					return err
				}
				if req.ControlPlaneMachineSet, err = one[*machinev1.ControlPlaneMachineSet](g); err != nil {
					return err
				}
				req.Machines, req.ReadyNodes = g.machineList(), g.readyNodes()
			}
			resp, err := machinev1.NewControlPlaneMachineSetServiceClient(c.Conn()).PlanControlPlaneMachineSet(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.controlPlane(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, "controlplanemachineset")
	cmd.Aliases = []string{"controlplanemachinesets", "cpms"}
	return cmd
}

func newMachine(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "machine (NAME | -f FILE)", "Show the next step of a machine and what it waits for", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &machinev1.PlanMachineRequest{Namespace: machineNamespace(e), Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Machine", "Node", "Drain")
				if err != nil {
					return err
				}
				if req.Machine, err = one[*machinev1.Machine](g); err != nil {
					return err
				}
				req.Node, req.Drain = first[*nodev1.Node](g), first[*nodev1.Drain](g)
			}
			resp, err := machinev1.NewMachineServiceClient(c.Conn()).PlanMachine(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.machine(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, "machine")
	cmd.Aliases = []string{"machines"}
	return cmd
}

func newDrain(e *session.Env) *cobra.Command {
	f := &flags{}
	var nodeName string
	cmd := command(e, "drain (NAME | --node NODE | -f FILE)", "Show what a drain would do", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			req := &schedulingv1.PlanDrainRequest{}
			switch {
			case nodeName != "" && len(args)+len(f.Names) == 0:
				req.Drain = &nodev1.Drain{Spec: &nodev1.DrainSpec{NodeName: nodeName}}
			case nodeName != "":
				return errors.New("specify one of: the name of a drain, --node, or -f")
			default:
				name, err := f.name(args, "")
				if err != nil {
					return err
				}
				req.Name = name
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Drain")
				if err != nil {
					return err
				}
				if req.Drain, err = one[*nodev1.Drain](g); err != nil {
					return err
				}
			}
			resp, err := schedulingv1.NewEvictionServiceClient(c.Conn()).PlanDrain(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.drain(resp) })
		})
	cmd.Flags().StringVar(&nodeName, "node", "", "node to plan a new drain for")
	cmd.ValidArgsFunction = target.CompleteNames(e, "drain")
	cmd.Aliases = []string{"drains"}
	return cmd
}

func newNode(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "node (NAME | -f FILE)",
		"Show the conditions and taints of a node and what makes it unschedulable", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &nodev1.PlanNodeRequest{Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "Node")
				if err != nil {
					return err
				}
				if req.Node, err = one[*nodev1.Node](g); err != nil {
					return err
				}
			}
			resp, err := nodev1.NewNodeServiceClient(c.Conn()).PlanNode(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.node(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, "node")
	cmd.Aliases = []string{"nodes"}
	return cmd
}

func newQuorum(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "quorum [-f FILE]", "Show the next change of the etcd members, or what it waits for", f,
		0, func(ctx context.Context, c *client.Client, _ []string) error {
			req := &etcdv1.PlanQuorumRequest{}
			if len(f.Names) > 0 {
				var err error
				if req, err = quorumRequest(e, f); err != nil {
					return err
				}
			}
			resp, err := etcdv1.NewQuorumServiceClient(c.Conn()).PlanQuorum(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.quorum(resp) })
		})
	cmd.Long = cmd.Short + `.

A file contains the quorum as printed by "windlass quorum -o yaml", or an object with the fields
quorum, machines and nodes (lists: {items: […]}), offers (the names of the nodes that can run a member),
machinesUnknown, trouble (why the members could not be listed), rollOut and now.`
	return cmd
}
