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
	"sync"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/reconcile"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// workers is how many nodes are looked at at once: what they wait for is etcd or a sibling.
const workers = 8

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

// Config is what a Controller is made of; every field must be set.
type Config struct {
	Tables  *kinds.Tables
	Tracker *liveness.Tracker
	Permits Permits
	Pods    *Pods
	Budgets *informer.Informer[*schedulingv1.PodDisruptionBudget]
	Evictor Evictor
	Events  Recorder
	Retry   time.Duration // how soon a refused eviction is tried again
	Pause   time.Duration // between two nodes of a zone whose pods have to leave because of their silence
	Log     *slog.Logger
}

// Controller looks after nodes, their pods and drains while this process leads.
type Controller struct {
	Config
	loop  *reconcile.Loop // nodes and what is written of their drains
	pacer pacer
	leave *reconcile.Loop // the pods of nodes: kept apart, so that a scheduler that is slow keeps no node from being looked at

	mu        sync.Mutex
	disrupted bool
	witnesses []plan.Witness // as they were at heard; never changed
	heard     time.Time
	tries     map[resource.Key]tried // evictions that were asked for, by pod
}

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, tries: map[resource.Key]tried{}}
	c.loop = reconcile.NewLoop("nodes", workers, c.names, c.Reconcile, c.Log)
	c.leave = reconcile.NewLoop("pods", workers, c.names, c.evict, c.Log)
	c.Tables.Nodes.Subscribe(func(k resource.Key) { c.add(k.Name) })
	c.Tables.Drains.Subscribe(c.drainChanged)
	c.Pods.Subscribe(c.podChanged)
	c.Budgets.Subscribe(c.budgetChanged)
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	if err := c.Tables.Nodes.WaitSynced(ctx); err != nil {
		return nil // ctx ended
	}
	if err := c.Tables.Drains.WaitSynced(ctx); err != nil {
		return nil
	}
	c.mu.Lock()
	c.disrupted, c.witnesses, c.heard = false, nil, time.Time{}
	clear(c.tries)
	c.mu.Unlock()
	end := c.Tracker.Lead(c.loop.Add)
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.loop.Run(ctx) })
	group.Go(func() error { return c.leave.Run(ctx) })
	group.Go(func() error {
		if c.Pods.WaitSynced(ctx) == nil {
			c.addAll() // drains wait for the first word of the scheduler
		}
		return nil
	})
	return group.Wait()
}

func (c *Controller) add(node string) {
	c.loop.Add(node)
	c.leave.Add(node)
}

func (c *Controller) addAll() {
	for _, node := range c.names() {
		c.add(node)
	}
}

// names returns the names of all nodes, and of those that drains name. A name may come more than once.
func (c *Controller) names() []string {
	out := c.Tables.Nodes.Keys()
	for _, d := range c.Tables.Drains.All() {
		out = append(out, d.GetSpec().GetNodeName())
	}
	return out
}

func (c *Controller) drainChanged(k resource.Key) {
	if d, ok := c.Tables.Drains.Lookup("", k.Name); ok {
		c.add(d.GetSpec().GetNodeName())
		return
	}
	c.addAll() // it is gone, and with it the name of its node
}

// podChanged looks at a node because of a pod, if anything on it wants pods to leave.
func (c *Controller) podChanged(k resource.Key, node string, gone bool) {
	if gone {
		c.drop(k)
	}
	n, ok := c.Tables.Nodes.Lookup("", node)
	if !ok {
		return
	}
	if n.GetSpec().GetUnschedulable() && len(c.Tables.DrainsOf(node)) > 0 {
		c.add(node)
	} else if plan.NoExecutes(n) {
		c.leave.Add(node)
	}
}

