// Package controller carries out the plans of machine-api: it observes, asks package plan, writes the outcome and acts.
// Every step may be taken again after a crash at any point. Only the leader runs it.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	providerv1 "github.com/windlass-dev/windlass/gen/windlass/provider/v1"
	"github.com/windlass-dev/windlass/kit/reconcile"
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

// Recorder takes events for people.
type Recorder interface {
	Event(obj resource.Object, typ, reason, message string)
}

// Copy is a copy of another service's objects, kept in step by an informer.
type Copy[T resource.Object] interface {
	Lookup(namespace, name string) (T, bool)
	All() []T
	Subscribe(func(resource.Key))
	Synced() <-chan struct{}
}

// Bootstrap makes what a new instance joins the cluster with.
type Bootstrap interface {
	For(ctx context.Context, m *machinev1.Machine) (*providerv1.Bootstrap, error)
	// Forget removes what was kept about a machine's token.
	Forget(ctx context.Context, machineUID string) error
}

// Config is what the controllers stand on.
type Config struct {
	Tables    *kinds.Tables
	Providers *provider.Set
	Nodes     Copy[*nodev1.Node]
	Drains    Copy[*nodev1.Drain]
	Eviction  grpc.ClientConnInterface // to eviction-controller, which owns both
	Bootstrap Bootstrap
	Events    Recorder
	Reserved  []netip.Prefix   // addresses of the cluster's own programs, which no instance may have
	Now       func() time.Time // nil means time.Now
	Log       *slog.Logger
}

// Controller is all controllers of machine-api.
type Controller struct {
	Config
	nodes  nodev1.NodeServiceClient
	drains nodev1.DrainServiceClient

	machines, sets, controlPlanes, garbage *reconcile.Loop

	mu           sync.Mutex
	createErrors map[string]string // by uid of the machine: why its instance could not be made last
}

// New returns the controllers. They hear of changes from now on and act while Run runs.
func New(cfg Config) *Controller {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Controller{
		Config: cfg, nodes: nodev1.NewNodeServiceClient(cfg.Eviction), drains: nodev1.NewDrainServiceClient(cfg.Eviction),
		createErrors: map[string]string{},
	}
	c.machines = reconcile.NewLoop("machine", workers, cfg.Tables.Machines.Keys, quietly(c.reconcileMachine), cfg.Log)
	c.sets = reconcile.NewLoop("machineset", workers, cfg.Tables.Sets.Keys, quietly(c.reconcileSet), cfg.Log)
	c.controlPlanes = reconcile.NewLoop("controlplanemachineset", 1, cfg.Tables.ControlPlanes.Keys, quietly(c.reconcileControlPlane), cfg.Log)
	c.garbage = reconcile.NewLoop("garbage", workers, cfg.Tables.Machines.Keys, quietly(c.reconcileOwners), cfg.Log)
	c.subscribe()
	return c
}

// quietly marks what a loop has no need to warn of: that somebody else was faster.
func quietly(f reconcile.Func) reconcile.Func {
	return func(ctx context.Context, key string) (time.Time, error) {
		wake, err := f(ctx, key)
		if status.Code(err) == codes.Aborted {
			err = fmt.Errorf("%w: %w", store.ErrConflict, err)
		}
		return wake, err
	}
}

// subscribe says which objects each change makes worth a look.
func (c *Controller) subscribe() {
	c.Tables.Machines.Subscribe(c.machineChanged)
	c.Tables.Sets.Subscribe(func(k resource.Key) {
		c.sets.Add(k.String())
		if _, there := c.Tables.Sets.Lookup(k.Namespace, k.Name); !there {
			c.ownerGone(k)
		}
	})
	c.Tables.ControlPlanes.Subscribe(func(k resource.Key) {
		c.controlPlanes.Add(k.String())
		if _, there := c.Tables.ControlPlanes.Lookup(k.Namespace, k.Name); !there {
			c.ownerGone(k)
		}
	})
	c.Providers.Subscribe(func(uid string) {
		for _, m := range c.Tables.Machines.All() {
			if m.GetMetadata().GetUid() == uid {
				c.machines.Add(resource.KeyOf(m).String())
			}
		}
	})
	c.Nodes.Subscribe(func(k resource.Key) { c.nodeChanged(k.Name) })
	c.Drains.Subscribe(func(k resource.Key) {
		if d, ok := c.Drains.Lookup("", k.Name); ok {
			c.machines.Add(resource.Key{Namespace: d.GetSpec().GetMachineRef().GetNamespace(), Name: d.GetSpec().GetMachineRef().GetName()}.String())
		}
	})
}

