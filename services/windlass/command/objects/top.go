package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

type topFlags struct {
	labels, sortBy        string
	everywhere, noHeaders bool
}

// NewTop returns the command top.
func NewTop(e *session.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what pods and nodes use",
		Long:  `Show what pods and nodes use, as the agents of the nodes measured it in the last 10 seconds.`,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopPods(e), newTopNodes(e))
	return cmd
}

func (f *topFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.sortBy, "sort-by", "", "sort by cpu or memory, the largest first; by name if it is empty")
	cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "do not print headers")
}

// order returns how to sort what is used; nil means by name.
func (f *topFlags) order() (func(a, b *schedulingv1.ResourceUse) int, error) {
	switch f.sortBy {
	case "":
		return nil, nil
	case placement.CPU:
		return func(a, b *schedulingv1.ResourceUse) int { return cmp.Compare(b.GetMilliCpu(), a.GetMilliCpu()) }, nil
	case placement.Memory:
		return func(a, b *schedulingv1.ResourceUse) int { return cmp.Compare(b.GetMemoryBytes(), a.GetMemoryBytes()) }, nil
	}
	return nil, fmt.Errorf("--sort-by accepts only cpu or memory, not %q", f.sortBy)
}

func newTopPods(e *session.Env) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:     "pods [NAME]",
		Aliases: []string{"pod", "po"},
		Short:   "Show what pods use",
		Example: `  windlass top pods
  windlass top pods -A --sort-by memory
  windlass top pod web-1`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: target.CompleteNames(e, "pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := &schedulingv1.ListPodMetricsRequest{LabelSelector: f.labels}
			if !f.everywhere {
				r.Namespace = e.PodNamespace()
			}
			if len(args) == 1 {
				if f.everywhere || f.labels != "" {
					return errors.New("a name cannot be given together with -A or -l")
				}
				r.Name = target.PodName(args[0])
			}
			return e.WithClient(func(c *client.Client) error { return topPods(cmd.Context(), e, c, r, f) })
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&f.labels, "selector", "l", "", "label selector for pods")
	cmd.Flags().BoolVarP(&f.everywhere, "all-namespaces", "A", false, "show pods of all namespaces")
	return cmd
}

func topPods(ctx context.Context, e *session.Env, c *client.Client, r *schedulingv1.ListPodMetricsRequest,
	f topFlags,
) error {
	order, err := f.order()
	if err != nil {
		return err
	}
	got, err := schedulingv1.NewPodServiceClient(c.Conn()).ListPodMetrics(ctx, r)
	if err != nil {
		return err
	}
	items := got.GetItems()
	if order != nil {
		slices.SortStableFunc(items, func(a, b *schedulingv1.PodMetrics) int { return order(a.GetUse(), b.GetUse()) })
	}
	var rows [][]string
	for _, p := range items {
		row := []string{p.GetName(), cores(p.GetUse()), mebibytes(p.GetUse())}
		if f.everywhere {
			row = append([]string{p.GetNamespace()}, row...)
		}
		rows = append(rows, row)
	}
	header := []string{"NAME", "CPU(cores)", "MEMORY(bytes)"}
	if f.everywhere {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if n := got.GetUnmeasured(); n > 0 && len(rows) > 0 {
		fmt.Fprintf(e.Err, "Warning: %d pods run and were not measured yet\n", n)
	} else if n > 0 {
		return errors.New("metrics not available yet")
	}
	return f.print(e, header, rows, got.GetMissing())
}

func newTopNodes(e *session.Env) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:     "nodes [NAME]",
		Aliases: []string{"node", "no"},
		Short:   "Show what the pods of nodes use",
		Long: `Show what the pods of nodes use, and how much that is of what the nodes have. What a host runs beside
pods is not counted, since several nodes may share it.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: target.CompleteNames(e, "node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := &schedulingv1.ListNodeMetricsRequest{}
			if len(args) == 1 {
				r.Name = args[0]
			}
			return e.WithClient(func(c *client.Client) error { return topNodes(cmd.Context(), e, c, r, f) })
		},
	}
	f.add(cmd)
	return cmd
}

func topNodes(ctx context.Context, e *session.Env, c *client.Client, r *schedulingv1.ListNodeMetricsRequest,
	f topFlags,
) error {
	order, err := f.order()
	if err != nil {
		return err
	}
	got, err := schedulingv1.NewPodServiceClient(c.Conn()).ListNodeMetrics(ctx, r)
	if err != nil {
		return err
	}
	items := got.GetItems()
	if order != nil {
		slices.SortStableFunc(items, func(a, b *schedulingv1.NodeMetrics) int { return order(a.GetUse(), b.GetUse()) })
	}
	nodes, err := nodev1.NewNodeServiceClient(c.Conn()).ListNodes(ctx, &nodev1.ListNodesRequest{})
	if err != nil {
		return err
	}
	byName := map[string]*nodev1.Node{}
	for _, n := range nodes.GetItems() {
		byName[n.GetMetadata().GetName()] = n
	}
	var rows [][]string
	for _, m := range items {
		has, _ := placement.Allocatable(byName[m.GetName()]) // nothing is known of one that has left since
		rows = append(rows, []string{
			m.GetName(), cores(m.GetUse()), share(m.GetUse().GetMilliCpu(), has.MilliCPU), mebibytes(m.GetUse()),
			share(m.GetUse().GetMemoryBytes(), has.Memory),
		})
	}
	return f.print(e, []string{"NAME", "CPU(cores)", "CPU%", "MEMORY(bytes)", "MEMORY%"}, rows, got.GetMissing())
}

// print prints what is known, and names the nodes that are missing.
func (f *topFlags) print(e *session.Env, header []string, rows [][]string,
	missing []*schedulingv1.MissingMetrics,
) error {
	for _, m := range missing {
		fmt.Fprintf(e.Err, "Warning: node %s is missing: %s\n", m.GetNodeName(), m.GetReason())
	}
	if len(rows) == 0 {
		fmt.Fprintln(e.Err, "No resources found")
		return nil
	}
	if !f.noHeaders {
		rows = append([][]string{header}, rows...)
	}
	return table.New(e.Out).Print(rows...)
}

func cores(u *schedulingv1.ResourceUse) string { return fmt.Sprintf("%dm", u.GetMilliCpu()) }

func mebibytes(u *schedulingv1.ResourceUse) string {
	return fmt.Sprintf("%dMi", u.GetMemoryBytes()>>20)
}

// share returns a percentage; unknown if there is no whole.
func share(part, of int64) string {
	if of <= 0 {
		return "<unknown>"
	}
	return fmt.Sprintf("%d%%", part*100/of)
}
