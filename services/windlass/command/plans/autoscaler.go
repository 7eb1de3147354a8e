package plans

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newAutoscaler(e *session.Env) *cobra.Command {
	f := &flags{}
	var now string
	cmd := command(e, "autoscaler [-f FILE]",
		"Show which machine sets would grow or shrink, for which pods, and what holds each", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
			req := &machinev1.PlanClusterAutoscalerRequest{}
			var err error
			if req.Now, err = planTime(now); err != nil {
				return err
			}
			if len(f.Names) > 0 {
				if err := readAutoscaler(e, f, req); err != nil {
					return err
				}
			}
			resp, err := machinev1.NewClusterAutoscalerServiceClient(c.Conn()).PlanClusterAutoscaler(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.autoscaler(resp) })
		})
	cmd.Long = cmd.Short + `.

A file with only a ClusterAutoscaler plans for the cluster by its rules. A file with other objects (MachineAutoscaler,
MachineSet, Machine, Node, Pod, PodDisruptionBudget) plans for these alone.`
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z; only with objects in a file")
	cmd.Aliases = []string{"autoscalers", "clusterautoscaler", "ca"}
	return cmd
}

func readAutoscaler(e *session.Env, f *flags, req *machinev1.PlanClusterAutoscalerRequest) error {
	g, err := readGiven(e, f, "ClusterAutoscaler", "MachineAutoscaler", "MachineSet", "Machine", "Node", "Pod",
		"PodDisruptionBudget")
	if err != nil {
		return err
	}
	own := all[*machinev1.ClusterAutoscaler](g)
	if len(own) > 1 {
		return errors.New("the file must contain at most one ClusterAutoscaler")
	}
	req.ClusterAutoscaler = first[*machinev1.ClusterAutoscaler](g)
	if len(g) == len(own) {
		return nil
	}
	req.MachineAutoscalers = &machinev1.MachineAutoscalerList{Items: all[*machinev1.MachineAutoscaler](g)}
	req.MachineSets = &machinev1.MachineSetList{Items: all[*machinev1.MachineSet](g)}
	req.Machines = &machinev1.MachineList{Items: all[*machinev1.Machine](g)}
	req.Nodes = &nodev1.NodeList{Items: all[*nodev1.Node](g)}
	req.Pods = &schedulingv1.PodList{Items: all[*schedulingv1.Pod](g)}
	req.PodDisruptionBudgets = &schedulingv1.PodDisruptionBudgetList{Items: all[*schedulingv1.PodDisruptionBudget](g)}
	return nil
}

func (p *planText) autoscaler(r *machinev1.PlanClusterAutoscalerResponse) {
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetMessage() != "" {
			p.printf("%s\n", c.GetMessage())
		}
	}
	if len(r.GetSets()) > 0 {
		rows := [][]string{{"MACHINESET", "REPLICAS", "DESIRED", "UNDER WAY", "LIMITS"}}
		for _, s := range r.GetSets() {
			var limits []string
			for _, c := range s.GetStatus().GetConditions() {
				if c.GetMessage() != "" {
					limits = append(limits, c.GetMessage())
				}
			}
			rows = append(rows, []string{
				s.GetMachineSet(), fmt.Sprint(s.GetCurrentReplicas()), fmt.Sprint(s.GetDesiredReplicas()),
				fmt.Sprint(s.GetStatus().GetUnderwayMachines()), table.OrNone(strings.Join(limits, "; ")),
			})
		}
		p.table(rows)
		p.printf("\n")
	}
	rows := [][]string{{"LITTLE USED", "USED", "SINCE", "HELD BY"}}
	for _, s := range r.GetSets() {
		for _, c := range s.GetStatus().GetScaleDownCandidates() {
			rows = append(rows, []string{
				c.GetMachine(), fmt.Sprintf("%d%%", c.GetUtilizationPercent()), table.Age(c.GetSinceTime(), time.Now()),
				table.OrNone(c.GetHeldBy()),
			})
		}
	}
	if len(rows) > 1 {
		p.table(rows)
		p.printf("\n")
	}
	rows = [][]string{{"POD WITHOUT HELP", "SINCE", "REASON"}}
	for _, u := range r.GetStatus().GetUnhelpedPods() {
		rows = append(rows, []string{
			u.GetNamespace() + "/" + u.GetName(), table.Age(u.GetSinceTime(), time.Now()), u.GetReason(),
		})
	}
	if len(rows) > 1 {
		p.table(rows)
		p.printf("\n")
	}
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", nil)
	if r.GetNextCheckAfter() != nil {
		p.printf("\nEvaluated again in %s.\n", r.GetNextCheckAfter().AsDuration().Round(time.Second))
	}
}