func (c *Controller) machineChanged(k resource.Key) {
	c.machines.Add(k.String())
	c.garbage.Add(k.String())
	m, ok := c.Tables.Machines.Lookup(k.Namespace, k.Name)
	if !ok {
		// Whose it was is no longer known; a set that is in order does nothing when it is looked at.
		c.allSets(k.Namespace)
		return
	}
	c.ownersOf(m)
}

// ownersOf has the set of a machine looked at, or every set that might adopt it.
func (c *Controller) ownersOf(m *machinev1.Machine) {
	ns := m.GetMetadata().GetNamespace()
	if plan.Role(m) == plan.RoleMaster {
		c.controlPlanes.Add(resource.Key{Namespace: ns, Name: kinds.ClusterName}.String())
	}
	owner := resource.ControllerOf(m)
	switch {
	case owner == nil:
		c.allSets(ns)
	case owner.GetKind() == c.Tables.Sets.Type().GetKind():
		c.sets.Add(resource.Key{Namespace: ns, Name: owner.GetName()}.String())
	}
}

// allSets has the sets of a namespace looked at that have or want machines; a set of none has nothing to gain or lose.
func (c *Controller) allSets(namespace string) {
	for _, s := range c.Tables.Sets.All() {
		if s.GetMetadata().GetNamespace() == namespace && (s.GetSpec().GetReplicas() > 0 || s.GetStatus().GetReplicas() > 0) {
			c.sets.Add(resource.KeyOf(s).String())
		}
	}
	c.controlPlanes.Add(resource.Key{Namespace: namespace, Name: kinds.ClusterName}.String())
}

// ownerGone has the machines looked at that belonged to a set which is gone.
func (c *Controller) ownerGone(set resource.Key) {
	for _, m := range c.Tables.Machines.All() {
		for _, o := range m.GetMetadata().GetOwnerReferences() {
			if o.GetName() == set.Name && m.GetMetadata().GetNamespace() == set.Namespace {
				c.garbage.Add(resource.KeyOf(m).String())
			}
		}
	}
}

func (c *Controller) nodeChanged(name string) {
	node, _ := c.Nodes.Lookup("", name)
	for _, m := range c.Tables.Machines.All() {
		if m.GetMetadata().GetName() == name || m.GetStatus().GetNodeRef().GetName() == name || node != nil && sameInstance(m, node) {
			c.machines.Add(resource.KeyOf(m).String())
			c.ownersOf(m)
		}
	}
	for _, s := range c.Tables.ControlPlanes.All() {
		c.controlPlanes.Add(resource.KeyOf(s).String())
	}
}

func sameInstance(m *machinev1.Machine, n *nodev1.Node) bool {
	id := m.GetSpec().GetProviderId()
	return id != "" && id == n.GetSpec().GetProviderId()
}

// Run acts until ctx ends. The tables must be running; Run itself waits until they show all that was written before.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.Tables.CatchUp(ctx); err != nil {
		return fmt.Errorf("catch up: %w", err)
	}
	c.mu.Lock()
	clear(c.createErrors) // machines of an earlier term may have gone while another process led
	c.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range []*reconcile.Loop{c.machines, c.sets, c.controlPlanes, c.garbage} {
		group.Go(func() error { return l.Run(ctx) })
	}
	return group.Wait()
}

// nodesByName returns all nodes; ok is false while nobody could say which there are.
func (c *Controller) nodesByName() (map[string]*nodev1.Node, bool) {
	if !closed(c.Nodes.Synced()) {
		return nil, false
	}
	out := map[string]*nodev1.Node{}
	for _, n := range c.Nodes.All() {
		out[n.GetMetadata().GetName()] = n
	}
	return out, true
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// machinesIn returns the machines of a namespace, by name.
func (c *Controller) machinesIn(namespace string) []*machinev1.Machine {
	var out []*machinev1.Machine
	for _, m := range c.Tables.Machines.All() {
		if m.GetMetadata().GetNamespace() == namespace {
			out = append(out, m)
		}
	}
	return out
}

// modify writes an object that is still as it was when the decision was made.
func modify[T resource.Object](ctx context.Context, t *resource.Table[T], seen T, f func(T)) (T, error) {
	out, err := t.Modify(ctx, resource.KeyOf(seen), func(obj T) error {
		m, was := obj.GetMetadata(), seen.GetMetadata()
		if m.GetUid() != was.GetUid() || m.GetResourceVersion() != was.GetResourceVersion() {
			return fmt.Errorf("%s %q: %w", t.Type().GetKind(), m.GetName(), store.ErrConflict)
		}
		f(obj)
		return nil
	})
	return out, err
}

// inParallel calls f for each item, several at a time, and returns all errors joined. One that fails does not stop the others.
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
