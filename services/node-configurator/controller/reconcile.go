// Package controller renders the configuration of pools and rolls it over their nodes, as package plan decides. Nothing
// of a roll-out is kept in memory: it goes on from the marks on nodes and their drains, whoever began it.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/version"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

const (
	poolWorkers = 2
	nodeWorkers = 4 // looks at once: what they wait for is eviction-controller
	// keepUnused is how many rendered configurations of a pool stay that nobody points at: enough to look back a little.
	keepUnused = 5
)

// Config is what a controller works with; nothing in it may be nil.
type Config struct {
	Tables   *kinds.Tables
	Peer     *Peer
	Observer *Observer
	Events   events.Sink
	Settle   time.Duration // how long after a change of machine configurations they are rendered
	Now      func() time.Time
	Log      *slog.Logger
}

// Controller looks after pools and their nodes while this process leads.
type Controller struct {
	Config
	loops *controller.Loops
	pools *controller.Loop
	nodes *controller.Loop

	mu      sync.Mutex
	changed time.Time // when a machine configuration changed last
}

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.pools = c.loops.Loop("pools", poolWorkers, c.ReconcilePool)
	c.pools.Begin(c.poolNames)
	c.nodes = c.loops.Loop("nodes", nodeWorkers, c.ReconcileNode)
	controller.For(c.nodes, cfg.Peer.Nodes)
	controller.Watches(c.nodes, cfg.Peer.Drains, nodeOfDrain)
	// A pool's nodes are those that no other pool selects, and one's update waits for the other's: each change may
	// concern all pools.
	cfg.Tables.Configs.Subscribe(c.configChanged)
	cfg.Tables.Pools.Subscribe(func(ch resource.Change[*configv1.MachineConfigPool]) {
		c.pools.Add(ch.Key.Name)
		c.addPools()
	})
	cfg.Peer.Nodes.Subscribe(func(resource.Change[*nodev1.Node]) { c.addPools() })
	cfg.Peer.Drains.Subscribe(func(ch resource.Change[*nodev1.Drain]) {
		if len(nodeOfDrain(ch)) > 0 {
			c.addPools()
		}
	})
	for _, l := range []*controller.Loop{c.pools, c.nodes} {
		l.Needs(cfg.Tables.Configs, cfg.Tables.Pools, cfg.Peer.Nodes, cfg.Peer.Drains)
	}
	return c
}

func (c *Controller) configChanged(ch resource.Change[*configv1.MachineConfig]) {
	if plan.IsRendered(ch.Key.Name) {
		return // made by this service, on the way to what it does next
	}
	c.mu.Lock()
	c.changed = c.Now()
	c.mu.Unlock()
	c.addPools()
}

// nodeOfDrain returns the node of a drain that is this service's own.
func nodeOfDrain(ch resource.Change[*nodev1.Drain]) []string {
	if node, ok := strings.CutPrefix(ch.Key.Name, plan.DrainPrefix); ok {
		return []string{node}
	}
	return nil
}

func (c *Controller) addPools() { c.pools.Add(c.poolNames()...) }

// poolNames returns the names of all pools, also of those that are gone and left a rendered configuration, which may be
// in use no longer. A name may come more than once.
func (c *Controller) poolNames() []string {
	out := c.Tables.Pools.Keys()
	for cfg := range c.Tables.Configs.Objects() {
		if owner := object.ControllerOf(cfg); plan.IsRendered(cfg.GetMetadata().GetName()) && owner != nil {
			out = append(out, owner.GetName())
		}
	}
	return out
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error { return c.loops.Lead(ctx) }

// ReconcilePool brings one pool closer to what it should be and returns when to look again; zero means when something
// changes.
func (c *Controller) ReconcilePool(ctx context.Context, name string) (time.Time, error) {
	pool, ok := c.Tables.Pools.Lookup("", name)
	if !ok || object.Deleting(pool) {
		c.Observer.Forget(name)
		return time.Time{}, c.sweep(ctx, name, 0)
	}
	wake := c.settled()
	failure := ""
	if wake.IsZero() {
		rendered, err := c.Observer.Render(pool)
		if err != nil {
			failure = err.Error()
		} else if pool, err = c.aim(ctx, pool, rendered); err != nil {
			return wake, rpcerr.IgnoreChanged(err)
		}
	}
	v := c.Observer.View(pool, nil)
	v.Failure, v.Settling = failure, !wake.IsZero()
	p := plan.Pool(v)
	err := c.act(ctx, pool, p)
	if p.Completed && err == nil {
		err = c.sweep(ctx, name, keepUnused)
	}
	return wake, err
}

// settled returns when what was changed will have settled; zero if it has.
func (c *Controller) settled() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.changed.Add(c.Settle); at.After(c.Now()) {
		return at
	}
	return time.Time{}
}

