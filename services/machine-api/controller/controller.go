// Package controller carries out the plans of machine-api: it observes, asks package plan, writes the outcome and acts.
// Every step may be taken again after a crash at any point. Only the leader runs it.
package controller

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/nodeid"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/ownership/collector"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/store"
	"github.com/windlass-dev/windlass/services/machine-api/kinds"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/provider"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	workers  = 8 // per loop: enough to make all machines of a set at the same time
	parallel = 16
	// retryUnseen is how soon to look again while it is not known which nodes there are.
	retryUnseen = 100 * time.Millisecond
)

// Copy is a copy of another service's objects, kept up to date by an informer.
type Copy[T object.Object] interface {
	Lookup(namespace, name string) (T, bool)
	Index(name string, of func(T) []string)
	ByIndex(name, value string) []T
	Objects() iter.Seq[T]
	Subscribe(func(resource.Change[T]))
	IsSynced() bool
}

// Indexes of nodes.
const (
	byMachineUID = "machine uid" // of the machine that the node's agent registered for
	byProviderID = "spec.providerID"
	controlPlane = "control plane" // of the nodes with a label of the control plane
)

// Bootstrap makes what a new instance joins the cluster with.
type Bootstrap interface {
	For(ctx context.Context, m *machinev1.Machine) (*providerv1.Bootstrap, error)
	// Forget removes what was kept about a machine's token.
	Forget(ctx context.Context, machineUID string) error
}

// Config holds the dependencies of the controllers.
type Config struct {
	Tables    *kinds.Tables
	Providers *provider.Set
	Nodes     Copy[*nodev1.Node]
	Drains    Copy[*nodev1.Drain]
	Eviction  grpc.ClientConnInterface // to eviction-controller, which owns both
	Guardian  grpc.ClientConnInterface // to etcd-guardian; nil if it has no address
	Scheduler grpc.ClientConnInterface // to scheduler; nil if it has no address, and then Pods and Budgets are too
	Pods      Follower[*schedulingv1.Pod]
	Budgets   Follower[*schedulingv1.PodDisruptionBudget]
	// CatchUpNodes waits until Nodes has what eviction-controller has at the time of the call.
	CatchUpNodes func(context.Context) error
	Bootstrap    Bootstrap
	OrphanPolicy string        // what is done about instances without a machine: plan.ReportOrphans or DeleteOrphans
	OrphanGrace  time.Duration // how long they are that before they are deleted
	Events       events.Sink
	Reserved     []netip.Prefix   // addresses of the cluster's own programs, which no instance may have
	Now          func() time.Time // nil means time.Now
	Log          *slog.Logger
}

// Controller is all controllers of machine-api.
type Controller struct {
	Config
	nodes  nodev1.NodeServiceClient
	drains nodev1.DrainServiceClient

	loops                         *controller.Loops
	machines, sets, controlPlanes *controller.Loop
	healthChecks, instances       *controller.Loop
	sizes                         *controller.Loop
	scaling                       scaling
	autoscaled                    chan struct{} // closed once pods are to be followed
	startPods                     func()        // closes autoscaled

	memory  memory
	orphans orphans
	spans   controller.Spans
}

// New returns the controllers. They are notified of changes from now on and act while Run runs. The copy of the nodes
// gets indexes, so it must not have been filled yet.
func New(cfg Config) *Controller {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Controller{
		Config: cfg, nodes: nodev1.NewNodeServiceClient(cfg.Eviction), drains: nodev1.NewDrainServiceClient(cfg.Eviction),
		loops: controller.New(cfg.Log), autoscaled: make(chan struct{}),
	}
	c.startPods = sync.OnceFunc(func() { close(c.autoscaled) })
	c.machines = loop(c, cfg.Tables.Machines, "machine", workers, c.reconcileMachine)
	c.sets = loop(c, cfg.Tables.Sets, "machineset", workers, c.reconcileSet)
	c.sets.Pace() // a set of thousands reads all of them after each change of one
	c.controlPlanes = loop(c, cfg.Tables.ControlPlanes, "controlplanemachineset", 1, c.reconcileControlPlane)
	// One worker: two health checks never decide about the same machine at the same time.
	c.healthChecks = loop(c, cfg.Tables.HealthChecks, "machinehealthcheck", 1, c.reconcileHealthCheck)
	c.healthChecks.Needs(cfg.Tables.Revocations)
	c.healthChecks.Pace()
	c.instances = c.loops.Loop("instance", max(1, len(cfg.Providers.Names())), c.reconcileInstances)
	c.instances.Needs(cfg.Tables.Machines, cfg.Tables.Infrastructure)
	c.instances.Begin(cfg.Providers.Names)
	c.sizes = c.loops.Loop("autoscaler", 1, quietly(c.reconcileSizes))
	c.sizes.Needs(cfg.Tables.Machines, cfg.Tables.Sets, cfg.Tables.Autoscalers, cfg.Tables.ClusterAutoscalers)
	c.sizes.Begin(func() []string { return []string{kinds.AutoscalerName} })
	collector.Add(c.loops, cfg.Log,
		collector.Kind{Untyped: cfg.Tables.Machines.Untyped()},
		collector.Kind{Untyped: cfg.Tables.Sets.Untyped(), Waits: plan.FinalizerPaused},
		collector.Kind{Untyped: cfg.Tables.ControlPlanes.Untyped(), Keeps: plan.FinalizerControlPlane})
	c.memory.reset()
	c.orphans.reset()
	c.spans.Reset(c.Now())
	indexNodes(cfg.Nodes)
	c.subscribe()
	c.followSizes()
	return c
}

