package plans

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
)

func newHealthCheck(e *session.Env) *cobra.Command {
	f := &flags{}
	var now string
	cmd := command(e, "machinehealthcheck (NAME | -f FILE)",
		"Show which machines are unhealthy, and whether they would be replaced", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &machinev1.PlanMachineHealthCheckRequest{Namespace: machineNamespace(e), Name: name}
			if req.Now, err = planTime(now); err != nil {
				return err
			}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "MachineHealthCheck", "Machine", "Node")
				if err != nil {
					return err
				}
				if req.MachineHealthCheck, err = one[*machinev1.MachineHealthCheck](g); err != nil {
					return err
				}
				req.Machines = g.machineList()
				if nodes := all[*nodev1.Node](g); len(nodes) > 0 {
					req.Nodes = &nodev1.NodeList{Items: nodes}
				}
			}
			resp, err := machinev1.NewMachineHealthCheckServiceClient(c.Conn()).PlanMachineHealthCheck(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.healthCheck(resp) })
		})
	cmd.Flags().StringVar(&now, "now", "", "time to plan for, such as 2026-11-21T12:00:00Z; only with machines in a file")
	cmd.ValidArgsFunction = target.CompleteNames(e, "machinehealthcheck")
	cmd.Aliases = []string{"machinehealthchecks", "mhc"}
	return cmd
}

func (p *planText) healthCheck(r *machinev1.PlanMachineHealthCheckResponse) {
	p.printf("Machines: %d of %d healthy\n", r.GetCurrentHealthy(), r.GetExpectedMachines())
	if r.GetMessage() != "" {
		p.printf("%s\n", r.GetMessage())
	}
	if len(r.GetUnhealthy()) > 0 {
		rows := [][]string{{"UNHEALTHY", "REASON"}}
		for _, u := range r.GetUnhealthy() {
			rows = append(rows, []string{u.GetMachine(), u.GetReason()})
		}
		p.printf("\n")
		p.table(rows)
	}
	p.printf("\n")
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", nil)
	if r.GetNextCheckAfter() != nil {
		p.printf("\nEvaluated again in %s.\n", r.GetNextCheckAfter().AsDuration().Round(time.Second))
	}
}

// planTime returns the time of a flag --now; nil if it is empty.
func planTime(now string) (*timestamppb.Timestamp, error) {
	if now == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, now)
	if err != nil {
		return nil, errors.New("--now must be a time such as 2026-11-21T12:00:00Z")
	}
	return timestamppb.New(t), nil
}