// aim makes a rendered configuration the target of its pool, and returns the pool as it is then.
func (c *Controller) aim(ctx context.Context, pool *configv1.MachineConfigPool,
	r plan.Rendered,
) (*configv1.MachineConfigPool, error) {
	name := r.Config.GetMetadata().GetName()
	if err := c.keep(ctx, pool, r); err != nil {
		return pool, fmt.Errorf("machine config %q: %w", name, err)
	}
	target := &configv1.MachineConfigPoolConfiguration{Name: name}
	for _, s := range r.Sources {
		target.Source = append(target.Source, &metav1.ObjectReference{
			ApiVersion: r.Config.GetApiVersion(),
			Kind:       r.Config.GetKind(), Name: s,
		})
	}
	if proto.Equal(target, pool.GetSpec().GetConfiguration()) {
		return pool, nil
	}
	next := object.Clone(pool)
	next.Spec.Configuration = target
	return c.Tables.Pools.Update(ctx, next)
}

// keep stores a rendered configuration, if it is not there yet.
func (c *Controller) keep(ctx context.Context, pool *configv1.MachineConfigPool, r plan.Rendered) error {
	name := r.Config.GetMetadata().GetName()
	if _, ok := c.Tables.Configs.Lookup("", name); ok {
		return nil
	}
	cfg := object.Clone(r.Config)
	cfg.Metadata.Annotations = map[string]string{plan.GeneratedBy: version.Number}
	cfg.Metadata.OwnerReferences = []*metav1.OwnerReference{object.OwnedBy(pool)}
	_, err := c.Tables.Configs.Create(ctx, cfg)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	if err != nil {
		return err
	}
	c.Log.InfoContext(ctx, "configuration rendered", "pool", pool.GetMetadata().GetName(), "config", name)
	c.Events.Event(pool, "Normal", "RenderedConfigGenerated",
		fmt.Sprintf("%s made from %s", name, strings.Join(r.Sources, ", ")))
	return nil
}

// act does what the plan for a pool says. One node that cannot be told holds up none of the others.
func (c *Controller) act(ctx context.Context, pool *configv1.MachineConfigPool, p plan.Rollout) error {
	target := pool.GetSpec().GetConfiguration().GetName()
	var broken []error
	for _, name := range p.Next {
		node, ok := c.Peer.Nodes.Lookup("", name)
		if !ok {
			continue
		}
		if _, err := c.Peer.Mark(ctx, node, plan.Target(target)); err != nil {
			broken = append(broken, rpcerr.IgnoreChanged(err))
			continue
		}
		c.Log.InfoContext(ctx, "node targeted", "node", name, "config", target)
		c.Events.Event(pool, "Normal", "SetDesiredConfig", fmt.Sprintf("Targeted node %s to MachineConfig: %s", name, target))
	}
	return errors.Join(append(broken, c.report(ctx, pool, p))...)
}

