package plan

import (
	"fmt"
	"time"

	hookv1 "github.com/windlass-dev/windlass/gen/windlass/hook/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Phases of a task.
const (
	Waiting   = "Waiting" // other hooks come first
	Pending   = "Pending"
	Claimed   = "Claimed"
	Completed = "Completed"
	Failed    = "Failed"
)

// By is who wants to change a task.
type By struct {
	User    string
	Answers bool   // whether the policy lets User speak for the task's owner
	Why     string // the policy's message if it does not
}

// Cause is why a change of a task is refused.
type Cause int

// The causes.
const (
	NotOwner       Cause = iota + 1 // the caller does not answer for the hook's owner
	HeldByOther                     // another user has claimed the task
	WrongPhase                      // the task is not in a state for this
	ProtectsQuorum                  // the hook protects the quorum, and no force was asked for
)

// Refusal says why a change of a task is refused.
type Refusal struct {
	Cause Cause
	Task  string // name of the task
	Text  string // for people
}

// Error returns the text with the name of the task.
func (r *Refusal) Error() string { return fmt.Sprintf("hook task %q: %s", r.Task, r.Text) }

// Claim returns the status of a task that a user claims for a while. The user that has claimed it may do so again,
// which makes the claim last longer and never shorter; the claim of another user holds until the controller has freed
// the task, which takes the time of its leader for it: this process's clock may be ahead.
func Claim(t *hookv1.HookTask, by By, now time.Time, lasts time.Duration) (*hookv1.HookTaskStatus, error) {
	if err := change(t, by); err != nil {
		return nil, err
	}
	s := statusOf(t)
	if s.GetPhase() != Claimed || s.GetClaimedBy() != by.User || expired(s, now) {
		s.Phase, s.ClaimedBy, s.ClaimTime = proto.String(Claimed), proto.String(by.User), floor(now)
		s.ClaimExpiryTime, s.RenewTime, s.ProgressPercent = nil, nil, nil
		s.Attempts = proto.Int32(s.GetAttempts() + 1)
		s.Message = proto.String("claimed by " + by.User)
	}
	extend(s, now, lasts)
	return s, nil
}

// Progress is what an owner reports while it works.
type Progress struct {
	Message string // for people; empty keeps the last one
	Percent *int32 // 0 to 100; nil keeps the last one
}

// Renew returns the status of a claimed task whose claim lasts longer. A claim that ran out can still be renewed until
// the controller has freed the task.
func Renew(t *hookv1.HookTask, by By, now time.Time, lasts time.Duration, done Progress) (*hookv1.HookTaskStatus,
	error,
) {
	if err := change(t, by); err != nil {
		return nil, err
	}
	s := statusOf(t)
	if s.GetPhase() != Claimed || s.GetClaimedBy() != by.User {
		return nil, refuse(t, WrongPhase, fmt.Sprintf("%q has no claim on it, or no longer: claim it first", by.User))
	}
	extend(s, now, lasts)
	if done.Message != "" {
		s.Message = proto.String(done.Message)
	}
	if done.Percent != nil {
		s.ProgressPercent = proto.Int32(*done.Percent)
	}
	return s, nil
}

// Complete returns the status of a task whose work is done. Completing it again changes nothing. A claim is not needed,
// but the claim of another user prevents it.
func Complete(t *hookv1.HookTask, by By, now time.Time, message string) (*hookv1.HookTaskStatus, error) {
	if by.Answers && t.GetStatus().GetPhase() == Completed {
		return statusOf(t), nil
	}
	if err := change(t, by); err != nil {
		return nil, err
	}
	s := statusOf(t)
	end(s, by, now)
	s.Phase, s.CompletionTime = proto.String(Completed), floor(now)
	if message == "" {
		message = "completed by " + by.User
	}
	s.Message = proto.String(message)
	return s, nil
}

// quorumOwner is the owner of the hook that etcd-guardian has on each control-plane machine.
const quorumOwner = "clusteroperator/etcd"

// Override returns the status of a task that an administrator completes in place of its owner, also if another user has
// claimed it. The hook that protects the quorum is overridden only by force. Overriding a completed task changes
// nothing.
func Override(t *hookv1.HookTask, by By, now time.Time, reason string, force bool) (*hookv1.HookTaskStatus, error) {
	s := statusOf(t)
	switch {
	case !by.Answers:
		return nil, refuse(t, NotOwner, fmt.Sprintf("the hook belongs to %q: %s", t.GetSpec().GetOwner(), by.Why))
	case s.GetPhase() == Completed:
		return s, nil
	case t.GetSpec().GetOwner() == quorumOwner && !force:
		return nil, refuse(t, ProtectsQuorum, fmt.Sprintf(
			"the hook %s protects the etcd quorum: `windlass quorum` shows what it waits for; it is overridden only by force",
			t.GetSpec().GetHookName()))
	}
	s.ClaimedBy, s.ClaimTime, s.ClaimExpiryTime, s.RenewTime = proto.String(by.User), floor(now), nil, nil
	s.Phase, s.CompletionTime = proto.String(Completed), floor(now)
	s.Message = proto.String(fmt.Sprintf("overridden by %s: %s", by.User, reason))
	return s, nil
}

// Fail returns the status of a task whose work went wrong. The hook stays, and the task may be claimed again.
func Fail(t *hookv1.HookTask, by By, now time.Time, reason string) (*hookv1.HookTaskStatus, error) {
	if err := change(t, by); err != nil {
		return nil, err
	}
	s := statusOf(t)
	end(s, by, now)
	s.Phase, s.Message = proto.String(Failed), proto.String(reason)
	return s, nil
}

// change refuses what holds for every change.
func change(t *hookv1.HookTask, by By) error {
	s := t.GetStatus()
	switch {
	case !by.Answers:
		return refuse(t, NotOwner, fmt.Sprintf("the hook belongs to %q: %s", t.GetSpec().GetOwner(), by.Why))
	case s.GetPhase() == Completed:
		return refuse(t, WrongPhase, "it is completed, and its hook is being removed")
	case s.GetPhase() == Waiting:
		return refuse(t, WrongPhase, s.GetMessage())
	case s.GetPhase() == Claimed && s.GetClaimedBy() != by.User:
		return refuse(t, HeldByOther, fmt.Sprintf("claimed by %q until %s; wait for that, or until it is failed",
			s.GetClaimedBy(), clock(s.GetClaimExpiryTime().AsTime())))
	}
	return nil
}

func refuse(t *hookv1.HookTask, cause Cause, text string) error {
	return &Refusal{Cause: cause, Task: t.GetMetadata().GetName(), Text: text}
}

// end closes a claim. A user that ends work that no user has claimed counts as the one that did it.
func end(s *hookv1.HookTaskStatus, by By, now time.Time) {
	if s.GetPhase() != Claimed || s.GetClaimedBy() != by.User {
		s.ClaimedBy, s.ClaimTime = proto.String(by.User), floor(now)
	}
	s.ClaimExpiryTime, s.RenewTime = nil, nil
}

// extend makes a claim last until then at least.
func extend(s *hookv1.HookTaskStatus, now time.Time, lasts time.Duration) {
	if until := ceiling(now.Add(lasts)); s.ClaimExpiryTime == nil ||
		until.AsTime().After(s.GetClaimExpiryTime().AsTime()) {
		s.ClaimExpiryTime, s.RenewTime = until, floor(now)
	}
}

// lasts returns how long a claim lasts from its last renewal. Both ends are from the clock of one process.
func lasts(s *hookv1.HookTaskStatus) time.Duration {
	from := s.GetRenewTime()
	if from == nil { // a claim of an earlier version
		from = s.GetClaimTime()
	}
	return s.GetClaimExpiryTime().AsTime().Sub(from.AsTime())
}

func expired(s *hookv1.HookTaskStatus, now time.Time) bool {
	return s.GetPhase() == Claimed && !now.Before(s.GetClaimExpiryTime().AsTime())
}

// statusOf returns a copy of a task's status that may be modified.
func statusOf(t *hookv1.HookTask) *hookv1.HookTaskStatus {
	if t.GetStatus() == nil {
		return &hookv1.HookTaskStatus{}
	}
	return proto.Clone(t.GetStatus()).(*hookv1.HookTaskStatus)
}

// floor is a time in whole seconds, as resources have them.
func floor(t time.Time) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: t.Unix()} }

// ceiling is a time in whole seconds that is not earlier: a lease never ends before its time.
func ceiling(t time.Time) *timestamppb.Timestamp {
	return floor(t.Add(time.Second - time.Nanosecond))
}

// clock writes a time for people.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
