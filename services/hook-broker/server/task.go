// Package server answers the calls of hooks' owners: the stream of their tasks, and their claims and results.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"github.com/windlass-dev/windlass/kit/events"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/windlass-dev/windlass/services/hook-broker/kinds"
	"github.com/windlass-dev/windlass/services/hook-broker/plan"
	"github.com/windlass-dev/windlass/services/hook-broker/presence"
)

// Verbs that a role grants on hooks, by the owner's name.
const (
	claim    = "claim"
	complete = "complete"
	override = "override"
)

// Policy says who may do what.
type Policy interface {
	Require(identity.Caller, identity.Attributes) (by string, refusal error)
}

// Views shows what the controller decides with.
type Views interface {
	// WaitSynced waits until the machines are known, or ctx ends.
	WaitSynced(ctx context.Context) error
	// Machine returns what decides about the tasks of a machine.
	Machine(k object.Key) plan.View
	// Facts returns what tasks depend on of their owner.
	Facts(owner string) plan.OwnerFacts
}

// Config is what the server works with; nothing in it may be nil.
type Config struct {
	Tables   *kinds.Tables
	Views    Views
	Policy   Policy
	Presence *presence.Tracker
	Events   events.Sink
	Now      func() time.Time
	Log      *slog.Logger
}

// Tasks serves what HookTaskService has beyond the standard methods.
type Tasks struct {
	hookv1.UnimplementedHookTaskServiceServer
	Config
}

// New returns the custom methods of HookTaskService.
func New(cfg Config) *Tasks { return &Tasks{Config: cfg} }

// ClaimHookTask claims a task for the caller.
func (s *Tasks) ClaimHookTask(ctx context.Context, r *hookv1.ClaimHookTaskRequest) (*hookv1.HookTask, error) {
	return s.change(ctx, r.GetName(), claim, func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus,
		error,
	) {
		lasts := s.Views.Facts(t.GetSpec().GetOwner()).ClaimDuration()
		if r.GetDuration() != nil {
			lasts = r.GetDuration().AsDuration()
		}
		return plan.Claim(t, by, now, lasts)
	})
}

// RenewHookTask makes the caller's claim last longer.
func (s *Tasks) RenewHookTask(ctx context.Context, r *hookv1.RenewHookTaskRequest) (*hookv1.HookTask, error) {
	return s.change(ctx, r.GetName(), claim, func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus,
		error,
	) {
		lasts := s.Views.Facts(t.GetSpec().GetOwner()).ClaimDuration()
		return plan.Renew(t, by, now, lasts, plan.Progress{Message: r.GetMessage(), Percent: r.ProgressPercent})
	})
}

// CompleteHookTask notes that the work is done. The controller removes the hook from the machine, and then the
// task.
func (s *Tasks) CompleteHookTask(ctx context.Context, r *hookv1.CompleteHookTaskRequest) (*hookv1.HookTask, error) {
	return s.change(ctx, r.GetName(), complete,
		func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus, error) {
			return plan.Complete(t, by, now, r.GetMessage())
		})
}

// FailHookTask notes why the work failed.
func (s *Tasks) FailHookTask(ctx context.Context, r *hookv1.FailHookTaskRequest) (*hookv1.HookTask, error) {
	return s.change(ctx, r.GetName(), complete,
		func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus, error) {
			return plan.Fail(t, by, now, r.GetReason())
		})
}

// OverrideHookTask completes a task in place of its owner. The owner is not seen by that.
func (s *Tasks) OverrideHookTask(ctx context.Context, r *hookv1.OverrideHookTaskRequest) (*hookv1.HookTask, error) {
	return s.change(ctx, r.GetName(), override,
		func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus, error) {
			return plan.Override(t, by, now, r.GetReason(), r.GetForce())
		})
}

type decision func(t *hookv1.HookTask, by plan.By, now time.Time) (*hookv1.HookTaskStatus, error)

// change stores what decide makes of a task, as long as it is still the task that decide saw.
func (s *Tasks) change(ctx context.Context, name, verb string, decide decision) (*hookv1.HookTask, error) {
	var before string
	var by plan.By
	t, err := s.Tables.Tasks.Modify(ctx, object.Key{Name: name}, func(t *hookv1.HookTask) error {
		before = t.GetStatus().GetPhase()
		var err error
		if by, err = s.by(ctx, verb, t.GetSpec().GetOwner()); err != nil {
			return err
		}
		status, err := decide(t, by, s.Now().UTC())
		if err != nil {
			return statusOf(err)
		}
		if err := identity.BeforeChange(ctx); err != nil {
			return err
		}
		t.Status = status
		return nil
	})
	if err != nil {
		return nil, err
	}
	if verb != override {
		s.Presence.Seen(t.GetSpec().GetOwner())
	}
	s.report(ctx, t, before, verb, by)
	return t, nil
}