// loop adds the loop of a kind. Each of them reads all kinds, and must see what the former leader wrote.
func loop[T object.Object](c *Controller, t *resource.Table[T], name string, workers int, f controller.Func,
) *controller.Loop {
	l := c.loops.Loop(name, workers, quietly(f))
	controller.For(l, t)
	l.Needs(c.Tables.Machines, c.Tables.Sets, c.Tables.ControlPlanes, c.Tables.Infrastructure)
	return l
}

// quietly suppresses the warning for a conflict with another writer.
func quietly(f controller.Func) controller.Func {
	return func(ctx context.Context, key string) (time.Time, error) {
		wake, err := f(ctx, key)
		if status.Code(err) == codes.Aborted {
			err = fmt.Errorf("%w: %w", store.ErrConflict, err)
		}
		return wake, err
	}
}

// indexNodes declares the indexes by which the node of a machine is found without reading all nodes.
func indexNodes(nodes Copy[*nodev1.Node]) {
	nodes.Index(byMachineUID, func(n *nodev1.Node) []string {
		return []string{n.GetMetadata().GetAnnotations()[nodeid.MachineUID]}
	})
	nodes.Index(byProviderID, func(n *nodev1.Node) []string { return []string{n.GetSpec().GetProviderId()} })
	nodes.Index(controlPlane, func(n *nodev1.Node) []string {
		if !plan.IsControlPlaneNode(n) {
			return nil
		}
		return []string{controlPlane}
	})
}

// subscribe says which objects each change makes worth a look.
func (c *Controller) subscribe() {
	c.Tables.Machines.Subscribe(c.machineChanged)
	c.Tables.Sets.Subscribe(c.setChanged)
	c.Providers.Subscribe(func(uid string) {
		for _, m := range c.Tables.Machines.ByIndex(kinds.ByUID, uid) {
			c.machines.Add(object.KeyOf(m).String())
		}
	})
	c.Providers.SubscribeProviders(func() {
		c.machines.Add(c.Tables.Machines.Keys()...)
		c.controlPlanes.Add(c.Tables.ControlPlanes.Keys()...)
	})
	c.Nodes.Subscribe(c.nodeChanged)
	c.Drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) {
		ref := ch.Object.GetSpec().GetMachineRef()
		c.machines.Add(object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}.String())
	})
}

// machineChanged enqueues the sets that count a machine now or did so before.
func (c *Controller) machineChanged(ch resource.Change[*machinev1.Machine]) {
	c.healthChecksOf(ch.Object.GetMetadata().GetNamespace())
	c.ownersOf(ch.Object)
	if ch.Existed {
		c.ownersOf(ch.Previous)
	}
}

// ownersOf enqueues the set of a machine, or every set that might adopt it.
func (c *Controller) ownersOf(m *machinev1.Machine) {
	ns := m.GetMetadata().GetNamespace()
	owner := object.ControllerOf(m)
	if plan.Role(m) == plan.RoleMaster || owner.GetKind() == c.Tables.ControlPlanes.Type().GetKind() {
		c.controlPlanes.Add(object.Key{Namespace: ns, Name: kinds.ClusterName}.String())
	}
	switch {
	case owner == nil:
		c.adopters(m)
	case owner.GetKind() == c.Tables.Sets.Type().GetKind():
		c.sets.Add(object.Key{Namespace: ns, Name: owner.GetName()}.String())
	}
}

// adopters enqueues every set that may adopt a machine, also one of no replicas: it deletes the machine.
func (c *Controller) adopters(m *machinev1.Machine) {
	ns := m.GetMetadata().GetNamespace()
	for s := range c.Tables.Sets.In(ns) {
		if plan.Adopts(s, m) {
			c.sets.Add(object.KeyOf(s).String())
		}
	}
	c.controlPlanes.Add(object.Key{Namespace: ns, Name: kinds.ClusterName}.String())
}

