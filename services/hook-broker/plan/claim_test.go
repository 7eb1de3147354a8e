package plan

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestTheHookOfTheQuorumIsOverriddenByForceOnly(t *testing.T) {
	task := &hookv1.HookTask{Spec: &hookv1.HookTaskSpec{Owner: quorumOwner}, Status: status(Pending)}
	by := By{User: "admin", Answers: true}
	var r *Refusal
	if _, err := Override(task, by, start, "lost", false); !errors.As(err, &r) || r.Cause != ProtectsQuorum {
		t.Errorf("without force: %v, want a refusal", err)
	}
	if s, err := Override(task, by, start, "lost", true); err != nil || s.GetPhase() != Completed {
		t.Errorf("with force: %v, %v", s, err)
	}
}

func TestWhatBecomesOfATask(t *testing.T) {
	// times are kept in whole seconds, and no claim is cut short by that
	now := start.Add(10*time.Second + time.Millisecond)
	one, two, stranger := By{User: "backup-1", Answers: true}, By{User: "backup-2", Answers: true},
		By{User: "mallory", Why: "no right"}
	claim := func(by By) func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
		return func(t *hookv1.HookTask) (*hookv1.HookTaskStatus, error) { return Claim(t, by, now, time.Minute) }
	}
	renew := func(by By) func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
		return func(t *hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
			return Renew(t, by, now, time.Minute, Progress{Message: "half way"})
		}
	}
	complete := func(by By) func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
		return func(t *hookv1.HookTask) (*hookv1.HookTaskStatus, error) { return Complete(t, by, now, "") }
	}
	fail := func(by By) func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
		return func(t *hookv1.HookTask) (*hookv1.HookTaskStatus, error) { return Fail(t, by, now, "disk full") }
	}
	override := func(by By, force bool) func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error) {
		return func(t *hookv1.HookTask) (*hookv1.HookTaskStatus, error) { return Override(t, by, now, "lost", force) }
	}
	overridden := func(attempts int32) *hookv1.HookTaskStatus {
		return &hookv1.HookTaskStatus{
			Phase: proto.String(Completed), ClaimedBy: proto.String("backup-2"), ClaimTime: floor(start.Add(10 * time.Second)),
			CompletionTime: floor(start.Add(10 * time.Second)), Attempts: proto.Int32(attempts),
			Message: proto.String("overridden by backup-2: lost"),
		}
	}
	at, end := start.Add(10*time.Second), start.Add(71*time.Second)
	held := claimed(start.Add(30 * time.Second)) // by backup-1
	over := claimed(start.Add(5 * time.Second))
	for name, c := range map[string]struct {
		have *hookv1.HookTaskStatus
		do   func(*hookv1.HookTask) (*hookv1.HookTaskStatus, error)
		want *hookv1.HookTaskStatus
		err  Cause
	}{
		"a task without a claim is claimed": {have: status(Pending), do: claim(one), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Claimed), ClaimedBy: proto.String("backup-1"), ClaimTime: floor(at), ClaimExpiryTime: floor(end),
			Attempts: proto.Int32(1), Message: proto.String("claimed by backup-1"), RenewTime: floor(at),
		}},
		"a failed task is claimed": {have: status(Failed), do: claim(two), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Claimed), ClaimedBy: proto.String("backup-2"), ClaimTime: floor(at), ClaimExpiryTime: floor(end),
			Attempts: proto.Int32(1), Message: proto.String("claimed by backup-2"), RenewTime: floor(at),
		}},
		"who has it may claim it again": {have: held, do: claim(one), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Claimed), ClaimedBy: proto.String("backup-1"), ClaimTime: floor(start),
			ClaimExpiryTime: floor(end), Attempts: proto.Int32(1), RenewTime: floor(at),
		}},
		"another may not": {have: held, do: claim(two), err: HeldByOther},
		"another may not by its own clock: the controller frees the task": {have: over, do: claim(two), err: HeldByOther},
		"a claim is never made shorter": {
			have: claimed(start.Add(time.Hour)), do: claim(one),
			want: claimed(start.Add(time.Hour)),
		},
		"a stranger claims nothing":       {have: status(Pending), do: claim(stranger), err: NotOwner},
		"a completed task is not claimed": {have: status(Completed), do: claim(one), err: WrongPhase},
		"a claim is renewed with a word": {have: held, do: renew(one), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Claimed), ClaimedBy: proto.String("backup-1"), ClaimTime: floor(start),
			ClaimExpiryTime: floor(end), RenewTime: floor(at),
			Attempts: proto.Int32(1), Message: proto.String("half way"),
		}},
		"without a claim nothing is renewed":   {have: status(Pending), do: renew(one), err: WrongPhase},
		"another's claim is not renewed":       {have: held, do: renew(two), err: HeldByOther},
		"another's claim that ran out neither": {have: over, do: renew(two), err: HeldByOther},
		"who has it completes it": {have: held, do: complete(one), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Completed), ClaimedBy: proto.String("backup-1"), ClaimTime: floor(start),
			CompletionTime: floor(at),
			Attempts:       proto.Int32(1), Message: proto.String("completed by backup-1"),
		}},
		"no claim is needed": {have: status(Pending), do: complete(two), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Completed), ClaimedBy: proto.String("backup-2"), ClaimTime: floor(at), CompletionTime: floor(at),
			Attempts: proto.Int32(0), Message: proto.String("completed by backup-2"),
		}},
		"another's claim is in the way of completion": {have: held, do: complete(two), err: HeldByOther},
		"completing again changes nothing":            {have: status(Completed), do: complete(two), want: status(Completed)},
		"a stranger completes nothing":                {have: held, do: complete(stranger), err: NotOwner},
		"a stranger does not even complete again":     {have: status(Completed), do: complete(stranger), err: NotOwner},
		"work that went wrong says why": {have: held, do: fail(one), want: &hookv1.HookTaskStatus{
			Phase: proto.String(Failed), ClaimedBy: proto.String("backup-1"), ClaimTime: floor(start), Attempts: proto.Int32(1),
			Message: proto.String("disk full"),
		}},
		"another's work is not failed":   {have: held, do: fail(two), err: HeldByOther},
		"what is completed did not fail": {have: status(Completed), do: fail(one), err: WrongPhase},
		"an administrator overrides what no user has claimed": {
			have: status(Pending), do: override(two, false), want: overridden(0),
		},
		"and what another user has claimed": {have: held, do: override(two, false), want: overridden(1)},
		"overriding what is completed is the same": {
			have: status(Completed), do: override(two, false),
			want: status(Completed),
		},
		"a stranger overrides nothing": {have: status(Pending), do: override(stranger, true), err: NotOwner},
		"a stranger fails nothing":     {have: held, do: fail(stranger), err: NotOwner},
	} {
		t.Run(name, func(t *testing.T) {
			task := &hookv1.HookTask{Spec: &hookv1.HookTaskSpec{Owner: backup}, Status: c.have}
			before := proto.Clone(task)
			got, err := c.do(task)
			var r *Refusal
			if errors.As(err, &r); r != nil && r.Cause != c.err || r == nil && c.err != 0 {
				t.Fatalf("error = %v, want cause %d", err, c.err)
			}
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if !proto.Equal(before, task) {
				t.Error("the task was modified")
			}
		})
	}
}
