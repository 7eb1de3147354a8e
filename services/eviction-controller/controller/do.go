package controller

import (
	"context"
	"fmt"
	"strings"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// do carries out the actions of a plan, in order, and stops at the first that fails. An object that changed since it
// was read is an error, too: see rpcerr.IgnoreChanged.
func (c *Controller) do(ctx context.Context, actions []plan.Action) error {
	for _, a := range actions {
		if err := c.act(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) act(ctx context.Context, a plan.Action) error {
	switch a.Verb {
	case plan.StoreNode:
		return c.storeNode(ctx, a.Node)
	case plan.StoreDrain:
		return c.storeDrain(ctx, a.Drain)
	case plan.CordonNode:
		c.nodes.Add(a.Object.GetName())
	case plan.ReleasePermit:
		if err := c.Permits.Release(ctx, a.Machine); err != nil {
			return fmt.Errorf("release the permit: %w", err)
		}
	case plan.ReleaseDrain:
		return c.releaseDrain(ctx, a)
	case plan.ChangeZone:
		c.zoneChanged(ctx, a)
	case plan.BeginDisruption, plan.EndDisruption:
		c.disruption(ctx, a)
	}
	return nil
}

// storeNode writes a node unless it changed since it was read.
func (c *Controller) storeNode(ctx context.Context, next *nodev1.Node) error {
	var before *nodev1.Node
	after, err := c.Tables.Nodes.Modify(ctx, object.KeyOf(next), func(node *nodev1.Node) error {
		before = object.Clone(node)
		if node.GetMetadata().GetResourceVersion() != next.GetMetadata().GetResourceVersion() {
			return rpcerr.Conflict("Node", node.GetMetadata().GetName(), "")
		}
		node.Metadata, node.Spec, node.Status = next.Metadata, next.Spec, next.Status
		return nil
	})
	if err == nil {
		c.reportNode(ctx, before, after)
	}
	return err
}

// storeDrain writes the status of a drain unless the drain changed since it was read.
func (c *Controller) storeDrain(ctx context.Context, d *nodev1.Drain) error {
	before, _ := c.Tables.Drains.Lookup("", d.GetMetadata().GetName())
	after, err := c.Tables.Drains.UpdateStatus(ctx, d)
	if err != nil {
		return err
	}
	if phase := d.GetStatus().GetPhase(); phase != before.GetStatus().GetPhase() {
		c.Log.InfoContext(ctx, "drain changed", "node", d.GetSpec().GetNodeName(), "drain", d.GetMetadata().GetName(),
			"phase", phase)
		c.Events.Event(after, "Normal", phase, d.GetStatus().GetMessage())
	}
	return nil
}

// releaseDrain removes the finalizer of a drain that is being deleted.
func (c *Controller) releaseDrain(ctx context.Context, a plan.Action) error {
	c.Views.freed(a.Drain.GetSpec().GetNodeName())
	_, err := c.Tables.Drains.Update(ctx, a.Drain)
	if err == nil {
		c.Views.done(a)
	}
	return err
}

// disruption begins or ends a full disruption. At its end the grace period of all silent agents restarts.
func (c *Controller) disruption(ctx context.Context, a plan.Action) {
	if !c.Views.done(a) {
		return // another node's decision did it
	}
	c.Log.InfoContext(ctx, "full disruption changed", "disrupted", a.Verb == plan.BeginDisruption)
	typ, reason := "Warning", "EvictionsStopped"
	if a.Verb == plan.EndDisruption {
		typ, reason = "Normal", "EvictionsResumed"
	}
	for _, n := range c.Tables.Nodes.All() {
		if !plan.IsReady(n) {
			c.Events.Event(n, typ, reason, a.Reason)
			c.nodes.Add(n.GetMetadata().GetName())
		}
	}
}

// zoneChanged records the state of a zone and reports it on the nodes that it affects, which decide again.
func (c *Controller) zoneChanged(ctx context.Context, a plan.Action) {
	if !c.Views.done(a) {
		return // another node's decision did it
	}
	c.Log.InfoContext(ctx, "zone changed", "zone", a.Zone, "state", a.ZoneState, "reason", a.Reason)
	typ := "Warning"
	if a.ZoneState == plan.Normal {
		typ = "Normal"
	}
	for _, n := range c.Tables.Nodes.All() {
		if plan.Zone(n) != a.Zone || plan.IsReady(n) && !plan.NoExecutes(n) {
			continue
		}
		c.Events.Event(n, typ, "Zone"+a.ZoneState, a.Reason)
		c.nodes.Add(n.GetMetadata().GetName())
		c.leave.Add(n.GetMetadata().GetName())
	}
}

// reportNode logs what changed about a node, and records events.
func (c *Controller) reportNode(ctx context.Context, before, after *nodev1.Node) {
	name := after.GetMetadata().GetName()
	if was, is := plan.IsReady(before), plan.IsReady(after); was != is {
		c.Log.InfoContext(ctx, "node changed", "node", name, "ready", is)
		typ, reason := "Warning", "NodeNotReady"
		if is {
			typ, reason = "Normal", "NodeReady"
		}
		c.Events.Event(after, typ, reason, readyMessage(after))
	}
	if was, is := before.GetSpec().GetUnschedulable(), after.GetSpec().GetUnschedulable(); was != is {
		held := plan.HeldBy(after, c.Tables.DrainsOf(name))
		c.Log.InfoContext(ctx, "node changed", "node", name, "unschedulable", is, "held_by", held)
		reason, message := "NodeSchedulable", "no cordon and no drain holds the node any more"
		if is {
			reason, message = "NodeNotSchedulable", "held by "+strings.Join(held, ", ")
		}
		c.Events.Event(after, "Normal", reason, message)
	}
	if rebooted := before.GetMetadata().GetAnnotations()[plan.RebootOf] != "" &&
		after.GetMetadata().GetAnnotations()[plan.RebootOf] == ""; rebooted {
		c.Events.Event(after, "Normal", "Rebooted", "the node has restarted")
	}
}

func readyMessage(n *nodev1.Node) string {
	for _, c := range n.GetStatus().GetConditions() {
		if c.GetType() == plan.Ready {
			return c.GetMessage()
		}
	}
	return ""
}
