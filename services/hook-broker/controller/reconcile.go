// Package controller brings the tasks of hooks and their owners to what package plan decides. It looks at one machine,
// or at one owner, at a time.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/controller"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/informer"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/kit/trace"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
)

const workers = 4 // looks at once: what they wait for is etcd

// Remover takes hooks off machines.
type Remover interface {
	// RemoveHook takes a hook off a machine; without effect if it is not there.
	RemoveHook(ctx context.Context, machine *metav1.ObjectReference, h plan.Hook) error
}

// Config is what a controller works with; nothing in it may be nil.
type Config struct {
	Tables   *kinds.Tables
	Machines *informer.Informer[*machinev1.Machine]
	Hooks    Remover
	Presence *presence.Tracker
	Events   events.Sink
	Now      func() time.Time
	Log      *slog.Logger
}

// Controller looks after tasks and owners while this process leads.
type Controller struct {
	Config
	loops    *controller.Loops
	machines *controller.Loop // by namespace/name
	owners   *controller.Loop // by the owner as hooks name it
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
	return []string{machineOf(ch.Object).String()}
}

// ownersOfHooks returns the owners that the hooks of a machine name.
func ownersOfHooks(ch resource.Change[*machinev1.Machine]) []string {
	var out []string
	for _, h := range plan.Hooks(ch.Object) {
		out = append(out, h.Owner)
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
	for _, t := range c.tasksOfOwner(owner) {
		out = append(out, machineOf(t).String())
	}
	return out
}

func (c *Controller) tasksOfOwner(owner string) []*hookv1.HookTask {
	return c.Tables.TasksOf(func(t *hookv1.HookTask) bool { return t.GetSpec().GetOwner() == owner })
}

func machineOf(t *hookv1.HookTask) object.Key {
	ref := t.GetSpec().GetMachineRef()
	return object.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}
}

// ReconcileMachine brings the tasks of one machine closer to what they should be and returns when to look again; zero
// means when something changes.
func (c *Controller) ReconcileMachine(ctx context.Context, key string) (time.Time, error) {
	v := c.observe(object.ParseKey(key))
	p := plan.Machine(v)
	for _, ch := range p.Create {
		trace.Follow(ch.Task.GetMetadata(), v.Machine.GetMetadata())
	}
	if err := c.act(trace.Continue(ctx, v.Machine.GetMetadata()), p); err != nil {
		return time.Time{}, fmt.Errorf("machine %q: %w", key, err)
	}
	return p.Wake, nil
}

func (c *Controller) observe(k object.Key) plan.View {
	v := plan.View{Now: c.Now().UTC(), Owners: map[string]plan.OwnerFacts{}}
	v.Machine, _ = c.Machines.Lookup(k.Namespace, k.Name)
	v.Tasks = c.Tables.TasksOf(func(t *hookv1.HookTask) bool { return machineOf(t) == k })
	for _, h := range plan.Holding(v.Machine) {
		v.Owners[h.Owner] = c.facts(h.Owner)
	}
	return v
}

// facts is what is stored of an owner and what is remembered of it, taken together.
func (c *Controller) facts(owner string) plan.OwnerFacts {
	var f plan.OwnerFacts
	if o, ok := c.Tables.Owner(owner); ok {
		f.Settings = o.GetSpec()
		if at := o.GetStatus().GetLastSeenTime(); at != nil {
			f.LastSeen = at.AsTime()
		}
	}
	connected, heard := c.Presence.Of(owner)
	f.Connected = connected
	if heard.After(f.LastSeen) {
		f.LastSeen = heard
	}
	return f
}

// act does what a plan says. One thing that does not work holds up none of the others.
func (c *Controller) act(ctx context.Context, p plan.Plan) error {
	var failed []error
	for _, t := range p.Remove {
		failed = append(failed, c.remove(ctx, t))
	}
	for _, ch := range p.Create {
		failed = append(failed, c.create(ctx, ch))
	}
	for _, ch := range p.Update {
		failed = append(failed, c.update(ctx, ch))
	}
	for _, t := range p.RemoveHooks {
		failed = append(failed, c.removeHook(ctx, t))
	}
	return errors.Join(failed...)
}

func (c *Controller) create(ctx context.Context, ch plan.Change) error {
	t, err := c.Tables.Tasks.Create(ctx, ch.Task)
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil // the cache is behind: it will show the task and bring us back
	}
	if err != nil {
		return fmt.Errorf("create task %q: %w", ch.Task.GetMetadata().GetName(), err)
	}
	c.Log.InfoContext(ctx, "hook waits for its owner", attributes(t)...)
	c.tell(t, ch.Tell)
	return nil
}

