// Package controller observes the hosts and their agents, has package plan decide about one host at a time, and carries
// the plan out: it stores that a host is Lost, and sends its agent the present order.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	hostv1 "github.com/windlass-dev/windlass/gen/windlass/host/v1"
	"github.com/windlass-dev/windlass/kit/clusteroperator"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/provider-inventory/attend"
	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
	"github.com/windlass-dev/windlass/services/provider-inventory/records"
)

const (
	workers     = 4                // hosts at once: what they wait for is etcd
	sweepEvery  = time.Hour        // tokens are kept for days
	resealEvery = 10 * time.Second // as kit/resource does
	tokens      = "tokens"         // the only key of the loop that sweeps them
	bootstraps  = "bootstraps"     // the only key of the loop that encrypts them again
	rotation    = "rotation"       // the only key of the loop that takes the steps of one
	rotateEvery = time.Second      // is short compared with a step, and one read of etcd
	access      = "access"         // the only key of the loop that compares the files of hosts with what is recorded
	accessEvery = 5 * time.Second  // is short compared with the time that hosts have, and one read of etcd
)

// Config is what a controller works with; nothing in it but Host may be nil or zero.
type Config struct {
	Records *records.Records
	Agents  *attend.Registry
	Silence time.Duration // after which a host is Lost
	Events  events.Sink
	Host    string // of this process; empty where services do not find each other in etcd
	Now     func() time.Time
	Log     *slog.Logger
}

// Controller carries out what is planned for hosts while this process leads.
type Controller struct {
	Config
	loops *controller.Loops
	hosts *controller.Loop // by name
	fault atomic.Pointer[accessFault]
}

// accessFault is what is wrong with the files of hosts.
type accessFault struct{ reason, message string }

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.hosts = c.loops.Loop("hosts", workers, c.Reconcile)
	controller.Watches(c.hosts, cfg.Records.Hosts, func(ch resource.Change[*hostv1.Host]) []string {
		c.report(ch)
		return []string{ch.Object.GetMetadata().GetName()}
	})
	sweep := c.loops.Loop(tokens, 1, c.Sweep)
	sweep.Begin(func() []string { return []string{tokens} })
	reseal := c.loops.Loop(bootstraps, 1, c.Reseal)
	reseal.Begin(func() []string { return []string{bootstraps} })
	rotations := c.loops.Loop(rotation, 1, c.Rotate)
	rotations.Begin(func() []string { return []string{rotation} })
	rotations.Needs(cfg.Records.Hosts)
	files := c.loops.Loop(access, 1, c.CompareAccess)
	files.Begin(func() []string { return []string{access} })
	controller.Watches(files, cfg.Records.Hosts, func(resource.Change[*hostv1.Host]) []string { return []string{access} })
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	end := c.Agents.Lead(ctx, func(host string) { c.hosts.Add(host) })
	defer end()
	return c.loops.Lead(ctx)
}

// Reconcile decides about one host and returns when to decide again; zero means when something changes.
func (c *Controller) Reconcile(ctx context.Context, name string) (time.Time, error) {
	h, _ := c.Records.Hosts.Lookup("", name)
	v := plan.View{Now: c.Now(), Host: h, Silence: c.Silence}
	v.Last, v.Since = c.Agents.Of(name)
	p := plan.Watch(v)
	var errs []error
	for _, a := range p.Do { // an order that cannot be sent does not keep the host from being Lost
		if err := c.act(ctx, h, a); err != nil {
			errs = append(errs, fmt.Errorf("host %q: %w", name, err))
		}
	}
	return p.Wake, errors.Join(errs...)
}

func (c *Controller) act(ctx context.Context, h *hostv1.Host, a plan.Action) error {
	name := h.GetMetadata().GetName()
	if a.Verb == plan.StoreStatus {
		_, err := c.Records.Replace(ctx, h, records.Change{Status: a.Status})
		return rpcerr.IgnoreChanged(err) // the change leads to another decision
	}
	if a.Order.GetType() == hostv1.HostOrder_TYPE_CLAIM {
		b, err := c.Records.Bootstrap(ctx, name)
		if err != nil {
			return err
		}
		if b == nil {
			return nil // the machine has started, or the claim ended; that leads to another decision
		}
		a.Order.Bootstrap = b
	}
	c.Agents.Send(name, a.Order)
	return nil
}

// Sweep forgets request tokens that are kept no longer.
func (c *Controller) Sweep(ctx context.Context, _ string) (time.Time, error) {
	now := c.Now()
	return now.Add(sweepEvery), c.Records.Sweep(ctx, now)
}

// Reseal encrypts bootstraps again after a rotation of the record keys.
func (c *Controller) Reseal(ctx context.Context, _ string) (time.Time, error) {
	return c.Now().Add(resealEvery), c.Records.Reseal(ctx)
}

// Rotate takes the next step of a rotation once all hosts have completed the present one.
func (c *Controller) Rotate(ctx context.Context, _ string) (time.Time, error) {
	again := c.Now().Add(rotateEvery)
	r, revision, err := c.Records.Rotation(ctx)
	if err != nil || r == nil {
		return again, err
	}
	if err := c.Records.Hosts.CatchUp(ctx); err != nil { // a host that has just joined has to follow, too
		return again, err
	}
	p := plan.Rotate(plan.RotationView{
		Now: c.Now(), Rotation: r, Hosts: c.Records.Hosts.All(), Unreadable: c.Records.Unreadable(),
	})
	switch p.Verb {
	case plan.AdvanceRotation:
		err = c.Records.PutRotation(ctx, p.Next, revision)
	case plan.FinishRotation:
		err = c.Records.EndRotation(ctx, revision)
	default:
		return again, nil
	}
	if err == nil {
		c.Log.InfoContext(ctx, "rotation of an authority", "authority", r.GetAuthority(), "action", p.Verb, "completed",
			r.GetStep().String(), "reason", p.Reason)
	}
	return again, err
}

// CompareAccess compares what the control-plane hosts reported of their policy and bearer tokens with what is recorded.
func (c *Controller) CompareAccess(ctx context.Context, _ string) (time.Time, error) {
	now := c.Now()
	a, _, err := c.Records.Access(ctx)
	if err != nil {
		return now.Add(accessEvery), err
	}
	reason, message := plan.AccessFault(plan.AccessView{Now: now, Access: a, Leader: c.Host}, c.Records.Hosts.All())
	c.fault.Store(&accessFault{reason, message})
	return now.Add(accessEvery), nil
}

// Operator returns the state of the service, which has what CompareAccess found besides ready.
func (c *Controller) Operator(ready func(context.Context) clusteroperator.State,
) func(context.Context) clusteroperator.State {
	return func(ctx context.Context) clusteroperator.State {
		s := ready(ctx)
		if f := c.fault.Load(); !s.Degraded && f != nil && f.reason != "" {
			s.Degraded, s.Reason, s.Message = true, f.reason, f.message
		}
		return s
	}
}

// report records that the phase of a host changed.
func (c *Controller) report(ch resource.Change[*hostv1.Host]) {
	now, before := ch.Object.GetStatus(), ch.Previous.GetStatus()
	if !ch.Existed || ch.Deleted || now.GetPhase() == before.GetPhase() {
		return
	}
	typ := "Normal"
	if now.GetUnblock() != "" {
		typ = "Warning"
	}
	c.Events.Event(ch.Object, typ, "Host"+now.GetPhase(), now.GetMessage())
	c.Log.Info("host changed", "host", ch.Object.GetMetadata().GetName(), "phase", now.GetPhase(), "machine",
		now.GetMachineRef().GetName())
}
