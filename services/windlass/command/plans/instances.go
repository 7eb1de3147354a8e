package plans

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"google.golang.org/protobuf/types/known/durationpb"
)

func newInstances(e *session.Env) *cobra.Command {
	f := &flags{}
	var policy string
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "instances", Short: "Show which instances have no machine, and which of them would be deleted",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.form, err = printer.Parse(f.output, printer.JSON, printer.YAML); err != nil {
				return err
			}
			req := &machinev1.PlanInstancesRequest{Policy: policy}
			if cmd.Flags().Changed("grace") {
				req.Grace = durationpb.New(grace)
			}
			return e.WithClient(func(c *client.Client) error { return planInstances(cmd.Context(), e, c, f, req) })
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json or yaml")
	cmd.Flags().StringVar(&policy, "policy", "", "Report or Delete, instead of the setting of machine-api")
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long an instance has no machine before it is deleted, instead of "+
		"the setting of machine-api")
	return cmd
}

func planInstances(ctx context.Context, e *session.Env, c *client.Client, f *flags, req *machinev1.PlanInstancesRequest,
) error {
	resp, err := machinev1.NewInstanceServiceClient(c.Conn()).PlanInstances(ctx, req)
	if err != nil {
		return err
	}
	return answer(e, f, resp, func(p *planText) {
		orphans := 0
		for _, item := range resp.GetItems() {
			if item.GetOrphan() {
				orphans++
			}
		}
		p.printf("Instances: %d, of which %d without a machine\n", len(resp.GetItems()), orphans)
		for _, u := range resp.GetUnknown() {
			p.printf("Not known: %s: %s\n", u.GetProvider(), u.GetMessage())
		}
		p.printf("\n")
		p.actions(resp.GetActions())
		p.end(resp.GetHeldBack(), "", nil)
		p.printf("\nEvaluated again in %s.\n", resp.GetNextCheckAfter().AsDuration().Round(time.Second))
	})
}
