package plans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	var graph string
	req := &updatev1.EvaluateClusterVersionRequest{}
	cmd := command(e, "clusterversion [--graph FILE] [--version VERSION]",
		"Show which updates a graph offers for a version, and their risks", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
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

func newRelease(e *session.Env) *cobra.Command {
	f := &flags{}
	req := &updatev1.PlanReleaseRequest{}
	var names string
	cmd := command(e, "release (NAME | --manifests FILE)",
		"Show the order in which the manifests of a release are applied", f, 1, func(ctx context.Context, c *client.Client,
			args []string,
		) error {
			switch {
			case len(f.Names) > 0:
				return errors.New("specify the manifests' names with --manifests FILE, not -f")
			case (len(args) == 1) == (names != ""):
				return errors.New("specify a release, or the manifests' names with --manifests FILE")
			case names != "":
				text, err := os.ReadFile(names)
				if err != nil {
					return err
				}
				req.Manifests = strings.Fields(string(text))
			default:
				req.Name = args[0]
			}
			resp, err := updatev1.NewReleaseServiceClient(c.Conn()).PlanRelease(ctx, req)
			if err != nil {
				return err
			}
			return answer(e, f, resp, func(p *planText) { p.release(resp) })
		})
	cmd.Flags().StringVar(&names, "manifests", "", "file with the names of manifests, one per line")
	cmd.Flags().StringSliceVar(&req.Jobs, "job", nil, "manifest that holds a job; can be repeated")
	cmd.Flags().StringVar(&req.Mode, "mode", "", "Updating (the default), Initializing or Reconciling")
	cmd.ValidArgsFunction = target.CompleteNames(e, "release")
	cmd.Aliases = []string{"releases"}
	return cmd
}

func (p *planText) release(r *updatev1.PlanReleaseResponse) {
	for i, s := range r.GetSteps() {
		if s.GetJob() {
			p.printf("%3d. run level %s: a job, once for the release\n", i+1, table.OrNone(s.GetRunLevel()))
		} else {
			p.printf("%3d. run level %s: %d in parallel\n", i+1, table.OrNone(s.GetRunLevel()), len(s.GetChains()))
		}
		for _, c := range s.GetChains() {
			p.printf("     %s\n", table.OrNone(c.GetComponent()))
			for _, m := range c.GetManifests() {
				p.printf("       %s\n", m)
			}
		}
	}
	if len(r.GetUnparsed()) > 0 {
		p.printf("\nNames without a run level and component:\n")
		for _, n := range r.GetUnparsed() {
			p.printf("* %s\n", n)
		}
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
