package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/input"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

func newConfig(e *session.Env) *cobra.Command {
	f := &flags{}
	var b before
	cmd := command(e, "machineconfig (POOL | [POOL] -f FILE)",
		"Show what the configurations of a pool make together, and what that requires of its nodes", f, 1,
		func(ctx context.Context, c *client.Client, args []string) error {
			if b.file == "-" && slices.Contains(f.Names, "-") {
				return errors.New("only one of -f and --before-file can be -")
			}
			req := &configv1.RenderMachineConfigRequest{PoolName: strings.Join(args, "")}
			if len(f.Names) > 0 {
				g, err := readGiven(e, f, "MachineConfig", "MachineConfiguration", "MachineConfigPool")
				if err != nil {
					return err
				}
				if err := g.configs(ctx, c, req); err != nil {
					return err
				}
			}
			if req.GetPoolName() == "" && req.GetPool() == nil {
				return errors.New("specify a pool")
			}
			var err error
			if req.Before, err = b.read(ctx, e, c); err != nil {
				return err
			}
			resp, err := configv1.NewMachineConfigServiceClient(c.Conn()).RenderMachineConfig(ctx, req)
			if err != nil {
				return err
			}
			err = answerWhole(e, f, resp, func(p *planText) { p.config(req, resp) })
			if err == nil && resp.Reconcilable != nil && !resp.GetReconcilable() {
				err = errors.New("the pool would not get this configuration")
			}
			return err
		})
	cmd.Long = cmd.Short + `.

A file contains MachineConfigs, which are added to those of the cluster or replace those of the same
name, the MachineConfiguration "cluster" with the node disruption policies to plan by, or a pool to
plan for instead of that of the cluster.

The changes are those from the present configuration of the pool. --before plans them from another
configuration of the cluster, such as one that a node still has, and --before-file from one that does
not have to exist.`
	cmd.Example = `  windlass plan machineconfig worker -f config.yaml
  windlass plan machineconfig worker --before rendered-worker-a10fafc4280134c9d89ca88a414fe47c
  windlass plan machineconfig worker --before-file before.yaml`
	cmd.Flags().StringVar(&b.name, "before", "",
		"name of the MachineConfig that nodes have before, instead of the present one of the pool")
	cmd.Flags().StringVar(&b.file, "before-file", "", "file or - with the MachineConfig that nodes have before")
	cmd.MarkFlagsMutuallyExclusive("before", "before-file")
	// It fails only for an unknown flag.
	_ = cmd.RegisterFlagCompletionFunc("before", target.CompleteNames(e, "machineconfig"))
	cmd.ValidArgsFunction = target.CompleteNames(e, "machineconfigpool")
	cmd.Aliases = []string{"mc", "machineconfigs"}
	return cmd
}

// before names the configuration that nodes have before a change: one of the cluster, or one in a file.
type before struct{ name, file string }

// read returns the configuration; nil if none is named.
func (b before) read(ctx context.Context, e *session.Env, c *client.Client) (*configv1.MachineConfig, error) {
	switch {
	case b.name != "":
		return configv1.NewMachineConfigServiceClient(c.Conn()).GetMachineConfig(ctx,
			&configv1.GetMachineConfigRequest{Name: b.name})
	case b.file == "":
		return nil, nil
	}
	g, err := readGiven(e, &flags{Files: input.Files{Names: []string{b.file}}}, "MachineConfig")
	if err != nil {
		return nil, fmt.Errorf("--before-file: %w", err)
	}
	if len(g) != 1 {
		return nil, fmt.Errorf("--before-file: %s must contain one MachineConfig, not %d", b.file, len(g))
	}
	return first[*configv1.MachineConfig](g), nil
}

