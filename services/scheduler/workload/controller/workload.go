// Package controller creates and deletes pods for their owners, and keeps the status of disruption budgets. It deletes
// what is left over: contents of deleted namespaces, dependents of deleted owners, pods of deleted nodes. It records
// that the pods of nodes that are not ready are not ready either. Package plan decides; which node runs a pod is left
// to placement.
package controller

import (
	"context"
	"log/slog"
	"time"

	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/resource"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

const workers = 4 // looks of one kind at once: what they wait for is etcd

// Tables are the kinds that the controllers read and write; none may be nil.
type Tables struct {
	Pods                   *resource.Table[*schedulingv1.Pod]
	ReplicaSets            *resource.Table[*schedulingv1.ReplicaSet]
	ReplicationControllers *resource.Table[*schedulingv1.ReplicationController]
	Deployments            *resource.Table[*schedulingv1.Deployment]
	StatefulSets           *resource.Table[*schedulingv1.StatefulSet]
	DaemonSets             *resource.Table[*schedulingv1.DaemonSet]
	Revisions              *resource.Table[*schedulingv1.ControllerRevision]
	Claims                 *resource.Table[*schedulingv1.PersistentVolumeClaim]
	Jobs                   *resource.Table[*schedulingv1.Job]
	CronJobs               *resource.Table[*schedulingv1.CronJob]
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

	deaths    deaths
	departed  departed
	selectors selectors // of the budgets
	spans     controller.Spans
	loops     *controller.Loops
	// All loops have namespace/name as their keys.
	setLoop, rcLoop, deploymentLoop, statefulLoop, daemonLoop, jobLoop, cronLoop, budgetLoop *controller.Loop
}

// New returns controllers that do nothing before Lead.
func New(cfg Config) *Controllers {
	c := &Controllers{
		Tables: cfg.Tables, nodes: cfg.Nodes, events: cfg.Events, log: cfg.Log, now: cfg.Now,
		loops: controller.New(cfg.Log),
	}
	c.setLoop = loop(c, c.ReplicaSets, "replicasets", c.reconcileReplicaSet)
	c.rcLoop = loop(c, c.ReplicationControllers, "replicationcontrollers", c.reconcileReplicationController)
	c.deploymentLoop = loop(c, c.Deployments, "deployments", c.reconcileDeployment)
	c.statefulLoop = loop(c, c.StatefulSets, "statefulsets", c.reconcileStatefulSet)
	c.statefulLoop.Needs(c.Revisions, c.Claims)
	c.daemonLoop = loop(c, c.DaemonSets, "daemonsets", c.reconcileDaemonSet)
	c.daemonLoop.Needs(c.nodes)
	c.daemonLoop.Needs(c.Revisions)
	c.jobLoop = loop(c, c.Jobs, "jobs", c.reconcileJob)
	c.cronLoop = loop(c, c.CronJobs, "cronjobs", c.reconcileCronJob)
	c.budgetLoop = loop(c, c.Budgets, "poddisruptionbudgets", c.reconcileBudget)
	c.subscribe()
	return c
}

// loop adds the loop of a kind. Each of them reads all kinds of workloads, and must see what the former leader wrote.
func loop[T object.Object](c *Controllers, t *resource.Table[T], name string, f controller.Func) *controller.Loop {
	l := c.loops.Loop(name, workers, f)
	controller.For(l, t)
	t.Subscribe(func(ch resource.Change[T]) {
		if ch.Deleted {
			c.keep(ch.Object, nil, c.now())
		}
	})
	l.Needs(c.Pods, c.ReplicaSets, c.ReplicationControllers, c.Deployments, c.StatefulSets, c.DaemonSets, c.Jobs,
		c.Budgets)
	return l
}

func (c *Controllers) subscribe() {
	c.Budgets.Subscribe(c.selectors.changed)
	c.Pods.Subscribe(c.podChanged)
	c.ReplicaSets.Subscribe(c.setChanged)
	c.ReplicationControllers.Subscribe(func(ch resource.Change[*schedulingv1.ReplicationController]) {
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.Deployments.Subscribe(func(ch resource.Change[*schedulingv1.Deployment]) {
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.StatefulSets.Subscribe(func(ch resource.Change[*schedulingv1.StatefulSet]) {
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.Revisions.Subscribe(c.revisionChanged)
	c.Claims.Subscribe(c.claimChanged)
	c.Jobs.Subscribe(c.jobChanged)
	c.DaemonSets.Subscribe(func(ch resource.Change[*schedulingv1.DaemonSet]) {
		c.addBudgets(ch.Key.Namespace, ch.Object.GetSpec().GetTemplate())
	})
	c.nodes.Subscribe(func(resource.Change[*nodev1.Node]) { c.daemonLoop.Add(c.DaemonSets.Keys()...) })
}

// Lead works until ctx ends.
func (c *Controllers) Lead(ctx context.Context) error {
	c.deaths.reset()
	c.departed.reset(true)
	defer c.departed.reset(false)
	c.spans.Reset(c.now())
	defer c.spans.Reset(time.Time{}) // another process sees what happens from now on
	return c.loops.Lead(ctx)
}

// podChanged enqueues what counts a pod: its owner, or those that could adopt it, and its budgets.
func (c *Controllers) podChanged(ch resource.Change[*schedulingv1.Pod]) {
	was, is := ch.Previous, ch.Object
	if ch.Deleted {
		is = nil
	}
	if plan.Alike(was, is) {
		return
	}
	if now := c.now(); plan.DiedYoung(was, is, now) {
		c.deaths.add(was, now)
	}
	if is == nil {
		c.deaths.forget(was)
		if c.hasJob(was) {
			c.departed.gone(was)
		}
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
	var sets []map[string]string
	for _, pod := range []*schedulingv1.Pod{was, is} {
		if pod != nil {
			sets = append(sets, pod.GetMetadata().GetLabels())
		}
	}
	c.budgetLoop.Add(c.selectors.matching(ch.Key.Namespace, sets...)...)
}

// hasJob reports whether the job that manages a pod is there. One that is gone counts nothing any more.
func (c *Controllers) hasJob(pod *schedulingv1.Pod) bool {
	owner := placement.ControllerOf(pod)
	if owner.GetKind() != "Job" {
		return false
	}
	job, ok := c.Jobs.Lookup(pod.GetMetadata().GetNamespace(), owner.GetName())
	return ok && job.GetMetadata().GetUid() == owner.GetUid()
}

func (c *Controllers) addOwner(pod *schedulingv1.Pod) {
	owner := placement.ControllerOf(pod)
	key := object.Key{Namespace: pod.GetMetadata().GetNamespace(), Name: owner.GetName()}.String()
	switch owner.GetKind() {
	case "ReplicaSet":
		c.setLoop.Add(key)
	case "ReplicationController":
		c.rcLoop.Add(key)
	case "StatefulSet":
		c.statefulLoop.Add(key)
	case "DaemonSet":
		c.daemonLoop.Add(key)
	case "Job":
		c.jobLoop.Add(key)
	}
}

// addAdopters enqueues all that could adopt a pod without a controller.
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
	for s := range c.StatefulSets.In(ns) {
		if plan.SelectorMatches(s.GetSpec().GetSelector(), have) {
			c.statefulLoop.Add(object.KeyOf(s).String())
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

// setChanged enqueues a replica set, its deployment, or those that could adopt it, and the budgets of its pods.
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

// jobChanged enqueues the cron job of a job that was created, has ended or is gone.
func (c *Controllers) jobChanged(ch resource.Change[*schedulingv1.Job]) {
	if ch.Deleted {
		c.departed.forget(ch.Object.GetMetadata().GetUid())
	}
	if was := ch.Previous; was != nil && !ch.Deleted && plan.JobEnded(was) == plan.JobEnded(ch.Object) {
		return
	}
	for _, j := range []*schedulingv1.Job{ch.Previous, ch.Object} {
		if owner := object.ControllerOf(j); owner.GetKind() == "CronJob" {
			c.cronLoop.Add(object.Key{Namespace: ch.Key.Namespace, Name: owner.GetName()}.String())
		}
	}
}

// revisionChanged enqueues the set of a revision, or those that could adopt it.
func (c *Controllers) revisionChanged(ch resource.Change[*schedulingv1.ControllerRevision]) {
	for _, r := range []*schedulingv1.ControllerRevision{ch.Previous, ch.Object} {
		owner := object.ControllerOf(r)
		key := object.Key{Namespace: ch.Key.Namespace, Name: owner.GetName()}.String()
		switch owner.GetKind() {
		case "StatefulSet":
			c.statefulLoop.Add(key)
		case "DaemonSet":
			c.daemonLoop.Add(key)
		}
	}
	if ch.Deleted || object.ControllerOf(ch.Object) != nil {
		return
	}
	for s := range c.StatefulSets.In(ch.Key.Namespace) {
		if plan.SelectorMatches(s.GetSpec().GetSelector(), ch.Object.GetMetadata().GetLabels()) {
			c.statefulLoop.Add(object.KeyOf(s).String())
		}
	}
	for s := range c.DaemonSets.In(ch.Key.Namespace) {
		if plan.SelectorMatches(s.GetSpec().GetSelector(), ch.Object.GetMetadata().GetLabels()) {
			c.daemonLoop.Add(object.KeyOf(s).String())
		}
	}
}

// claimChanged enqueues the stateful sets whose pods a claim is for.
func (c *Controllers) claimChanged(ch resource.Change[*schedulingv1.PersistentVolumeClaim]) {
	for s := range c.StatefulSets.In(ch.Key.Namespace) {
		if _, ok := plan.ClaimOrdinal(s, ch.Key.Name); ok {
			c.statefulLoop.Add(object.KeyOf(s).String())
		}
	}
}

// addBudgets enqueues the budgets that are for pods of a template: their owner may want another number of them.
func (c *Controllers) addBudgets(namespace string, template *schedulingv1.PodTemplateSpec) {
	c.budgetLoop.Add(c.selectors.matching(namespace, template.GetMetadata().GetLabels())...)
}
