// Package controller brings nodes and their drains to what package plan decides. It looks at one node at a time, together with all
// drains that name it.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/reconcile"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// workers is how many nodes are looked at at once: what they wait for is etcd.
const workers = 4

// Permits is the guardian of the quorum.
type Permits interface {
	// Acquire asks for the permit of a machine; held is false if nothing had to be held.
	Acquire(ctx context.Context, machine *metav1.ObjectReference, reason string) (held bool, err error)
	// Release gives it back; without effect if it is not held for that machine.
	Release(ctx context.Context, machine *metav1.ObjectReference) error
}

// Recorder tells people what happened.
type Recorder interface {
	Event(obj resource.Object, typ, reason, message string)
}

// Controller looks after nodes and drains while this process leads.
type Controller struct {
	tables  *kinds.Tables
	tracker *liveness.Tracker
	permits Permits
	events  Recorder
	log     *slog.Logger
	loop    *reconcile.Loop
}

// New returns a controller that does nothing before Lead.
func New(tables *kinds.Tables, tracker *liveness.Tracker, permits Permits, events Recorder, log *slog.Logger) *Controller {
	c := &Controller{tables: tables, tracker: tracker, permits: permits, events: events, log: log}
	c.loop = reconcile.NewLoop("nodes", workers, c.Reconcile, log)
	tables.Nodes.Subscribe(func(k resource.Key) { c.loop.Add(k.Name) })
	tables.Drains.Subscribe(c.drainChanged)
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	if err := c.tables.Nodes.WaitSynced(ctx); err != nil {
		return nil // ctx ended
	}
	if err := c.tables.Drains.WaitSynced(ctx); err != nil {
		return nil
	}
	end := c.tracker.Lead(c.loop.Add)
	defer end()
	c.addAll()
	return c.loop.Run(ctx)
}

func (c *Controller) addAll() {
	for _, n := range c.tables.Nodes.All() {
		c.loop.Add(n.GetMetadata().GetName())
	}
	for _, d := range c.tables.Drains.All() {
		c.loop.Add(d.GetSpec().GetNodeName())
	}
}

func (c *Controller) drainChanged(k resource.Key) {
	if d, ok := c.tables.Drains.Lookup("", k.Name); ok {
		c.loop.Add(d.GetSpec().GetNodeName())
		return
	}
	c.addAll() // it is gone, and with it the name of its node
}

// Reconcile moves one node and its drains closer to what they should be and returns when to look again; zero means when
// something changes.
func (c *Controller) Reconcile(ctx context.Context, node string) (time.Time, error) {
	ctx = kinds.Own(ctx)
	wake := time.Time{}
	var failed []error
	drains := c.tables.DrainsOf(node)
	for i, d := range drains {
		others := slices.Delete(slices.Clone(drains), i, i+1)
		w, err := c.drain(ctx, d, others)
		wake = earliest(wake, w)
		if err = ignoreChanged(err); err != nil {
			failed = append(failed, fmt.Errorf("drain %q: %w", d.GetMetadata().GetName(), err))
		}
	}
	w, err := c.node(ctx, node)
	if err != nil {
		failed = append(failed, fmt.Errorf("node %q: %w", node, err))
	}
	return earliest(wake, w), errors.Join(failed...)
}

// node writes what the plan wants of a node, if that differs.
func (c *Controller) node(ctx context.Context, name string) (time.Time, error) {
	have, ok := c.tables.Nodes.Lookup("", name)
	if !ok {
		c.tracker.Forget(name)
		return time.Time{}, nil
	}
	p := c.planNode(have)
	if proto.Equal(p.Applied(have), have) {
		return p.Wake, nil
	}
	if p.Release {
		if err := c.permits.Release(ctx, plan.MachineOfNode(name)); err != nil {
			return p.Wake, fmt.Errorf("release the permit: %w", err)
		}
	}
	before := have
	after, err := c.tables.Nodes.Modify(ctx, resource.Key{Name: name}, func(node *nodev1.Node) error {
		before = resource.Clone(node)
		now := c.planNode(node)
		if now.RebootDone != p.RebootDone {
			return rpcerr.Conflict("Node", name, "") // look again: the permit was considered for another state
		}
		p = now
		next := p.Applied(node)
		node.Metadata, node.Spec, node.Status = next.Metadata, next.Spec, next.Status
		return nil
	})
	if err != nil {
		return p.Wake, ignoreChanged(err)
	}
	c.tell(ctx, before, after, p)
	return p.Wake, nil
}

