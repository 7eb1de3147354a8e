// Package controller observes machine configurations, pools, nodes and drains, has package plan decide about one pool
// or one node at a time, and carries the plans out. Nothing of a roll-out is kept in memory: another process continues
// it from the marks on nodes and their drains.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/node-configurator/kinds"
	"github.com/windlass-dev/windlass/services/node-configurator/plan"
)

const (
	poolWorkers = 2
	nodeWorkers = 4 // nodes at once: what they wait for is eviction-controller
)

// Config is what a controller works with; nothing in it may be nil.
type Config struct {
	Tables *kinds.Tables
	Peer   *Peer
	Views  *Views
	Events events.Sink
	Log    *slog.Logger
}

// Controller carries out what is planned for pools and their nodes while this process leads. It has no timers or
// counters of its own.
type Controller struct {
	Config
	loops *controller.Loops
	pools *controller.Loop
	nodes *controller.Loop

	settings *controller.Loop
}

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.pools = c.loops.Loop("pools", poolWorkers, c.ReconcilePool)
	c.pools.Begin(c.poolNames)
	c.nodes = c.loops.Loop("nodes", nodeWorkers, c.ReconcileNode)
	c.settings = c.loops.Loop("settings", 1, c.ReconcileSettings)
	controller.For(c.settings, cfg.Tables.Settings)
	cfg.Tables.Settings.Subscribe(func(ch resource.Change[*configv1.MachineConfiguration]) {
		if !ch.Deleted && proto.Equal(ch.Previous.GetSpec(), ch.Object.GetSpec()) {
			return // its status
		}
		for n := range cfg.Peer.Nodes.Objects() {
			c.nodes.Add(n.GetMetadata().GetName()) // what its change requires may be another by the policies
		}
	})
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
	cfg.Views.window.Subscribe(func(resource.Change[*updatev1.MaintenanceWindow]) {
		c.addPools()
		for n := range cfg.Peer.Nodes.Objects() {
			c.nodes.Add(n.GetMetadata().GetName()) // it may wait for a window before it is drained
		}
	})
	for _, l := range []*controller.Loop{c.pools, c.nodes} {
		l.Needs(cfg.Tables.Configs, cfg.Tables.Pools, cfg.Tables.Settings, cfg.Peer.Nodes, cfg.Peer.Drains)
	}
	return c
}

func (c *Controller) configChanged(ch resource.Change[*configv1.MachineConfig]) {
	if plan.IsRendered(ch.Key.Name) {
		if ch.Deleted || object.Deleting(ch.Object) {
			c.addPools() // one may be held at it
		}
		return // else it was made by this service, on the way to what it does next
	}
	c.Views.configChanged()
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

// ReconcilePool brings one pool closer to what it should be and returns when to decide again; zero means when something
// changes.
func (c *Controller) ReconcilePool(ctx context.Context, name string) (time.Time, error) {
	for {
		pool, ok := c.Tables.Pools.Lookup("", name)
		if !ok || object.Deleting(pool) {
			p, _ := plan.Pool(c.Views.Gone(name))
			return p.Wake, c.do(ctx, nil, p.Do)
		}
		p, _ := plan.Pool(c.Views.Pool(pool, nil))
		if p.Aimed() == nil {
			return p.Wake, c.do(ctx, pool, p.Do)
		}
		if err := c.act(ctx, pool, p.Do[0]); err != nil {
			return p.Wake, rpcerr.IgnoreChanged(err)
		}
	}
}

// ReconcileNode takes the next step of one node.
func (c *Controller) ReconcileNode(ctx context.Context, name string) (time.Time, error) {
	p := plan.Node(c.Views.Node(name))
	return p.Wake, c.do(ctx, nil, p.Do)
}

// ReconcileSettings has the status of the settings say what is in force.
func (c *Controller) ReconcileSettings(ctx context.Context, name string) (time.Time, error) {
	is, ok := c.Tables.Settings.Lookup("", name)
	if !ok || object.Deleting(is) {
		return time.Time{}, nil
	}
	next := object.Clone(is)
	if next.Status = plan.PolicyStatus(is); proto.Equal(is.GetStatus(), next.GetStatus()) {
		return time.Time{}, nil
	}
	_, err := c.Tables.Settings.UpdateStatus(ctx, next)
	return time.Time{}, rpcerr.IgnoreChanged(err)
}

// Operator says how the cluster's machine configuration is, from what is stored of its pools.
func (c *Controller) Operator(context.Context) clusteroperator.State {
	if !c.Tables.Pools.IsSynced() {
		return clusteroperator.State{Degraded: true, Reason: "NotReady", Message: "the service is not ready"}
	}
	s := clusteroperator.State{Available: true}
	if p, ok := c.Tables.Pools.Lookup("", plan.MasterPool); ok {
		s.Version = p.GetMetadata().GetAnnotations()[clusteroperator.ReleaseAnnotation]
	}
	var degraded, updating, paused, pinned []string
	for p := range c.Tables.Pools.Objects() {
		name := p.GetMetadata().GetName()
		conditions := p.GetStatus().GetConditions()
		if d := object.FindCondition(conditions, plan.ConditionDegraded); d.GetStatus() == "True" {
			degraded = append(degraded, fmt.Sprintf("pool %s is degraded: %s", name, d.GetMessage()))
		}
		if pause := plan.Paused(p, time.Now()); pause != nil {
			paused = append(paused, fmt.Sprintf("%s; windlass rollout resume machineconfigpool/%s lets its nodes go on",
				plan.PauseText(p, pause), name))
		}
		if p.GetSpec().GetPin() != nil {
			pinned = append(pinned, plan.PinText(p))
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
	switch objections := strings.Join(slices.Concat(degraded, paused, pinned), "; "); {
	case len(degraded) > 0:
		s.Objection = clusteroperator.Objection{Reason: "PoolDegraded", Message: objections}
	case len(paused) > 0:
		s.Objection = clusteroperator.Objection{Reason: "PoolPaused", Message: objections}
	case len(pinned) > 0:
		s.Objection = clusteroperator.Objection{Reason: "PoolPinned", Message: objections}
	}
	return s
}