// configs sets what a request renders as if the objects were applied.
func (g given) configs(ctx context.Context, c *client.Client, req *configv1.RenderMachineConfigRequest) error {
	pools := all[*configv1.MachineConfigPool](g)
	if len(pools) > 1 {
		return fmt.Errorf("the file must contain at most one MachineConfigPool, not %d", len(pools))
	}
	for _, pool := range pools {
		if name := pool.GetMetadata().GetName(); req.GetPoolName() != "" && req.GetPoolName() != name {
			return fmt.Errorf("the pool in the file is %q, not %q", name, req.GetPoolName())
		}
		req.Pool, req.PoolName = pool, ""
	}
	given := all[*configv1.MachineConfiguration](g)
	if len(given) > 1 {
		return fmt.Errorf("there is one MachineConfiguration in a cluster, not %d", len(given))
	}
	for _, settings := range given {
		if name := settings.GetMetadata().GetName(); name != "cluster" {
			return fmt.Errorf("the one MachineConfiguration is named \"cluster\", not %q", name)
		}
		req.NodeDisruptionPolicy = settings.GetSpec().GetNodeDisruptionPolicy()
		if req.NodeDisruptionPolicy == nil {
			req.NodeDisruptionPolicy = &configv1.NodeDisruptionPolicy{}
		}
	}
	var configs []*configv1.MachineConfig
	for _, c := range slices.Backward(all[*configv1.MachineConfig](g)) { // of two with one name the last is applied last
		if name := c.GetMetadata().GetName(); isRendered(c) {
			return fmt.Errorf("machine config %q: names that begin with rendered- are made by the cluster alone", name)
		}
		if !named(configs, c) {
			configs = append(configs, c)
		}
	}
	if len(configs) == 0 {
		return nil
	}
	kind, err := client.FindKind("machineconfig")
	if err != nil {
		return err
	}
	live, _, err := c.List(ctx, kind, client.Selection{})
	if err != nil {
		return err
	}
	for _, o := range live {
		if is, ok := o.(*configv1.MachineConfig); ok && !isRendered(is) && !named(configs, is) {
			configs = append(configs, is)
		}
	}
	req.MachineConfigs = &configv1.MachineConfigList{Items: configs}
	return nil
}

func isRendered(c *configv1.MachineConfig) bool {
	return strings.HasPrefix(c.GetMetadata().GetName(), "rendered-")
}

// named reports whether one of the configurations has the name of another.
func named(configs []*configv1.MachineConfig, other *configv1.MachineConfig) bool {
	return slices.ContainsFunc(configs, func(c *configv1.MachineConfig) bool {
		return c.GetMetadata().GetName() == other.GetMetadata().GetName()
	})
}

func (p *planText) config(req *configv1.RenderMachineConfigRequest, r *configv1.RenderMachineConfigResponse) {
	pool := req.GetPoolName()
	if req.GetPool() != nil {
		pool = req.GetPool().GetMetadata().GetName()
	}
	p.printf("Pool:    %s\nConfig:  %s\nSources: %s\n", pool, r.GetMachineConfig().GetMetadata().GetName(),
		table.OrNone(strings.Join(r.GetSources(), ", ")))
	if req.GetBefore() != nil {
		p.printf("Before:  %s\n", table.OrNone(req.GetBefore().GetMetadata().GetName()))
	}
	if r.GetHeld() != "" {
		p.printf("Held:    %s\n", r.GetHeld())
	}
	if r.Reconcilable != nil && !r.GetReconcilable() {
		p.printf("Refused: nodes cannot be brought to it, and the pool does not get it:\n")
		for _, why := range r.GetUnreconcilableReasons() {
			p.printf("  * %s\n", why)
		}
	}
	if len(r.GetChanges()) == 0 {
		why := "this is what the nodes of the pool have, or get"
		if req.GetBefore() != nil {
			why = "this is what the nodes have before"
		}
		p.printf("\nNothing changes: %s.\n", why)
		return
	}
	p.printf("Action:  %s", r.GetAction())
	if r.GetActionReason() != "" {
		p.printf(" (%s)", r.GetActionReason())
	}
	p.printf("\n\n")
	rows := [][]string{{"CHANGE", "HOW", "ACTION", "SERVICES", "REASON"}}
	for _, c := range r.GetChanges() {
		rows = append(rows, []string{
			c.GetItem(), howChanged(c), c.GetAction(), table.OrNone(serviceActions(c.GetServices())),
			table.OrNone(c.GetReason()),
		})
	}
	if p.err == nil {
		p.err = table.New(p.out).Print(rows...)
	}
}

// howChanged says how an item changes; of a list, which entries come and go.
func howChanged(c *configv1.RenderMachineConfigResponse_Change) string {
	how := []string{c.GetHow()}
	for _, entry := range c.GetAdded() {
		how = append(how, "+"+entry)
	}
	for _, entry := range c.GetRemoved() {
		how = append(how, "-"+entry)
	}
	return strings.Join(how, " ")
}

// serviceActions returns what is done to services in one line.
func serviceActions(of []*configv1.ServiceAction) string {
	var out []string
	for _, s := range of {
		verb := "restart "
		if s.GetReload() {
			verb = "reload "
		}
		out = append(out, verb+s.GetName())
	}
	return strings.Join(out, ", ")
}