// budgetChanged looks at the nodes whose drains wait for a pod of the budget's namespace.
func (c *Controller) budgetChanged(k resource.Key) {
	c.mu.Lock()
	nodes := map[string]bool{}
	for pod, t := range c.tries {
		if pod.Namespace == k.Namespace && !t.Accepted {
			nodes[t.node] = true
		}
	}
	c.mu.Unlock()
	for node := range nodes {
		c.leave.Add(node)
	}
}

// Reconcile moves one node and its drains closer to what they should be and returns when to look again; zero means when
// something changes.
func (c *Controller) Reconcile(ctx context.Context, node string) (time.Time, error) {
	ctx = kinds.Own(ctx)
	wake := time.Time{}
	var failed []error
	for _, d := range c.Tables.DrainsNaming(node) {
		w, err := c.drain(ctx, d)
		wake = reconcile.Earliest(wake, w)
		if err = rpcerr.IgnoreChanged(err); err != nil {
			failed = append(failed, fmt.Errorf("drain %q: %w", d.GetMetadata().GetName(), err))
		}
	}
	w, err := c.node(ctx, node)
	if err != nil {
		failed = append(failed, fmt.Errorf("node %q: %w", node, err))
	}
	return reconcile.Earliest(wake, w), errors.Join(failed...)
}

