// Package controller observes nodes, their pods and drains, has package plan decide about one node at a time, carries
// out the plans, and records the answers that they depend on. It decides nothing itself.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/trace"

	"github.com/windlass-dev/windlass/services/eviction-controller/kinds"
	"github.com/windlass-dev/windlass/services/eviction-controller/liveness"
	"github.com/windlass-dev/windlass/services/eviction-controller/plan"
)

// workers is how many nodes are reconciled concurrently: they mostly wait for etcd or another service.
const workers = 8

// Permits is the part of etcd-guardian that drains and reboots need.
type Permits interface {
	// Acquire requests the permit of a machine; held is false if the machine needs none.
	Acquire(ctx context.Context, machine *metav1.ObjectReference, reason string) (held bool, err error)
	// Release releases it. It has no effect if the permit is not held for that machine.
	Release(ctx context.Context, machine *metav1.ObjectReference) error
}

// Config holds the dependencies of a Controller; every field must be set.
type Config struct {
	Tables  *kinds.Tables
	Tracker *liveness.Tracker
	Views   *Views
	Permits Permits
	Pods    *Pods
	Budgets *informer.Informer[*schedulingv1.PodDisruptionBudget]
	Evictor Evictor
	Events  events.Sink
	Retry   time.Duration // how soon a refused eviction is tried again
	Log     *slog.Logger
}

// Controller carries out the plans for nodes, their pods and drains while this process leads. Its state is in Views; it
// has no timers or counters of its own.
type Controller struct {
	Config
	loops *controller.Loops
	nodes *controller.Loop
	// drains of nodes and evictions for their taints: a separate loop, so that a slow scheduler delays no node
	leave *controller.Loop
	locks nodeLocks // of decisions about a node and its drains, which share the permit
}

// New returns a controller. It does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.nodes = c.loops.Loop("nodes", workers, c.reconcileNode)
	c.leave = c.loops.Loop("pods", workers, c.reconcilePods)
	for _, l := range []*controller.Loop{c.nodes, c.leave} {
		controller.For(l, c.Tables.Nodes)
		controller.Watches(l, c.Tables.Drains, nodeOfDrain)
	}
	c.Pods.Subscribe(c.podChanged)
	c.Budgets.Subscribe(c.budgetChanged)
	return c
}

// Lead reconciles until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	c.Views.forget()
	end := c.Tracker.Lead(func(node string) { c.nodes.Add(node) })
	defer end()
	return c.loops.Lead(ctx, func(ctx context.Context) error {
		if c.Pods.WaitSynced(ctx) == nil {
			names := c.names() // drains wait until the pods are synced
			c.nodes.Add(names...)
			c.leave.Add(names...)
		}
		return nil
	})
}

// names returns the names of all nodes, and of those that drains name. A name may occur more than once.
func (c *Controller) names() []string {
	out := c.Tables.Nodes.Keys()
	for d := range c.Tables.Drains.Objects() {
		out = append(out, d.GetSpec().GetNodeName())
	}
	return out
}

func nodeOfDrain(ch resource.Change[*nodev1.Drain]) []string {
	return []string{ch.Object.GetSpec().GetNodeName()}
}

// podChanged enqueues the node of a pod, and its previous node.
func (c *Controller) podChanged(ch resource.Change[*schedulingv1.Pod]) {
	if ch.Deleted {
		c.Views.gone(ch.Key)
	}
	is, was := ch.Object.GetSpec().GetNodeName(), ch.Previous.GetSpec().GetNodeName()
	// A pod that was not known before may have been bound long ago: the first list of pods has all of them.
	if n, ok := c.Tables.Nodes.Lookup("", is); ok && ch.Existed && was == "" && !ch.Deleted && plan.NoExecutes(n) {
		c.Views.bound(ch.Object)
	}
	c.podMoved(is)
	if was != is {
		c.podMoved(was)
	}
}

// podMoved enqueues the node of a changed pod if a drain or a NoExecute taint evicts pods from it.
func (c *Controller) podMoved(node string) {
	n, ok := c.Tables.Nodes.Lookup("", node)
	if !ok {
		return
	}
	if n.GetSpec().GetUnschedulable() && len(c.Tables.DrainsOf(node)) > 0 || plan.NoExecutes(n) {
		c.leave.Add(node)
	}
	if plan.NoExecutes(n) {
		c.nodes.Add(node) // its status has the time of the next eviction
	}
}

// budgetChanged enqueues the nodes that have a refused eviction in the budget's namespace.
func (c *Controller) budgetChanged(ch resource.Change[*schedulingv1.PodDisruptionBudget]) {
	for _, node := range c.Views.blocked(ch.Key.Namespace) {
		c.leave.Add(node)
	}
}