// report stores the status of a pool.
func (c *Controller) report(ctx context.Context, pool *configv1.MachineConfigPool, p plan.Rollout) error {
	if proto.Equal(pool.GetStatus(), p.Status) {
		return nil
	}
	next := object.Clone(pool)
	next.Status = p.Status
	if _, err := c.Tables.Pools.UpdateStatus(ctx, next); err != nil {
		return rpcerr.IgnoreChanged(err)
	}
	if p.Completed {
		name, config := pool.GetMetadata().GetName(), p.Status.GetConfiguration().GetName()
		c.Log.InfoContext(ctx, "pool updated", "pool", name, "config", config)
		c.Events.Event(pool, "Normal", "Completed", fmt.Sprintf("Pool %s has completed update to MachineConfig %s", name,
			config))
	}
	return nil
}

// sweep removes rendered configurations of a pool that nobody points at, but for the newest few.
func (c *Controller) sweep(ctx context.Context, pool string, keep int) error {
	var unused []*configv1.MachineConfig
	for cfg := range c.Tables.Configs.Objects() {
		name := cfg.GetMetadata().GetName()
		if plan.IsRendered(name) && object.ControllerOf(cfg).GetName() == pool && len(c.Tables.UsersOf(name)) == 0 {
			unused = append(unused, cfg)
		}
	}
	slices.SortFunc(unused, func(a, b *configv1.MachineConfig) int {
		x, y := a.GetMetadata(), b.GetMetadata()
		return cmp.Or(y.GetCreationTimestamp().AsTime().Compare(x.GetCreationTimestamp().AsTime()),
			strings.Compare(x.GetName(), y.GetName()))
	})
	for len(unused) > keep {
		m := unused[len(unused)-1].GetMetadata()
		unused = unused[:len(unused)-1]
		if _, err := c.Tables.Configs.Delete(ctx, "", m.GetName(), &metav1.Preconditions{
			Uid: m.GetUid(),
		}); rpcerr.IgnoreChanged(err) != nil {
			return fmt.Errorf("machine config %q: %w", m.GetName(), err)
		}
	}
	return nil
}

// ReconcileNode takes the next step of one node.
func (c *Controller) ReconcileNode(ctx context.Context, name string) (time.Time, error) {
	v := c.Observer.Node(name)
	s := plan.Node(v)
	var err error
	switch {
	case s.DeleteDrain:
		if err = c.Peer.DeleteDrain(ctx, v.Drain); err == nil {
			c.Log.InfoContext(ctx, "drain no longer needed", "node", name)
		}
	case s.CreateDrain != "":
		if err = c.Peer.CreateDrain(ctx, name, s.CreateDrain); err == nil {
			c.Log.InfoContext(ctx, "drain asked for", "node", name, "reason", s.CreateDrain)
		}
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("node %q: %w", name, err)
	}
	return time.Time{}, nil
}

// Operator says how the cluster's machine configuration is, from what is stored of its pools.
func (c *Controller) Operator(context.Context) clusteroperator.State {
	if !c.Tables.Pools.IsSynced() {
		return clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "the service is not ready"}
	}
	s := clusteroperator.State{Available: true}
	var degraded, updating []string
	for p := range c.Tables.Pools.Objects() {
		name := p.GetMetadata().GetName()
		conditions := p.GetStatus().GetConditions()
		if d := object.FindCondition(conditions, plan.ConditionDegraded); d.GetStatus() == "True" {
			degraded = append(degraded, fmt.Sprintf("pool %s is degraded: %s", name, d.GetMessage()))
		}
		if object.IsTrue(conditions, plan.ConditionUpdating) {
			updating = append(updating, fmt.Sprintf("pool %s is updating to %s: %s", name,
				p.GetSpec().GetConfiguration().GetName(),
				object.FindCondition(conditions, plan.ConditionUpdated).GetMessage()))
		}
	}
	s.Degraded, s.Progressing = len(degraded) > 0, len(updating) > 0
	s.Message = strings.Join(append(degraded, updating...), "; ")
	switch {
	case s.Degraded:
		s.Reason = "PoolDegraded"
	case s.Progressing:
		s.Reason = "PoolUpdating"
	}
	return s
}