func right(verb, owner string) identity.Attributes {
	return identity.Attributes{Verb: verb, Group: "windlass.dev", Resource: "hooks", Name: owner}
}

// by says who the caller is for an owner. The error is that this is not known yet.
func (s *Tasks) by(ctx context.Context, verb, owner string) (plan.By, error) {
	caller, _ := identity.CallerFrom(ctx)
	why, err := s.Policy.Require(caller, right(verb, owner))
	if status.Code(err) == codes.Unavailable {
		return plan.By{}, err
	}
	if err != nil {
		why = status.Convert(err).Message()
	}
	return plan.By{User: caller.User, Answers: err == nil, Why: why}, nil
}

// report logs how a caller changed a task, and records it as an event.
func (s *Tasks) report(ctx context.Context, t *hookv1.HookTask, before, verb string, by plan.By) {
	phase := t.GetStatus().GetPhase()
	if phase == before && phase != plan.Failed {
		return
	}
	typ, reason := "Normal", "Hook"+phase
	if phase == plan.Failed {
		typ = "Warning"
	}
	if verb == override {
		typ, reason = "Warning", "HookOverridden"
	}
	e := plan.About(t, typ, reason, t.GetStatus().GetMessage())
	s.Events.Event(kinds.Subject(t), e.Type, e.Reason, e.Message)
	s.Log.InfoContext(ctx, "hook task changed", "machine", t.GetSpec().GetMachineRef().GetName(), "hook",
		t.GetSpec().GetHookName(),
		"phase", phase, "user", by.User)
}

// StreamHookTasks sends the tasks of some owners and every change of them until the caller leaves.
func (s *Tasks) StreamHookTasks(r *hookv1.StreamHookTasksRequest,
	stream grpc.ServerStreamingServer[hookv1.StreamHookTasksResponse],
) error {
	ctx := stream.Context()
	mine := map[string]bool{}
	for _, owner := range r.GetOwners() {
		if by, err := s.by(ctx, complete, owner); err != nil {
			return err
		} else if !by.Answers {
			return rpcerr.Forbidden(by.Why)
		}
		identity.Needs(ctx, right(complete, owner))
		mine[owner] = true
	}
	visit, ok := s.Presence.Join(r.GetOwners())
	if !ok {
		return errNotLeading()
	}
	defer visit.Leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-visit.Over():
			cancel(errNotLeading())
		case <-ctx.Done():
		}
	}()
	view := &view{owners: mine, sent: map[string]bool{}, send: stream.Send}
	err := s.Tables.Tasks.Watching(ctx, "", resource.Selection{}, 0, false, view.take)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func errNotLeading() error {
	return rpcerr.Unavailable("this process does not talk to owners of hooks now: another one leads, or will in a moment")
}

// notSent are the phases of tasks that an owner has nothing to do for, if it does not know them already.
var notSent = []string{plan.Completed, plan.Waiting}

// view is what one stream has seen.
type view struct {
	owners map[string]bool
	listed bool            // the tasks that there were at the beginning have been sent
	sent   map[string]bool // by the task's name
	send   func(*hookv1.StreamHookTasksResponse) error
}

// take sends what concerns the stream's owners. Tasks that were completed before it began do not, and those that wait
// for other hooks do once they need not any more.
func (v *view) take(e resource.Events[*hookv1.HookTask]) error {
	for _, ev := range e.Events {
		t, name := ev.Object, ev.Object.GetMetadata().GetName()
		gone := ev.Type == resource.Deleted
		if !v.owners[t.GetSpec().GetOwner()] ||
			(!v.sent[name] && (gone || slices.Contains(notSent, t.GetStatus().GetPhase()))) {
			continue
		}
		v.sent[name] = true
		if gone {
			delete(v.sent, name)
		}
		if err := v.send(&hookv1.StreamHookTasksResponse{Task: t, Gone: gone}); err != nil {
			return fmt.Errorf("send task %q: %w", name, err)
		}
	}
	if e.Bookmark && !v.listed {
		v.listed = true
		return v.send(&hookv1.StreamHookTasksResponse{})
	}
	return nil
}
