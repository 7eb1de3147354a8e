package plans

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	programv1 "github.com/windlass-dev/windlass/gen/windlass/program/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
)

func newHosts(e *session.Env) *cobra.Command {
	f := &flags{}
	var role, zone string
	var labels map[string]string
	cmd := &cobra.Command{
		Use: "hosts", Short: "Show which host of the inventory a machine would claim, and why not the others",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.form, err = printer.Parse(f.output, printer.JSON, printer.YAML); err != nil {
				return err
			}
			spec := map[string]any{"apiVersion": "windlass.dev/v1", "kind": "InventoryMachineProviderSpec"}
			if zone != "" {
				spec["zone"] = zone
			}
			if len(labels) > 0 {
				match := map[string]any{}
				for k, v := range labels {
					match[k] = v
				}
				spec["hostSelector"] = map[string]any{"matchLabels": match}
			}
			req := &hostv1.PlanHostsRequest{Role: role}
			if req.ProviderSpec, err = structpb.NewStruct(spec); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return planHosts(cmd.Context(), e, c, f, req) })
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "role of the machine: worker, which is the default, or master")
	cmd.Flags().StringVar(&zone, "zone", "", "failure domain of the machine")
	cmd.Flags().StringToStringVarP(&labels, "selector", "l", nil, "labels that the host must have, as key=value")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json or yaml")
	return cmd
}

func planHosts(ctx context.Context, e *session.Env, c *client.Client, f *flags, req *hostv1.PlanHostsRequest) error {
	resp, err := hostv1.NewHostServiceClient(c.Conn()).PlanHosts(ctx, req)
	if err != nil {
		return err
	}
	return answer(e, f, resp, func(p *planText) {
		p.actions(resp.GetActions())
		p.end(resp.GetHeldBack(), resp.GetWaitsFor(), nil)
	})
}

func newPrograms(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use: "programs", Short: "Show which program of a release changes next, on which host, and why the others wait",
		Long: `Show which program of a release changes next, on which host, and why the others wait: where the control
plane is on hosts, one program on one host does at a time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.form, err = printer.Parse(f.output, printer.JSON, printer.YAML); err != nil {
				return err
			}
			return e.WithClient(func(c *client.Client) error { return planPrograms(cmd.Context(), e, c, f) })
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json or yaml")
	return cmd
}

func planPrograms(ctx context.Context, e *session.Env, c *client.Client, f *flags) error {
	resp, err := programv1.NewProgramServiceClient(c.Conn()).PlanPrograms(ctx, &programv1.PlanProgramsRequest{})
	if err != nil {
		return err
	}
	return answer(e, f, resp, func(p *planText) {
		if len(resp.GetDecisions()) == 0 {
			p.printf("No release has brought programs.\n")
			return
		}
		for _, d := range resp.GetDecisions() {
			what := "program " + d.GetProgram() + ": " + d.GetReason()
			if d.GetTurn() != "" {
				what += ", host " + d.GetTurn()
			}
			p.step(what, d.GetMessage())
		}
	})
}
