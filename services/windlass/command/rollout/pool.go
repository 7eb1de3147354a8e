package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/failure"
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
	case degraded.GetStatus() == "True" && spec.GetConfiguration().GetName() == want:
		return "", false, fmt.Errorf("machine config pool %q is degraded: %s", name, degraded.GetMessage())
	case object.IsTrue(st.GetConditions(), "RenderDegraded"):
		return "", false, fmt.Errorf("machine config pool %q is degraded: %s", name,
			object.FindCondition(st.GetConditions(), "RenderDegraded").GetMessage())
	case spec.GetConfiguration().GetName() == want && updated.GetStatus() == "True":
		return fmt.Sprintf("machine config pool %q successfully rolled out", name), true, nil
	case object.IsTrue(st.GetConditions(), "Paused"):
		return "", false, fmt.Errorf("machine config %s", object.FindCondition(st.GetConditions(), "Paused").GetMessage())
	case spec.GetConfiguration().GetName() != want:
		return waiting + "it has not taken up " + want + " yet", false, nil
	}
	return waiting + updated.GetMessage(), false, nil
}

// former returns the configurations that were rendered for a pool and are stored, the oldest first.
func former(ctx context.Context, c *client.Client, pool *configv1.MachineConfigPool) ([]*configv1.MachineConfig,
	error,
) {
	kind, err := client.FindKind("machineconfig")
	if err != nil {
		return nil, err
	}
	list, _, err := c.List(ctx, kind, client.Selection{})
	if err != nil {
		return nil, err
	}
	var out []*configv1.MachineConfig
	for _, o := range list {
		m, ok := o.(*configv1.MachineConfig)
		if ok && object.ControllerOf(m).GetUid() == pool.GetMetadata().GetUid() && !object.Deleting(m) &&
			strings.HasPrefix(m.GetMetadata().GetName(), "rendered-") {
			out = append(out, m)
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
	at := map[string]string{} // the last time that all nodes had it
	for _, h := range slices.Backward(pool.GetStatus().GetHistory()) {
		at[h.GetName()] = table.Age(h.GetCompletionTime(), time.Now())
	}
	rows := [][]string{{"CONFIG", "AGE", "ALL NODES HAD IT", "USE"}}
	for _, m := range list {
		var use []string
		name := m.GetMetadata().GetName()
		for _, u := range []struct{ config, what string }{
			{pool.GetSpec().GetConfiguration().GetName(), "target of the nodes"},
			{pool.GetStatus().GetConfiguration().GetName(), "last good one"},
			{pool.GetSpec().GetPin().GetConfiguration(), "pool is held at it"},
		} {
			if u.config == name {
				use = append(use, u.what)
			}
		}
		rows = append(rows, []string{
			name, table.Age(m.GetMetadata().GetCreationTimestamp(), time.Now()), table.OrNone(at[name]),
			table.OrNone(strings.Join(use, ", ")),
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
	pin := map[string]any{"configuration": to, "reason": nil} // not the reason of another one
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
	fmt.Fprintf(e.Out, "%s goes back to %s\n", t, to)
	fmt.Fprintf(e.Err, "It is held there: changes of machine configs have no effect on its nodes until "+
		"windlass rollout resume machineconfigpool/%s.\n", t.Name())
	return nil
}

// waiveWindows has pools wait for no maintenance window on the way to what their machine configs make now, or to what
// they are held at, and resumes them. What is held stays so: it may be the very change that is urgent.
func waiveWindows(ctx context.Context, e *session.Env, c *client.Client, args []string, reason string) error {
	list, err := renewed(ctx, e, c, args, pools)
	var failed failure.List
	failed.Add(err)
	for _, t := range list {
		config := ""
		if pool, ok := t.Object.(*configv1.MachineConfigPool); ok {
			config = pool.GetSpec().GetPin().GetConfiguration()
			if config == "" { // the spec has it some seconds after a change
				config, err = rendered(ctx, c, t.Name())
				if err != nil && status.Code(err) != codes.FailedPrecondition { // what is wanted cannot be rendered
					failed.Add(fmt.Errorf("%s: %w", t, err))
					continue
				}
				config = cmp.Or(config, pool.GetSpec().GetConfiguration().GetName())
			}
		}
		if config == "" {
			failed.Add(fmt.Errorf("%s: it has no configuration yet", t))
			continue
		}
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": t.Object.GetMetadata().GetResourceVersion()},
			"spec": map[string]any{
				"paused": nil, "pause": nil,
				"windowWaiver": map[string]any{"configuration": config, "reason": reason},
			},
		})
		if err == nil {
			_, err = c.Patch(ctx, t.Kind, "", t.Name(), manifest.MergePatch, body, false)
		}
		if err == nil {
			_, err = fmt.Fprintf(e.Out, "%s resumed, and waits for no maintenance window on the way to %s\n", t, config)
		}
		failed.Add(err)
	}
	return failed.Err()
}

// lastGood returns the configuration that a pool goes back to: the last one that all nodes had. If they have what is
// wanted now, it is the one that they all had before.
func lastGood(ctx context.Context, c *client.Client, pool *configv1.MachineConfigPool) (string, error) {
	if pin := pool.GetSpec().GetPin().GetConfiguration(); pin != "" {
		return "", fmt.Errorf("it is held at %s already; specify --to-config for another, or resume it", pin)
	}
	good := pool.GetStatus().GetConfiguration().GetName()
	if good == "" {
		return "", errors.New("its nodes never all had one configuration; specify --to-config")
	}
	want, err := rendered(ctx, c, pool.GetMetadata().GetName())
	switch {
	case status.Code(err) == codes.FailedPrecondition: // what is wanted cannot be rendered
		return good, nil
	case err != nil:
		return "", err
	case want != good:
		return good, nil
	}
	list, err := former(ctx, c, pool)
	if err != nil {
		return "", err
	}
	for _, h := range pool.GetStatus().GetHistory() {
		if h.GetName() != good && slices.ContainsFunc(list, func(m *configv1.MachineConfig) bool {
			return m.GetMetadata().GetName() == h.GetName()
		}) {
			return h.GetName(), nil
		}
	}
	return "", errors.New("no configuration is stored that all its nodes had before; specify --to-config")
}