// node writes what the plan wants of a node, if that differs.
func (c *Controller) node(ctx context.Context, name string) (time.Time, error) {
	have, ok := c.Tables.Nodes.Lookup("", name)
	if !ok {
		c.Tracker.Forget(name)
		return time.Time{}, nil
	}
	p := c.planNode(have)
	if proto.Equal(p.Applied(have), have) {
		return p.Wake, nil
	}
	if p.Release {
		if err := c.Permits.Release(ctx, plan.MachineOfNode(name)); err != nil {
			return p.Wake, fmt.Errorf("release the permit: %w", err)
		}
	}
	before := have
	after, err := c.Tables.Nodes.Modify(ctx, resource.Key{Name: name}, func(node *nodev1.Node) error {
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
		return p.Wake, rpcerr.IgnoreChanged(err)
	}
	c.tell(ctx, before, after, p)
	return p.Wake, nil
}

func (c *Controller) planNode(node *nodev1.Node) plan.NodePlan {
	name := node.GetMetadata().GetName()
	v := plan.NodeView{
		Now: time.Now().UTC(), Node: node, Agent: c.Tracker.Agent(name), Grace: c.Tracker.Grace(), Drains: c.Tables.DrainsOf(name),
	}
	if v.Agent.Settled(v.Grace) && !v.Agent.Healthy(v.Grace) {
		v.Disrupted = c.fullDisruption()
		v.Agent = c.Tracker.Agent(name) // its grace may have begun anew with the end of a disruption
	}
	v.Doubt = !v.Agent.Settled(v.Grace)
	p := plan.Node(v)
	if p.Accuses {
		if v.Held = c.held(node, v.Now); !v.Held.IsZero() {
			p = plan.Node(v)
		}
	}
	return p
}

// sameWitnesses is for how long what agents say as witnesses counts as the same: far less than any grace. Nodes are often lost together, and
// each of them asks.
const sameWitnesses = 100 * time.Millisecond

// lately returns what the agents of all nodes said as witnesses, as it is now or was a moment ago. Nobody may modify it.
func (c *Controller) lately() []plan.Witness {
	c.mu.Lock()
	list, heard := c.witnesses, c.heard
	c.mu.Unlock()
	if time.Since(heard) < sameWitnesses {
		return list
	}
	heard, list = time.Now(), c.Tracker.Witnesses(c.Tables.Nodes.All())
	c.mu.Lock()
	c.witnesses, c.heard = list, heard
	c.mu.Unlock()
	return list
}

// fullDisruption reports whether no node can be heard. At the end of such a time all agents get the whole grace to be heard again.
func (c *Controller) fullDisruption() bool {
	now := plan.Disrupted(c.lately(), c.Tracker.Grace())
	c.mu.Lock()
	was := c.disrupted
	c.disrupted = now
	if was && !now {
		c.Tracker.Renew()
	}
	c.mu.Unlock()
	if was != now {
		c.Log.Info("full disruption changed", "disrupted", now)
		c.lookAtTheIll()
	}
	return now
}

// lookAtTheIll looks at all nodes that are not ready.
func (c *Controller) lookAtTheIll() {
	for _, n := range c.Tables.Nodes.All() {
		if !plan.IsReady(n) {
			c.loop.Add(n.GetMetadata().GetName())
		}
	}
}

// readyAgain ends a full disruption with the first node that is ready.
func (c *Controller) readyAgain() {
	c.mu.Lock()
	disrupted := c.disrupted
	c.heard = time.Time{} // the witnesses of a moment ago do not know of it
	c.mu.Unlock()
	if disrupted {
		c.fullDisruption()
	}
}

// drain takes the next step of a drain. Its pods are made to leave elsewhere, see evict; here it is seen how far that has come.
func (c *Controller) drain(ctx context.Context, d *nodev1.Drain) (time.Time, error) {
	ctx = trace.Continue(ctx, d.GetMetadata())
	v := c.viewOfDrain(d)
	p := plan.Drain(v)
	if p.Gone {
		return time.Time{}, c.letGo(ctx, d, p)
	}
	if p.Confirm {
		v = c.confirmed(ctx, v)
		p = plan.Drain(v)
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
	held, err := c.Permits.Acquire(ctx, plan.MachineOfDrain(d), "drain")
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
	out, err := c.Tables.Drains.UpdateStatus(ctx, next)
	if err != nil {
		return d, err
	}
	if phase := p.Status.GetPhase(); phase != d.GetStatus().GetPhase() {
		c.Log.InfoContext(ctx, "drain changed", "node", d.GetSpec().GetNodeName(), "drain", d.GetMetadata().GetName(), "phase", phase)
		c.Events.Event(out, "Normal", phase, p.Status.GetMessage())
	}
	return out, nil
}

// letGo gives back what was taken for a drain that is being deleted and lets it go.
func (c *Controller) letGo(ctx context.Context, d *nodev1.Drain, p plan.DrainPlan) error {
	if !slices.Contains(d.GetMetadata().GetFinalizers(), kinds.Finalizer) {
		return nil
	}
	if p.Release {
		if err := c.Permits.Release(ctx, plan.MachineOfDrain(d)); err != nil {
			return fmt.Errorf("release the permit: %w", err)
		}
	}
	c.forget(d.GetSpec().GetNodeName())
	next := resource.Clone(d)
	m := next.GetMetadata()
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == kinds.Finalizer })
	_, err := c.Tables.Drains.Update(ctx, next)
	return err
}

// tell says what changed about a node.
func (c *Controller) tell(ctx context.Context, before, after *nodev1.Node, p plan.NodePlan) {
	name := after.GetMetadata().GetName()
	if was, is := plan.IsReady(before), plan.IsReady(after); was != is {
		c.Log.InfoContext(ctx, "node changed", "node", name, "ready", is)
		typ, reason := "Warning", "NodeNotReady"
		if is {
			typ, reason = "Normal", "NodeReady"
			c.readyAgain()
		}
		c.Events.Event(after, typ, reason, readyMessage(after))
	}
	if was, is := before.GetSpec().GetUnschedulable(), after.GetSpec().GetUnschedulable(); was != is {
		c.Log.InfoContext(ctx, "node changed", "node", name, "unschedulable", is, "held_by", p.HeldBy)
		reason, message := "NodeSchedulable", "nobody holds the node any more"
		if is {
			reason, message = "NodeNotSchedulable", "held by "+strings.Join(p.HeldBy, ", ")
		}
		c.Events.Event(after, "Normal", reason, message)
	}
	if p.RebootDone {
		c.Events.Event(after, "Normal", "Rebooted", "the node is back with another boot")
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