func (c *Controller) planNode(node *nodev1.Node) plan.NodePlan {
	name := node.GetMetadata().GetName()
	return plan.Node(plan.NodeView{
		Now: time.Now().UTC(), Node: node, Agent: c.tracker.Agent(name), Grace: c.tracker.Grace(), Drains: c.tables.DrainsOf(name),
	})
}

// drain takes the next step of a drain.
func (c *Controller) drain(ctx context.Context, d *nodev1.Drain, others []*nodev1.Drain) (time.Time, error) {
	node, _ := c.tables.Nodes.Lookup("", d.GetSpec().GetNodeName())
	v := plan.DrainView{Now: time.Now().UTC(), Drain: d, Node: node, Others: others}
	p := plan.Drain(v)
	if p.Gone {
		return time.Time{}, c.letGo(ctx, d, p)
	}
	d, err := c.storeDrain(ctx, d, p)
	if err != nil || !p.Ask {
		return p.Wake, err
	}
	v.Drain = d
	v.Permit, v.Why = c.ask(ctx, d)
	p = plan.Drain(v)
	_, err = c.storeDrain(ctx, d, p)
	return p.Wake, err
}

// ask asks for the permit of a drain's machine.
func (c *Controller) ask(ctx context.Context, d *nodev1.Drain) (plan.Answer, string) {
	held, err := c.permits.Acquire(ctx, plan.MachineOfDrain(d), "drain")
	switch {
	case err != nil:
		return plan.Refused, status.Convert(err).Message()
	case held:
		return plan.Granted, ""
	}
	return plan.NotNeeded, ""
}

// storeDrain writes the status that the plan wants, if the drain is still as it was read.
func (c *Controller) storeDrain(ctx context.Context, d *nodev1.Drain, p plan.DrainPlan) (*nodev1.Drain, error) {
	if proto.Equal(d.GetStatus(), p.Status) {
		return d, nil
	}
	next := resource.Clone(d)
	next.Status = p.Status
	out, err := c.tables.Drains.UpdateStatus(ctx, next)
	if err != nil {
		return d, err
	}
	if phase := p.Status.GetPhase(); phase != d.GetStatus().GetPhase() {
		c.log.InfoContext(ctx, "drain changed", "node", d.GetSpec().GetNodeName(), "drain", d.GetMetadata().GetName(), "phase", phase)
		c.events.Event(out, "Normal", phase, p.Status.GetMessage())
	}
	return out, nil
}

// letGo gives back what was taken for a drain that is being deleted and lets it go.
func (c *Controller) letGo(ctx context.Context, d *nodev1.Drain, p plan.DrainPlan) error {
	if !slices.Contains(d.GetMetadata().GetFinalizers(), kinds.Finalizer) {
		return nil
	}
	if p.Release {
		if err := c.permits.Release(ctx, plan.MachineOfDrain(d)); err != nil {
			return fmt.Errorf("release the permit: %w", err)
		}
	}
	next := resource.Clone(d)
	m := next.GetMetadata()
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == kinds.Finalizer })
	_, err := c.tables.Drains.Update(ctx, next)
	return err
}

// tell says what changed about a node.
func (c *Controller) tell(ctx context.Context, before, after *nodev1.Node, p plan.NodePlan) {
	name := after.GetMetadata().GetName()
	if was, is := plan.IsReady(before), plan.IsReady(after); was != is {
		c.log.InfoContext(ctx, "node changed", "node", name, "ready", is)
		typ, reason := "Normal", "NodeReady"
		if !is {
			typ, reason = "Warning", "NodeNotReady"
		}
		c.events.Event(after, typ, reason, readyMessage(after))
	}
	if was, is := before.GetSpec().GetUnschedulable(), after.GetSpec().GetUnschedulable(); was != is {
		c.log.InfoContext(ctx, "node changed", "node", name, "unschedulable", is, "held_by", p.HeldBy)
		reason, message := "NodeSchedulable", "nobody holds the node any more"
		if is {
			reason, message = "NodeNotSchedulable", "held by "+strings.Join(p.HeldBy, ", ")
		}
		c.events.Event(after, "Normal", reason, message)
	}
	if p.RebootDone {
		c.events.Event(after, "Normal", "Rebooted", "the node is back with another boot")
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

// ignoreChanged takes an object that changed or went meanwhile for no error: its change brings the loop back.
func ignoreChanged(err error) error {
	switch rpcerr.Reason(err) {
	case metav1.ErrorReason_ERROR_REASON_NOT_FOUND, metav1.ErrorReason_ERROR_REASON_CONFLICT:
		return nil
	}
	return err
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
