package controller

import (
	"context"
	"errors"
	"fmt"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
)

// do carries out all actions of a plan; one that fails holds up none of the others. An object that changed after it was
// read is no error: the change leads to another decision.
func (c *Controller) do(ctx context.Context, actions []plan.Action) error {
	var failed []error
	for _, a := range actions {
		failed = append(failed, rpcerr.IgnoreChanged(c.act(ctx, a)))
	}
	return errors.Join(failed...)
}

func (c *Controller) act(ctx context.Context, a plan.Action) error {
	switch a.Verb {
	case plan.CreateTask:
		return c.createTask(ctx, a)
	case plan.StoreTask:
		return c.storeTask(ctx, a)
	case plan.RemoveTask:
		return c.removeTask(ctx, a.Task)
	case plan.RemoveHook:
		return c.removeHook(ctx, a)
	case plan.CallWebhook:
		c.webhooks.Add(a.Task.GetMetadata().GetName())
		return nil
	case plan.CreateOwner:
		_, err := c.Tables.Owners.Create(ctx, a.Owner)
		return ignoreExists(err)
	case plan.StoreOwner:
		return c.storeOwner(ctx, a.Owner)
	case plan.RemoveOwner:
		m := a.Owner.GetMetadata()
		_, err := c.Tables.Owners.Delete(ctx, "", m.GetName(), &metav1.Preconditions{
			Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
		})
		return err
	}
	return nil
}

func (c *Controller) createTask(ctx context.Context, a plan.Action) error {
	t, err := c.Tables.Tasks.Create(ctx, a.Task)
	if err != nil {
		return ignoreExists(err)
	}
	c.Log.InfoContext(ctx, "hook waits for its owner", attributes(t)...)
	c.record(t, a.Events)
	return nil
}

// ignoreExists returns nil for an object that exists already: the cache will show it, which leads to another decision.
func ignoreExists(err error) error {
	if rpcerr.Reason(err) == metav1.ErrorReason_ERROR_REASON_ALREADY_EXISTS {
		return nil
	}
	return err
}

// storeTask writes a task, if it is still as it was read.
func (c *Controller) storeTask(ctx context.Context, a plan.Action) error {
	name, read := a.Task.GetMetadata().GetName(), a.Task.GetMetadata().GetResourceVersion()
	t, err := c.Tables.Tasks.Modify(ctx, object.Key{Name: name}, func(t *hookv1.HookTask) error {
		if t.GetMetadata().GetResourceVersion() != read {
			return rpcerr.Conflict("HookTask", name, "")
		}
		t.Spec, t.Status = a.Task.GetSpec(), a.Task.GetStatus()
		return nil
	})
	if err == nil {
		c.record(t, a.Events)
	}
	return err
}

func (c *Controller) removeTask(ctx context.Context, t *hookv1.HookTask) error {
	m := t.GetMetadata()
	_, err := c.Tables.Tasks.Delete(ctx, "", m.GetName(), &metav1.Preconditions{
		Uid: m.GetUid(), ResourceVersion: m.GetResourceVersion(),
	})
	if err == nil {
		c.Log.InfoContext(ctx, "hook holds its machine no longer", attributes(t)...)
	}
	return err
}

// removeHook removes the hook of a completed task from its machine.
func (c *Controller) removeHook(ctx context.Context, a plan.Action) error {
	s := a.Task.GetSpec()
	err := c.Hooks.RemoveHook(ctx, a.Machine, plan.Hook{Point: s.GetPoint(), Name: s.GetHookName(), Owner: s.GetOwner()})
	if rpcerr.IgnoreChanged(err) == nil {
		return nil
	}
	if ctx.Err() == nil {
		c.record(a.Task, []plan.Event{plan.About(a.Task, "Warning", "HookRemovalFailed",
			"completed, but it cannot be removed from the machine: "+status.Convert(err).Message())})
	}
	return fmt.Errorf("remove hook %q: %w", s.GetHookName(), err)
}

func (c *Controller) storeOwner(ctx context.Context, o *hookv1.HookOwner) error {
	before, _ := c.Tables.Owner(o.GetSpec().GetOwner())
	_, err := c.Tables.Owners.UpdateStatus(ctx, o)
	if err == nil && before.GetStatus().GetConnected() != o.GetStatus().GetConnected() {
		c.Log.InfoContext(ctx, "hook owner", "owner", o.GetSpec().GetOwner(), "connected", o.GetStatus().GetConnected())
	}
	return err
}

// record records events about the machine of a task.
func (c *Controller) record(t *hookv1.HookTask, events []plan.Event) {
	for _, e := range events {
		c.Events.Event(kinds.Subject(t), e.Type, e.Reason, e.Message)
	}
}

func attributes(t *hookv1.HookTask) []any {
	s := t.GetSpec()
	return []any{
		"machine", kinds.MachineOf(t).String(), "point", s.GetPoint(), "hook", s.GetHookName(), "owner",
		s.GetOwner(),
	}
}