// update stores a task if it is still as it was read.
func (c *Controller) update(ctx context.Context, ch plan.Change) error {
	name, read := ch.Task.GetMetadata().GetName(), ch.Task.GetMetadata().GetResourceVersion()
	t, err := c.Tables.Tasks.Modify(ctx, object.Key{Name: name}, func(t *hookv1.HookTask) error {
		if t.GetMetadata().GetResourceVersion() != read {
			return rpcerr.Conflict("HookTask", name, "")
		}
		t.Spec, t.Status = ch.Task.GetSpec(), ch.Task.GetStatus()
		return nil
	})
	if err != nil {
		return rpcerr.IgnoreChanged(err)
	}
	c.tell(t, ch.Tell)
	return nil
}

func (c *Controller) remove(ctx context.Context, t *hookv1.HookTask) error {
	m := t.GetMetadata()
	_, err := c.Tables.Tasks.Delete(ctx, "", m.GetName(), &metav1.Preconditions{
		Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
	})
	if err != nil {
		return rpcerr.IgnoreChanged(err)
	}
	c.Log.InfoContext(ctx, "hook holds its machine no longer", attributes(t)...)
	return nil
}

// removeHook takes the hook of a completed task off its machine. The task stays until the machine is seen without the
// hook, so that no second task can come of an old view of the machine.
func (c *Controller) removeHook(ctx context.Context, t *hookv1.HookTask) error {
	spec := t.GetSpec()
	err := c.Hooks.RemoveHook(ctx, spec.GetMachineRef(), plan.Hook{
		Point: spec.GetPoint(), Name: spec.GetHookName(),
		Owner: spec.GetOwner(),
	})
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		c.tell(t,
			[]plan.Event{plan.About(t, "Warning", "HookRemovalFailed", "completed, but it cannot be removed from the machine: "+
				status.Convert(err).Message())})
	}
	return fmt.Errorf("remove hook %q: %w", spec.GetHookName(), err)
}

// ReconcileOwner brings the object of one owner closer to what it should be and returns when to look again; zero means
// when something changes.
func (c *Controller) ReconcileOwner(ctx context.Context, owner string) (time.Time, error) {
	v := plan.OwnerView{Now: c.Now().UTC(), Owner: owner, Tasks: c.tasksOfOwner(owner)}
	v.Connected, v.Heard = c.Presence.Of(owner)
	var ok bool
	if v.Object, ok = c.Tables.Owner(owner); !ok {
		v.Object, v.Named = nil, c.named(owner)
	}
	p := plan.Owner(v)
	err := c.writeOwner(ctx, v.Object, p)
	if err != nil {
		return time.Time{}, fmt.Errorf("owner %q: %w", owner, err)
	}
	return p.Wake, nil
}

func (c *Controller) writeOwner(ctx context.Context, have *hookv1.HookOwner, p plan.OwnerPlan) error {
	if p.Create != nil {
		_, err := c.Tables.Owners.Create(ctx, p.Create)
		if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
			return nil
		}
		return err
	}
	if p.Status == nil || proto.Equal(have.GetStatus(), p.Status) {
		return nil
	}
	next := object.Clone(have)
	next.Status = p.Status
	_, err := c.Tables.Owners.UpdateStatus(ctx, next)
	if err == nil && have.GetStatus().GetConnected() != p.Status.GetConnected() {
		c.Log.InfoContext(ctx, "hook owner", "owner", have.GetSpec().GetOwner(), "connected", p.Status.GetConnected())
	}
	return rpcerr.IgnoreChanged(err)
}

// named reports whether a hook of any machine names an owner.
func (c *Controller) named(owner string) bool {
	for m := range c.Machines.Objects() {
		for _, h := range plan.Hooks(m) {
			if h.Owner == owner {
				return true
			}
		}
	}
	return false
}

func (c *Controller) tell(t *hookv1.HookTask, events []plan.Event) {
	for _, e := range events {
		c.Events.Event(kinds.Subject(t), e.Type, e.Reason, e.Message)
	}
}

func attributes(t *hookv1.HookTask) []any {
	s := t.GetSpec()
	return []any{"machine", machineOf(t).String(), "point", s.GetPoint(), "hook", s.GetHookName(), "owner", s.GetOwner()}
}