// reconcileNode carries out the plan for one node and returns when to decide again; zero means when something changes.
func (c *Controller) reconcileNode(ctx context.Context, name string) (time.Time, error) {
	failed := c.release(ctx, name)
	defer c.locks.lock(name)()
	node, ok := c.Tables.Nodes.Lookup("", name)
	if !ok {
		c.Tracker.Forget(name)
		return time.Time{}, failed
	}
	c.Tracker.Meet(node)
	p := c.Views.planNode(node)
	if err := rpcerr.IgnoreChanged(c.do(ctx, p.Do)); err != nil {
		failed = errors.Join(failed, fmt.Errorf("node %q: %w", name, err))
	}
	return p.Wake, failed
}

// release ends the drains of a node that are being deleted. That needs no pods, so it does not wait for the scheduler.
func (c *Controller) release(ctx context.Context, node string) error {
	var failed []error
	for _, d := range c.Tables.DrainsNaming(node) {
		if !object.Deleting(d) {
			continue
		}
		_, err := c.drain(trace.Continue(ctx, d.GetMetadata()), d)
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// reconcilePods carries out the next steps of the drains of one node and the evictions for its taints, and returns when
// to decide again; zero means when something changes.
func (c *Controller) reconcilePods(ctx context.Context, name string) (time.Time, error) {
	var wake time.Time
	var failed []error
	for _, d := range c.Tables.DrainsNaming(name) {
		if object.Deleting(d) {
			continue // see release
		}
		w, err := c.drain(trace.Continue(ctx, d.GetMetadata()), d)
		failed = append(failed, err)
		wake = controller.Earliest(wake, w)
	}
	w, err := c.carryOut(ctx, func([]plan.Answered) (plan.Plan, []*schedulingv1.PodDisruptionBudget, error) {
		node, ok := c.Tables.Nodes.Lookup("", name)
		if !ok {
			return plan.Plan{}, nil, nil
		}
		// Without the lock of the node: no permit is involved, and a write of the node must not delay an eviction.
		p := plan.Evictions(c.Views.Evictions(node))
		return p, nil, c.do(ctx, p.Do)
	})
	return controller.Earliest(wake, w), errors.Join(append(failed, err)...)
}

// drain carries out the next steps of a drain. Each decision and its actions are made with the lock of the node held: a
// decision to release a permit must see all its users.
func (c *Controller) drain(ctx context.Context, d *nodev1.Drain) (time.Time, error) {
	wake, err := c.carryOut(ctx, func(answers []plan.Answered) (plan.Plan, []*schedulingv1.PodDisruptionBudget, error) {
		defer c.locks.lock(d.GetSpec().GetNodeName())()
		now, ok := c.Tables.Drains.Lookup("", d.GetMetadata().GetName())
		if !ok || now.GetMetadata().GetUid() != d.GetMetadata().GetUid() {
			return plan.Plan{}, nil, nil
		}
		v := c.Views.Drain(now).With(answers)
		p := plan.Drain(v)
		return p, v.Budgets, c.do(ctx, p.Do)
	})
	if err != nil {
		err = fmt.Errorf("drain %q: %w", d.GetMetadata().GetName(), err)
	}
	return wake, err
}

// carryOut decides and carries out the actions, asks the questions, records the answers, and repeats with them until
// there is no question or a service does not answer. In the latter case it returns instead of waiting, so that other
// nodes are not delayed, and asks again at the returned time. decide also returns the budgets that it decided on.
func (c *Controller) carryOut(ctx context.Context,
	decide func([]plan.Answered) (plan.Plan, []*schedulingv1.PodDisruptionBudget, error),
) (time.Time, error) {
	var answers []plan.Answered
	for {
		p, budgets, err := decide(answers)
		silent := slices.ContainsFunc(answers, func(a plan.Answered) bool { return a.Code == plan.Away })
		switch {
		case err != nil || len(p.Ask) == 0:
			return p.Wake, rpcerr.IgnoreChanged(err) // the change leads to another decision
		case silent:
			return controller.Earliest(p.Wake, time.Now().Add(plan.AskScheduler)), nil
		}
		given := c.ask(ctx, p.Ask)
		if ctx.Err() != nil {
			return time.Time{}, nil
		}
		for _, a := range given {
			c.Views.answered(a, budgets, c.Retry)
			c.report(ctx, a)
		}
		answers = append(answers, given...)
	}
}

// report logs the result of an eviction. A refused eviction of a drain is not logged: it is in the drain's status.
func (c *Controller) report(ctx context.Context, a plan.Answered) {
	switch {
	case a.Pod == nil:
	case a.Code != plan.Granted && a.Drain == "":
		c.Log.WarnContext(ctx, "pod not evicted", "pod", plan.PodName(a.Pod), "error", a.Why)
	case a.Code != plan.Granted:
	default:
		c.Log.InfoContext(ctx, "pod evicted", "node", a.Pod.GetSpec().GetNodeName(), "pod", plan.PodName(a.Pod),
			"reason", a.Reason)
		if a.Drain == "" {
			c.Events.Event(a.Pod, "Normal", "TaintManagerEviction", "Marking for deletion Pod "+plan.PodName(a.Pod))
		}
	}
}