// setChanged enqueues the sets that may adopt a machine which a set no longer adopts, or adopts from now on. Machines
// with an owner, and so nearly all, are not read: many sets may go at the same time.
func (c *Controller) setChanged(ch resource.Change[*machinev1.MachineSet]) {
	adopts := func(s *machinev1.MachineSet) bool { return !object.Deleting(s) && !plan.OtherAPI(s.GetSpec()) }
	if !ch.Deleted && ch.Existed && adopts(ch.Object) == adopts(ch.Previous) {
		return
	}
	for _, m := range c.Tables.Machines.ByIndex(kinds.Unowned, ch.Key.Namespace) {
		if plan.Matches(ch.Object, m) || ch.Existed && plan.Matches(ch.Previous, m) {
			c.adopters(m)
		}
	}
}

// nodeChanged enqueues the machines that a node may be of and their sets, and all control planes if it is or was a
// node of one.
func (c *Controller) nodeChanged(ch resource.Change[*nodev1.Node]) {
	node := ch.Object
	for _, m := range c.machinesOf(node) {
		c.machines.Add(object.KeyOf(m).String())
		c.ownersOf(m)
	}
	if ofControlPlane(ch) {
		c.controlPlanes.Add(c.Tables.ControlPlanes.Keys()...)
	}
	if len(c.Tables.Autoscalers.Keys()) > 0 {
		c.sizes.Add(kinds.AutoscalerName)
	}
	c.healthChecks.Add(c.Tables.HealthChecks.Keys()...) // each node counts for whether the nodes report
}

// machinesOf returns the machines that a node may be of: those that name it, and that it names.
func (c *Controller) machinesOf(node *nodev1.Node) []*machinev1.Machine {
	machines := c.Tables.Machines.ByIndex(kinds.ByNode, node.GetMetadata().GetName())
	if id := node.GetSpec().GetProviderId(); id != "" {
		machines = append(machines, c.Tables.Machines.ByIndex(kinds.ByInstance, id)...)
	}
	if uid := node.GetMetadata().GetAnnotations()[nodeid.MachineUID]; uid != "" {
		machines = append(machines, c.Tables.Machines.ByIndex(kinds.ByUID, uid)...)
	}
	return machines
}

// ofControlPlane reports whether a changed node is a node of the control plane, or was one before.
func ofControlPlane(ch resource.Change[*nodev1.Node]) bool {
	return plan.IsControlPlaneNode(ch.Object) || ch.Existed && plan.IsControlPlaneNode(ch.Previous)
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	c.Providers.Reset() // machines of an earlier term may have gone while another process led
	c.memory.reset()
	c.orphans.reset()
	c.spans.Reset(c.Now())
	defer c.memory.reset() // another process counts on from now on
	defer c.orphans.reset()
	defer func() { c.spans.Reset(c.Now()) }()
	return c.loops.Lead(ctx, func(ctx context.Context) error { return c.Providers.Lead(ctx, c.Bootstrap.For) })
}

// nodesByName returns all nodes; ok is false while they are unknown.
func (c *Controller) nodesByName() (map[string]*nodev1.Node, bool) {
	if !c.Nodes.IsSynced() {
		return nil, false
	}
	out := map[string]*nodev1.Node{}
	for n := range c.Nodes.Objects() {
		out[n.GetMetadata().GetName()] = n
	}
	return out, true
}

// machinesIn returns the machines of a namespace, by name.
func (c *Controller) machinesIn(namespace string) []*machinev1.Machine {
	return slices.Collect(c.Tables.Machines.In(namespace))
}

// modify writes an object that is still as it was when the decision was made.
func modify[T object.Object](ctx context.Context, t *resource.Table[T], seen T, f func(T)) (T, error) {
	out, err := t.Modify(ctx, object.KeyOf(seen), func(obj T) error {
		m, was := obj.GetMetadata(), seen.GetMetadata()
		if m.GetUid() != was.GetUid() || m.GetResourceVersion() != was.GetResourceVersion() {
			return fmt.Errorf("%s %q: %w", t.Type().GetKind(), m.GetName(), store.ErrConflict)
		}
		f(obj)
		return nil
	})
	return out, err
}

// inParallel calls f for each item, several at a time, and returns all errors joined. One that fails does not stop the
// others.
func inParallel[T any](items []T, f func(T) error) []error {
	errs := make([]error, len(items))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, item := range items {
		group.Go(func() error { errs[i] = f(item); return nil })
	}
	_ = group.Wait() // its functions keep their errors to errs
	return errs
}
