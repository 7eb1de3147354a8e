package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/command/target"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// pools is the kind whose nodes go back to a former configuration.
const pools = "MachineConfigPool"

// rendered returns the name of what the machine configurations of a pool make together now. A pool has it only some
// time after they changed, so its own status may still be about the time before.
func rendered(ctx context.Context, c *client.Client, pool string) (string, error) {
	r, err := configv1.NewMachineConfigServiceClient(c.Conn()).RenderMachineConfig(ctx,
		&configv1.RenderMachineConfigRequest{PoolName: pool})
	return r.GetMachineConfig().GetMetadata().GetName(), err
}

// poolText returns the state of the rollout of a pool to a configuration, and whether it is complete.
func poolText(p *configv1.MachineConfigPool, want string) (text string, done bool, err error) {
	name, st, spec := p.GetMetadata().GetName(), p.GetStatus(), p.GetSpec()
	waiting := fmt.Sprintf("Waiting for machine config pool %q rollout to finish: ", name)
	degraded, updated := object.FindCondition(st.GetConditions(), "Degraded"), object.FindCondition(st.GetConditions(),
		"Updated")
	if pin := spec.GetPin().GetConfiguration(); pin != "" {
		want = pin
	}
	switch {
	case st.GetObservedGeneration() < p.GetMetadata().GetGeneration():
		return "Waiting for machine config pool spec update to be observed...", false, nil
	case degraded.GetStatus() == "True":
		return "", false, fmt.Errorf("machine config pool %q is degraded: %s", name, degraded.GetMessage())
	case spec.GetConfiguration().GetName() == want && updated.GetStatus() == "True":
		return fmt.Sprintf("machine config pool %q successfully rolled out", name), true, nil
	case spec.GetPaused():
		return "", false, fmt.Errorf("machine config pool %q is paused: %s", name, updated.GetMessage())
	case spec.GetConfiguration().GetName() != want:
		return waiting + "it has not taken up " + want + " yet", false, nil
	}
	return waiting + updated.GetMessage(), false, nil
}

// former returns the configurations that were rendered for a pool and are stored, the oldest first.
func former(ctx context.Context, c *client.Client, pool *configv1.MachineConfigPool) ([]*configv1.MachineConfig,
	error,
) {
	var out []*configv1.MachineConfig
	for req := (&configv1.ListMachineConfigsRequest{}); ; {
		page, err := configv1.NewMachineConfigServiceClient(c.Conn()).ListMachineConfigs(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, m := range page.GetItems() {
			if object.ControllerOf(m).GetUid() == pool.GetMetadata().GetUid() {
				out = append(out, m)
			}
		}
		if req.Continue = page.GetMetadata().GetContinue(); req.GetContinue() == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b *configv1.MachineConfig) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		if d := x.GetCreationTimestamp().AsTime().Compare(y.GetCreationTimestamp().AsTime()); d != 0 {
			return d
		}
		return strings.Compare(x.GetName(), y.GetName())
	})
	return out, nil
}

// showFormer prints the configurations of a pool that are stored.
func showFormer(ctx context.Context, e *session.Env, c *client.Client, pool *configv1.MachineConfigPool) error {
	list, err := former(ctx, c, pool)
	if err != nil {
		return err
	}
	rows := [][]string{{"CONFIG", "AGE", "USE"}}
	for _, m := range list {
		var use []string
		name := m.GetMetadata().GetName()
		for _, u := range []struct{ config, what string }{
			{pool.GetSpec().GetConfiguration().GetName(), "target of the nodes"},
			{pool.GetStatus().GetConfiguration().GetName(), "last one that all nodes had"},
			{pool.GetSpec().GetPin().GetConfiguration(), "the pool is held at it"},
		} {
			if u.config == name {
				use = append(use, u.what)
			}
		}
		rows = append(rows, []string{
			name, table.Age(m.GetMetadata().GetCreationTimestamp(), time.Now()), table.OrNone(strings.Join(use, ", ")),
		})
	}
	return table.New(e.Out).Print(rows...)
}

// hold has the nodes of a pool go back to a former configuration and stay there: to the given one, or to the last one
// that all nodes had, or, if they have that, to the one before.
func hold(ctx context.Context, e *session.Env, c *client.Client, t target.Item, to, reason string) error {
	pool, ok := t.Object.(*configv1.MachineConfigPool)
	if !ok {
		return fmt.Errorf("%s is no pool", t)
	}
	if to == "" {
		var err error
		if to, err = lastGood(ctx, c, pool); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	pin := map[string]any{"configuration": to}
	if reason != "" {
		pin["reason"] = reason
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": pool.GetMetadata().GetResourceVersion()},
		"spec":     map[string]any{"pin": pin},
	})
	if err != nil {
		return err
	}
	if _, err := c.Patch(ctx, t.Kind, "", t.Name(), manifest.MergePatch, body, false); err != nil {
		return err
	}
	fmt.Fprintf(e.Out, "%s is held at %s\n", t, to)
	fmt.Fprintf(e.Err,
		"Its nodes are updated to it as to any other configuration; changes of machine configs have no effect "+
			"on them until windlass rollout resume machineconfigpool/%s.\n", t.Name())
	return nil
}

// lastGood returns the configuration that a pool goes back to.
func lastGood(ctx context.Context, c *client.Client, pool *configv1.MachineConfigPool) (string, error) {
	if pin := pool.GetSpec().GetPin().GetConfiguration(); pin != "" {
		return "", fmt.Errorf("it is held at %s already; specify --to-config for another, or resume it", pin)
	}
	now, good := pool.GetSpec().GetConfiguration().GetName(), pool.GetStatus().GetConfiguration().GetName()
	if good != "" && good != now {
		return good, nil
	}
	list, err := former(ctx, c, pool)
	if err != nil {
		return "", err
	}
	for _, m := range slices.Backward(list) {
		if m.GetMetadata().GetName() != now {
			return m.GetMetadata().GetName(), nil
		}
	}
	return "", errors.New("no former configuration of it is stored")
}
