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
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newClusterVersion(e *session.Env) *cobra.Command {
	f := &flags{}
	var graph, release, now string
	var run bool
	req := &updatev1.EvaluateClusterVersionRequest{}
	cmd := command(e, "clusterversion [--graph FILE] [--version VERSION] | clusterversion --run [-f FILE]",
		"Show which updates a graph offers for a version, and their risks; or how far the present update is", f, 0,
		func(ctx context.Context, c *client.Client, _ []string) error {
			if run {
				return planRun(ctx, e, f, c, release, now)
			}
			if err := onlyGiven(release, now, false); err != nil {
				return err
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
	cmd.Flags().StringVar(&req.Architecture, "arch", "",
		"architecture to ask the upstream for, such as amd64 or multi, instead of the cluster's")
	cmd.Flags().StringArrayVar(&req.AcceptRisks, "accept", nil,
		"name of an accepted risk, instead of those that the cluster accepts; can be repeated")
	cmd.Flags().StringVar(&req.Query, "query", "",
		"PromQL query to try as the rule of a risk, over the metrics of the cluster")
	cmd.Flags().BoolVar(&run, "run", false,
		"show how far the present pass over the manifests of the release is, what each waits for, and what comes next")
	cmd.Flags().StringVar(&release, "release", "",
		"with --run and -f: file with the manifests, as printed by windlass plan release -o json")
	cmd.Flags().StringVar(&now, "now", "", "with --run and -f: time to plan for, such as 2026-11-21T12:00:00Z")
	for _, other := range []string{
		"graph", "version", "channel", "why-not", "path-to", "risk", "arch", "accept", "query",
	} {
		cmd.MarkFlagsMutuallyExclusive("run", other)
	}
	cmd.Long = cmd.Short + `.

The risks that the cluster accepts count as accepted. With --graph or --version only those of --accept
do.

With --run, a file contains a ClusterVersion, whose status says what it waits for, its
ClusterOperators, and maintenance windows; --release has the manifests of its release. The plan is then
of these objects alone, as if every service accepted each manifest at once.`
	cmd.Aliases = []string{"clusterversions"}
	return cmd
}

func (p *planText) updates(e *session.Env, r *updatev1.EvaluateClusterVersionResponse) {
	p.printf("Version: %s\n", r.GetVersion())
	p.present(r)
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
	p.query(r.GetQuery())
}

// present prints what is known of the version to update from, and what the evaluation is for.
func (p *planText) present(r *updatev1.EvaluateClusterVersionResponse) {
	for _, line := range [][2]string{
		{"Image", r.GetCurrent().GetImage()},
		{"Channels", strings.Join(r.GetCurrent().GetChannels(), ", ")},
		{"URL", r.GetCurrent().GetUrl()},
		{"Architecture", r.GetArchitecture()},
		{"Accepted risks", strings.Join(r.GetAcceptRisks(), ", ")},
	} {
		if line[1] != "" {
			p.printf("%s: %s\n", line[0], line[1])
		}
	}
}

// query prints what came of a query.
func (p *planText) query(o *updatev1.RuleOutcome) {
	if o == nil {
		return
	}
	p.printf("\nQuery: %s\n  Applies: %s\n", o.GetPromql(), o.GetStatus())
	if o.GetMessage() != "" {
		p.printf("  Message: %s\n", o.GetMessage())
	}
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
	cmd := command(e, "machineconfigpool (NAME | [NAME] -f FILE)",
		"Show which nodes of a pool are reconfigured next, and what the others wait for", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			req := &configv1.PlanMachineConfigPoolRequest{}
			if len(f.Names) == 0 {
				name, err := f.name(args, "")
				if err != nil {
					return err
				}
				req.Name = name
			} else {
				g, err := readGiven(e, f, "MachineConfigPool", "Node", "MaintenanceWindow")
				if err != nil {
					return err
				}
				if err := g.pools(req, strings.Join(args, "")); err != nil {
					return err
				}
			}
			resp, err := configv1.NewMachineConfigPoolServiceClient(c.Conn()).PlanMachineConfigPool(ctx, req)
			if err != nil {
				return err
			}
			return answerWhole(e, f, resp, func(p *planText) { p.pool(resp) })
		})
	cmd.Long = cmd.Short + `.

A file contains the pool, and the nodes to plan for and maintenance windows instead of those of the
cluster. If it contains
several pools, NAME says which one is planned for, and the others decide with it to which pool a node
belongs, instead of those of the cluster.`
	cmd.ValidArgsFunction = target.CompleteNames(e, "machineconfigpool")
	cmd.Aliases = []string{"mcp", "machineconfigpools"}
	return cmd
}

// pools sets the pool of a request, the others and the nodes. name is that of the pool; empty if there is one only.
func (g given) pools(req *configv1.PlanMachineConfigPoolRequest, name string) error {
	pools := all[*configv1.MachineConfigPool](g)
	if nodes := all[*nodev1.Node](g); len(nodes) > 0 {
		req.Nodes = &nodev1.NodeList{Items: nodes}
	}
	if windows := all[*updatev1.MaintenanceWindow](g); len(windows) > 0 {
		req.MaintenanceWindows = &updatev1.MaintenanceWindowList{Items: windows}
	}
	if name == "" {
		if len(pools) > 1 {
			return fmt.Errorf("the file contains %d pools: specify the name of the one to plan for", len(pools))
		}
		var err error
		req.Pool, err = one[*configv1.MachineConfigPool](g)
		return err
	}
	for _, p := range pools {
		switch {
		case p.GetMetadata().GetName() != name:
			if req.OtherPools == nil {
				req.OtherPools = &configv1.MachineConfigPoolList{}
			}
			req.OtherPools.Items = append(req.OtherPools.Items, p)
		case req.Pool != nil:
			return fmt.Errorf("the file contains the pool %q twice", name)
		default:
			req.Pool = p
		}
	}
	if req.Pool == nil {
		return fmt.Errorf("the file contains no pool %q", name)
	}
	return nil
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
	if waves := r.GetStatus().GetWaves(); len(waves) > 0 {
		of := map[string][]string{}
		for _, n := range r.GetNodes() {
			of[n.GetWave()] = append(of[n.GetWave()], n.GetNode())
		}
		p.printf("\nWaves:\n")
		rows := [][]string{{"WAVE", "STATE", "SINCE", "UPDATED", "NODES"}}
		for _, w := range waves {
			rows = append(rows, []string{
				table.OrNone(w.GetName()), w.GetState(), w.GetSince().AsTime().UTC().Format(time.RFC3339),
				fmt.Sprintf("%d/%d", w.GetUpdatedMachineCount(), w.GetMachineCount()),
				table.OrNone(strings.Join(of[w.GetName()], ", ")),
			})
		}
		p.table(rows)
	}
	rows = [][]string{{"NODE", "BECAUSE OF", "SERVICES", "DRAIN"}}
	for _, n := range r.GetNodes() {
		if services := serviceActions(n.GetServices()); n.GetActionReason() != "" || services != "" || n.GetDrain() != "" {
			rows = append(rows, []string{
				n.GetNode(), table.OrNone(n.GetActionReason()), table.OrNone(services), table.OrNone(n.GetDrain()),
			})
		}
	}
	if len(rows) > 1 {
		p.printf("\nWhat their actions are for, and how far they are:\n")
		p.table(rows)
	}
	if others := r.GetOtherNodes(); len(others) > 0 {
		p.printf("\nNodes that it selects and that do not belong to it:\n")
		rows := [][]string{{"NODE", "POOL", "REASON"}}
		for _, o := range others {
			rows = append(rows, []string{o.GetNode(), table.OrNone(o.GetPool()), o.GetReason()})
		}
		p.table(rows)
	}
	p.printf("\n")
	p.actions(r.GetActions())
	p.end(r.GetHeldBack(), "", r.GetWakeTime())
}

// clock returns a time of day; empty if there is none.
func clock(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("15:04:05")
}
