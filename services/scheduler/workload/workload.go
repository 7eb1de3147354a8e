// Package workload runs what makes and removes pods: replica sets, replication controllers, deployments, daemon sets
// and jobs; and it keeps the numbers of disruption budgets. What is done is decided by its package plan. Which node a
// pod goes to, and what becomes of objects whose owner is gone, is left to others.
package workload

import (
	"context"
	"log/slog"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/reconcile"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

const workers = 4 // looks of one kind at once: what they wait for is etcd

// Tables are the kinds that the controllers read and write; none may be nil.
type Tables struct {
	Pods                   *resource.Table[*schedulingv1.Pod]
	ReplicaSets            *resource.Table[*schedulingv1.ReplicaSet]
	ReplicationControllers *resource.Table[*schedulingv1.ReplicationController]
	Deployments            *resource.Table[*schedulingv1.Deployment]
	DaemonSets             *resource.Table[*schedulingv1.DaemonSet]
	Jobs                   *resource.Table[*schedulingv1.Job]
	Budgets                *resource.Table[*schedulingv1.PodDisruptionBudget]
}

// Nodes are the nodes as an informer shows them. They may come later than the rest: only daemon sets wait for them.
type Nodes interface {
	WaitSynced(ctx context.Context) error
	All() []*nodev1.Node
	Subscribe(f func(resource.Change[*nodev1.Node]))
}

// Config is what the controllers work with; nothing in it may be nil.
type Config struct {
	Tables Tables
	Nodes  Nodes
	Events events.Sink
	Log    *slog.Logger
	Now    func() time.Time
}

// Controllers look after all workloads while this process leads.
type Controllers struct {
	Tables
	nodes  Nodes
	events events.Sink
	log    *slog.Logger
	now    func() time.Time

	// All loops have namespace/name as their keys.
	setLoop, rcLoop, deploymentLoop, daemonLoop, jobLoop, budgetLoop *reconcile.Loop
}

// New returns controllers that do nothing before Lead.
func New(cfg Config) *Controllers {
	c := &Controllers{
		Tables: cfg.Tables, nodes: cfg.Nodes, events: cfg.Events, log: cfg.Log, now: cfg.Now,
	}
	loop := func(name string, keys func() []string, f reconcile.Func) *reconcile.Loop {
		return reconcile.NewLoop(name, workers, keys, f, cfg.Log)
	}
	c.setLoop = loop("replicasets", c.ReplicaSets.Keys, c.reconcileReplicaSet)
	c.rcLoop = loop("replicationcontrollers", c.ReplicationControllers.Keys, c.reconcileReplicationController)
	c.deploymentLoop = loop("deployments", c.Deployments.Keys, c.reconcileDeployment)
	c.daemonLoop = loop("daemonsets", c.DaemonSets.Keys, c.reconcileDaemonSet)
	c.jobLoop = loop("jobs", c.Jobs.Keys, c.reconcileJob)
	c.budgetLoop = loop("poddisruptionbudgets", c.Budgets.Keys, c.reconcileBudget)
	c.subscribe()
	return c
}

func (c *Controllers) subscribe() {
	c.Pods.Subscribe(c.podChanged)
	c.ReplicaSets.Subscribe(c.setChanged)
	c.Budgets.Subscribe(func(ch resource.Change[*schedulingv1.PodDisruptionBudget]) { c.budgetLoop.Add(ch.Key.String()) })
	c.ReplicationControllers.Subscribe(func(ch resource.Change[*schedulingv1.ReplicationController]) {
		c.rcLoop.Add(ch.Key.String())
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.Deployments.Subscribe(func(ch resource.Change[*schedulingv1.Deployment]) {
		c.deploymentLoop.Add(ch.Key.String())
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.DaemonSets.Subscribe(func(ch resource.Change[*schedulingv1.DaemonSet]) {
		c.daemonLoop.Add(ch.Key.String())
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.Jobs.Subscribe(func(ch resource.Change[*schedulingv1.Job]) { c.jobLoop.Add(ch.Key.String()) })
	c.nodes.Subscribe(func(resource.Change[*nodev1.Node]) {
		for _, key := range c.DaemonSets.Keys() {
			c.daemonLoop.Add(key)
		}
	})
}

// Lead works until ctx ends.
func (c *Controllers) Lead(ctx context.Context) error {
	if err := c.catchUp(ctx); err != nil {
		return nil // ctx ended
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range []*reconcile.Loop{c.setLoop, c.rcLoop, c.deploymentLoop, c.jobLoop, c.budgetLoop} {
		group.Go(func() error { return l.Run(ctx) })
	}
	group.Go(func() error {
		if err := c.nodes.WaitSynced(ctx); err != nil {
			return nil // ctx ended
		}
		return c.daemonLoop.Run(ctx)
	})
	return group.Wait()
}

// follower is a table as catchUp sees it.
type follower interface {
	WaitSynced(ctx context.Context) error
	WaitRevision(ctx context.Context, revision int64) error
}

// catchUp waits until the caches show everything that the leader before wrote: what it made must not be made again.
func (c *Controllers) catchUp(ctx context.Context) error {
	fence, fenced := store.FenceFrom(ctx)
	for _, t := range []follower{
		c.Pods, c.ReplicaSets, c.ReplicationControllers, c.Deployments, c.DaemonSets, c.Jobs,
		c.Budgets,
	} {
		if err := t.WaitSynced(ctx); err != nil {
			return err
		}
		if !fenced {
			continue
		}
		if err := t.WaitRevision(ctx, fence.CreateRevision); err != nil {
			return err
		}
	}
	return nil
}

// podChanged has those looked at who count a pod: its owner, or who could become it, and its budgets.
func (c *Controllers) podChanged(ch resource.Change[*schedulingv1.Pod]) {
	was, is := ch.Previous, ch.Object
	if ch.Deleted {
		is = nil
	}
	if plan.Alike(was, is) {
		return
	}
	if was != nil {
		c.addOwner(was)
	}
	if is != nil {
		c.addOwner(is)
		if placement.ControllerOf(is) == nil {
			c.addAdopters(is)
		}
	}
	for b := range c.Budgets.In(ch.Key.Namespace) {
		if was != nil && placement.BudgetSelects(b, was.GetMetadata().GetLabels()) || is != nil &&
			placement.BudgetSelects(b, is.GetMetadata().GetLabels()) {
			c.budgetLoop.Add(object.KeyOf(b).String())
		}
	}
}

func (c *Controllers) addOwner(pod *schedulingv1.Pod) {
	owner := placement.ControllerOf(pod)
	key := object.Key{Namespace: pod.GetMetadata().GetNamespace(), Name: owner.GetName()}.String()
	switch owner.GetKind() {
	case "ReplicaSet":
		c.setLoop.Add(key)
	case "ReplicationController":
		c.rcLoop.Add(key)
	case "DaemonSet":
		c.daemonLoop.Add(key)
	case "Job":
		c.jobLoop.Add(key)
	}
}

// addAdopters has everybody looked at who could adopt a pod that nobody manages.
func (c *Controllers) addAdopters(pod *schedulingv1.Pod) {
	ns, have := pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetLabels()
	for s := range c.ReplicaSets.In(ns) {
		if plan.SelectorMatches(s.GetSpec().GetSelector(), have) {
			c.setLoop.Add(object.KeyOf(s).String())
		}
	}
	for rc := range c.ReplicationControllers.In(ns) {
		if plan.SelectorMatches(plan.ReplicationControllerSelector(rc), have) {
			c.rcLoop.Add(object.KeyOf(rc).String())
		}
	}
	for s := range c.DaemonSets.In(ns) {
		if plan.SelectorMatches(s.GetSpec().GetSelector(), have) {
			c.daemonLoop.Add(object.KeyOf(s).String())
		}
	}
	for j := range c.Jobs.In(ns) {
		if plan.SelectorMatches(plan.JobSelector(j), have) {
			c.jobLoop.Add(object.KeyOf(j).String())
		}
	}
}

// setChanged has a replica set looked at, its deployment, or who could become it, and the budgets of its pods.
func (c *Controllers) setChanged(ch resource.Change[*schedulingv1.ReplicaSet]) {
	k, was, is := ch.Key, ch.Previous, ch.Object
	if ch.Deleted {
		is = nil
	}
	c.setLoop.Add(k.String())
	for _, s := range []*schedulingv1.ReplicaSet{was, is} {
		if owner := object.ControllerOf(s); owner.GetKind() == "Deployment" {
			c.deploymentLoop.Add(object.Key{Namespace: k.Namespace, Name: owner.GetName()}.String())
		}
	}
	if is != nil && object.ControllerOf(is) == nil {
		for d := range c.Deployments.In(k.Namespace) {
			if plan.SelectorMatches(d.GetSpec().GetSelector(), is.GetMetadata().GetLabels()) {
				c.deploymentLoop.Add(object.KeyOf(d).String())
			}
		}
	}
	if was.GetMetadata().GetGeneration() != is.GetMetadata().GetGeneration() {
		c.addBudgets(k.Namespace, is.GetSpec().GetTemplate())
	}
}

// addBudgets has the budgets looked at that are for pods of a template: their owner may want another number of them.
func (c *Controllers) addBudgets(namespace string, template *schedulingv1.PodTemplateSpec) {
	for b := range c.Budgets.In(namespace) {
		if placement.BudgetSelects(b, template.GetMetadata().GetLabels()) {
			c.budgetLoop.Add(object.KeyOf(b).String())
		}
	}
}
