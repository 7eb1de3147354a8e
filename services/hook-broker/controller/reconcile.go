// Package controller observes machines, their tasks and the owners of hooks, has package plan decide about one machine
// or one owner at a time, and carries the plans out. It decides nothing itself.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/trace"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
)

const workers = 4 // keys at once: what they wait for is etcd

// Remover removes hooks from machines.
type Remover interface {
	// RemoveHook removes a hook from a machine if the machine is still as it was read.
	RemoveHook(ctx context.Context, machine *machinev1.Machine, h plan.Hook) error
}

// Caller calls the webhooks of owners.
type Caller interface {
	// Call posts a task to a webhook and returns its answer.
	Call(ctx context.Context, w *hookv1.HookWebhook, t *hookv1.HookTask) (plan.Answer, error)
}

// Config is what a controller works with; nothing in it may be nil.
type Config struct {
	Tables   *kinds.Tables
	Machines *informer.Informer[*machinev1.Machine]
	Hooks    Remover
	Webhooks Caller
	Presence *presence.Tracker
	Views    *Views
	Events   events.Sink
	Log      *slog.Logger
}

// Controller carries out what is planned for tasks and owners while this process leads. It has no timers or counters of
// its own.
type Controller struct {
	Config
	loops    *controller.Loops
	machines *controller.Loop // by namespace/name
	owners   *controller.Loop // by the owner as hooks name it
	webhooks *controller.Loop // by the name of the task
	calls    calls
}

// New returns a controller that does nothing before Lead.
func New(cfg Config) *Controller {
	c := &Controller{Config: cfg, loops: controller.New(cfg.Log)}
	c.machines = c.loops.Loop("machines", workers, c.ReconcileMachine)
	controller.For(c.machines, cfg.Machines)
	controller.Watches(c.machines, cfg.Tables.Tasks, machineOfTask)
	controller.Watches(c.machines, cfg.Tables.Owners, c.machinesOfOwner)
	c.owners = c.loops.Loop("owners", workers, c.ReconcileOwner)
	controller.Watches(c.owners, cfg.Machines, ownersOfHooks)
	controller.Watches(c.owners, cfg.Tables.Tasks, func(ch resource.Change[*hookv1.HookTask]) []string {
		return []string{ch.Object.GetSpec().GetOwner()}
	})
	controller.Watches(c.owners, cfg.Tables.Owners, func(ch resource.Change[*hookv1.HookOwner]) []string {
		return []string{ch.Object.GetSpec().GetOwner()}
	})
	c.owners.Begin(cfg.Presence.Owners)
	c.webhooks = c.loops.Loop("webhooks", webhookWorkers, c.CallWebhook)
	c.webhooks.Needs(cfg.Tables.Tasks, cfg.Tables.Owners)
	return c
}

// Lead works until ctx ends.
func (c *Controller) Lead(ctx context.Context) error {
	end := c.Presence.Lead(c.presenceChanged)
	defer end()
	return c.loops.Lead(ctx)
}

// machineOfTask returns the machine of a task. A task is removed only after its machine was reconciled.
func machineOfTask(ch resource.Change[*hookv1.HookTask]) []string {
	if ch.Deleted {
		return nil
	}
	return []string{kinds.MachineOf(ch.Object).String()}
}

// ownersOfHooks returns the owners that the hooks of a machine name, and those that they named before.
func ownersOfHooks(ch resource.Change[*machinev1.Machine]) []string {
	out := hookOwners(ch.Object)
	if ch.Existed {
		out = append(out, hookOwners(ch.Previous)...)
	}
	return out
}

// machinesOfOwner returns the machines that wait for an owner: their tasks say whether it is connected.
func (c *Controller) machinesOfOwner(ch resource.Change[*hookv1.HookOwner]) []string {
	if ch.Deleted {
		return nil
	}
	return c.waiting(ch.Object.GetSpec().GetOwner())
}

// presenceChanged has an owner reconciled, and the machines that wait for it.
func (c *Controller) presenceChanged(owner string) {
	c.owners.Add(owner)
	c.machines.Add(c.waiting(owner)...)
}

// waiting returns the machines with a task of an owner.
func (c *Controller) waiting(owner string) []string {
	var out []string
	for _, t := range c.Tables.TasksOfOwner(owner) {
		out = append(out, kinds.MachineOf(t).String())
	}
	return out
}

// ReconcileMachine brings the tasks of one machine closer to what they should be and returns when to decide again; zero
// means when something changes.
func (c *Controller) ReconcileMachine(ctx context.Context, key string) (time.Time, error) {
	v := c.Views.Machine(object.ParseKey(key))
	p := plan.Machine(v)
	for _, a := range p.Do {
		if a.Verb == plan.CreateTask {
			trace.Follow(a.Task.GetMetadata(), v.Machine.GetMetadata())
		}
	}
	if err := c.do(trace.Continue(ctx, v.Machine.GetMetadata()), p.Do); err != nil {
		return time.Time{}, fmt.Errorf("machine %q: %w", key, err)
	}
	return p.Wake, nil
}

// ReconcileOwner brings the object of one owner closer to what it should be and returns when to decide again; zero
// means when something changes.
func (c *Controller) ReconcileOwner(ctx context.Context, owner string) (time.Time, error) {
	p := plan.Owner(c.Views.Owner(owner))
	if err := c.do(ctx, p.Do); err != nil {
		return time.Time{}, fmt.Errorf("owner %q: %w", owner, err)
	}
	return p.Wake, nil
}
