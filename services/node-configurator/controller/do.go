package controller

import (
	"context"
	"errors"
	"fmt"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/version"

	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

// do carries out all actions of a plan about a pool, or about a node without one; an action that fails holds up none of
// the others. An object that changed after it was read is no error: the change leads to another decision.
func (c *Controller) do(ctx context.Context, pool *configv1.MachineConfigPool, actions []plan.Action) error {
	var failed []error
	for _, a := range actions {
		if err := rpcerr.IgnoreChanged(c.act(ctx, pool, a)); err != nil {
			failed = append(failed, fmt.Errorf("%s %q: %w", a.Verb, a.Object.GetName(), err))
		}
	}
	return errors.Join(failed...)
}

func (c *Controller) act(ctx context.Context, pool *configv1.MachineConfigPool, a plan.Action) error {
	switch a.Verb {
	case plan.AimPool:
		return c.aim(ctx, pool, a)
	case plan.SetDesired:
		return c.target(ctx, pool, a)
	case plan.StorePool:
		return c.storePool(ctx, pool, a.Pool)
	case plan.DeleteConfig:
		m := a.Config.GetMetadata()
		_, err := c.Tables.Configs.Delete(ctx, "", m.GetName(), &metav1.Preconditions{Uid: m.GetUid()})
		return err
	case plan.CreateDrain:
		err := c.Peer.CreateDrain(ctx, a.Drain)
		if err == nil {
			c.Log.InfoContext(ctx, "drain created", "node", a.Drain.GetSpec().GetNodeName(), "reason", a.Reason)
		}
		return err
	case plan.DeleteDrain:
		err := c.Peer.DeleteDrain(ctx, a.Drain)
		if err == nil {
			c.Log.InfoContext(ctx, "drain no longer needed", "node", a.Drain.GetSpec().GetNodeName())
		}
		return err
	}
	return nil
}

// aim makes a configuration the target of a pool, once that is stored.
func (c *Controller) aim(ctx context.Context, pool *configv1.MachineConfigPool, a plan.Action) error {
	if a.Config != nil {
		if err := c.storeConfig(ctx, pool, a); err != nil {
			return err
		}
	}
	_, err := c.Tables.Pools.Update(ctx, a.Pool)
	return err
}

func (c *Controller) storeConfig(ctx context.Context, pool *configv1.MachineConfigPool, a plan.Action) error {
	cfg := object.Clone(a.Config)
	cfg.Metadata.Annotations = map[string]string{plan.GeneratedBy: version.Number}
	cfg.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(pool)}
	name := cfg.GetMetadata().GetName()
	_, err := c.Tables.Configs.Create(ctx, cfg)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	if err != nil {
		return fmt.Errorf("machine config %q: %w", name, err)
	}
	c.Log.InfoContext(ctx, "configuration rendered", "pool", pool.GetMetadata().GetName(), "config", name)
	c.Events.Event(pool, "Normal", "RenderedConfigGenerated", name+" "+a.Reason)
	return nil
}

// target gives a node its target, if it is still as it was read.
func (c *Controller) target(ctx context.Context, pool *configv1.MachineConfigPool, a plan.Action) error {
	if _, err := c.Peer.Mark(ctx, a.Node, plan.Target(a.Target)); err != nil {
		return err
	}
	name := a.Object.GetName()
	c.Log.InfoContext(ctx, "node targeted", "node", name, "config", a.Target)
	c.Events.Event(pool, "Normal", "SetDesiredConfig", fmt.Sprintf("Targeted node %s to MachineConfig: %s", name,
		a.Target))
	return nil
}

// storePool writes the status of a pool.
func (c *Controller) storePool(ctx context.Context, before, next *configv1.MachineConfigPool) error {
	if _, err := c.Tables.Pools.UpdateStatus(ctx, next); err != nil {
		return err
	}
	config := next.GetStatus().GetConfiguration().GetName()
	if config != before.GetStatus().GetConfiguration().GetName() {
		name := next.GetMetadata().GetName()
		c.Log.InfoContext(ctx, "pool updated", "pool", name, "config", config)
		c.Events.Event(next, "Normal", "Completed", fmt.Sprintf("Pool %s has completed update to MachineConfig %s", name,
			config))
	}
	return nil
}
