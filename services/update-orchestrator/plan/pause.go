package plan

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// UpdatesPaused is the reason of conditions while updates are held back.
const UpdatesPaused = "UpdatesPaused"

// Pause is what holds updates back; nil if nothing does.
type Pause = updatev1.UpdatePause

// Paused returns what holds back the updates of a cluster at now.
func Paused(cv *updatev1.ClusterVersion, now time.Time) *Pause {
	p := cv.GetSpec().GetPause()
	if p == nil || p.GetUntil() != nil && !now.Before(p.GetUntil().AsTime()) {
		return nil
	}
	return p
}

// PauseText says what holds updates back: who, since when, until when and why.
func PauseText(p *Pause) string {
	until := "resumed"
	if p.GetUntil() != nil {
		until = p.GetUntil().AsTime().UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("paused by %s since %s until %s: %s", p.GetBy(), p.GetSince().AsTime().UTC().Format(time.RFC3339),
		until, p.GetReason())
}

// PauseEnds returns when a pause ends; zero if there is none, or if it must be taken back.
func PauseEnds(p *Pause) time.Time {
	if p.GetUntil() == nil {
		return time.Time{}
	}
	return p.GetUntil().AsTime()
}

// Pausing returns a pause as a user sets it at now instead of another one, which may be nil: who and since when are not
// theirs to say, and stay if nothing else changes.
func Pausing(before, next *Pause, user string, now time.Time) *Pause {
	out := proto.CloneOf(next)
	out.By, out.Since = before.GetBy(), before.GetSince()
	if !proto.Equal(out, before) {
		out.By, out.Since = user, timestamppb.New(now.UTC().Truncate(time.Second))
	}
	return out
}

// PauseCheck is what a preflight says while updates are held back; nil if they are not.
func PauseCheck(cv *updatev1.ClusterVersion, now time.Time) *updatev1.ReleaseCheck {
	p := Paused(cv, now)
	if p == nil {
		return nil
	}
	return &updatev1.ReleaseCheck{
		Name: UpdatesPaused, Result: CheckWarned, Reason: UpdatesPaused,
		Message: "The update would wait: updates are " + PauseText(p) + ".",
	}
}
