package plans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newClusterVersion(e *session.Env) *cobra.Command {
	f := &flags{}
	var graph, release string
	var run bool
	req := &updatev1.EvaluateClusterVersionRequest{}
	cmd := command(e, "clusterversion [--graph FILE] [--version VERSION] | clusterversion --run [-f FILE]",
		"Show which updates a graph offers for a version, and their risks; or how far the present update is", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
			if run {
				return planRun(ctx, e, f, c, release)
			}
			if release != "" {
				return errors.New("--release is only allowed together with --run and -f")
			}
			if len(f.Names) > 0 {
				return errors.New("specify the graph with --graph FILE, not -f")
			}
			if graph != "" {
				text, err := os.ReadFile(graph)
				if err != nil {
					return err
				}
				req.Graph = &structpb.Struct{}
				if err := req.Graph.UnmarshalJSON(text); err != nil {
					return fmt.Errorf("%s: %w", graph, err)
				}
			}
			resp, err := updatev1.NewClusterVersionServiceClient(c.Conn()).EvaluateClusterVersion(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.updates(e, resp) })
		})
	cmd.Flags().StringVar(&graph, "graph", "", "file with an update graph, instead of the upstream of the cluster")
	cmd.Flags().StringVar(&req.Version, "version", "", "version to update from, instead of the cluster's")
	cmd.Flags().StringVar(&req.Channel, "channel", "", "channel of the graph")
	cmd.Flags().StringVar(&req.WhyNot, "why-not", "", "version for which to show why it is or is not offered")
	cmd.Flags().StringVar(&req.PathTo, "path-to", "", "version to show a path to, over several updates if necessary")
	cmd.Flags().StringToStringVar(&req.RiskResults, "risk", nil,
		"evaluation of a risk, as NAME=True|False|Unknown; can be repeated")
	cmd.Flags().BoolVar(&run, "run", false,
		"show how far the present pass over the manifests of the release is, what each waits for, and what comes next")
	cmd.Flags().StringVar(&release, "release", "",
		"with --run and -f: file with the manifests, as printed by windlass plan release -o json")
	for _, other := range []string{"graph", "version", "channel", "why-not", "path-to", "risk"} {
		cmd.MarkFlagsMutuallyExclusive("run", other)
	}
	cmd.Long = cmd.Short + `.

With --run, a file contains a ClusterVersion, whose status says what it waits for, and its
ClusterOperators; --release has the manifests of its release. The plan is then of these objects alone,
as if every service accepted each manifest at once.`
	cmd.Aliases = []string{"clusterversions"}
	return cmd
}

func (p *planText) updates(e *session.Env, r *updatev1.EvaluateClusterVersionResponse) {
	p.printf("Version: %s\n", r.GetVersion())
	for _, c := range r.GetConditions() {
		if c.GetStatus() != "True" {
			p.printf("%s=%s\n  Reason: %s\n  Message: %s\n", c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
		}
	}
	if p.err == nil {
		p.err = printer.Recommended(e.Out, r.GetAvailableUpdates())
	}
	if p.err == nil {
		p.err = printer.Risky(e.Out, r.GetConditionalUpdates(), true, time.Now())
	}
	if r.GetWhyNot() != "" {
		p.printf("\n%s\n", r.GetWhyNot())
	}
	p.path(e, r)
}

// path prints the updates that lead to a version, or why there are none.
func (p *planText) path(e *session.Env, r *updatev1.EvaluateClusterVersionResponse) {
	if r.GetNoPath() != "" {
		p.printf("\nNo path: %s\n", r.GetNoPath())
	}
	if len(r.GetPath()) == 0 || p.err != nil {
		return
	}
	p.printf("\nPath from %s, by what is known of the risks now:\n\n", r.GetVersion())
	rows := [][]string{{"VERSION", "RECOMMENDED", "REASON", "IMAGE"}}
	for _, h := range r.GetPath() {
		rows = append(rows, []string{
			h.GetRelease().GetVersion(), h.GetRecommended(), h.GetReason(), h.GetRelease().GetImage(),
		})
	}
	if p.err == nil {
		p.err = table.NewIndented(e.Out, "  ").Print(rows...)
	}
}

func newPool(e *session.Env) *cobra.Command {
	f := &flags{}
	cmd := command(e, "machineconfigpool NAME",
		"Show which nodes of a pool are reconfigured next, and what the others wait for", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			name, err := f.name(args, "")
			if err != nil {
				return err
			}
			req := &configv1.PlanMachineConfigPoolRequest{Name: name}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "MachineConfigPool")
				if err != nil {
					return err
				}
				if req.Pool, err = one[*configv1.MachineConfigPool](g); err != nil {
					return err
				}
			}
			resp, err := configv1.NewMachineConfigPoolServiceClient(c.Conn()).PlanMachineConfigPool(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.pool(resp) })
		})
	cmd.ValidArgsFunction = target.CompleteNames(e, "machineconfigpool")
	cmd.Aliases = []string{"mcp", "machineconfigpools"}
	return cmd
}

func (p *planText) pool(r *configv1.PlanMachineConfigPoolResponse) {
	p.printf("Max unavailable: %d; unavailable: %d; can start now: %d\n\n", r.GetMaxUnavailable(),
		r.GetUnavailable(), r.GetCapacity())
	rows := [][]string{{"NODE", "STATE", "CURRENT", "DESIRED", "ACTION", "REASON"}}
	for _, n := range r.GetNodes() {
		rows = append(rows, []string{
			n.GetNode(), n.GetState(), n.GetCurrent(), n.GetDesired(), table.OrNone(n.GetAction()),
			n.GetReason(),
		})
	}
	if p.err == nil {
		p.err = table.New(p.out).Print(rows...)
	}
	p.printf("\n")
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", nil)
}

// clock returns a time of day; empty if there is none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("15:04:05")
}
