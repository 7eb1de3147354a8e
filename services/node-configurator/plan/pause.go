package plan

import (
	"fmt"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ConditionPaused is True while a pool is paused, and absent otherwise.
const ConditionPaused = "Paused"

// Pause is what holds back the nodes of a pool; nil if nothing does.
type Pause = configv1.MachineConfigPoolPause

// Paused returns what holds back the nodes of a pool at now. spec.paused has no end, so it outlasts the end of
// spec.pause, and no reason: it is said who set it, and not the reason of another one.
func Paused(pool *configv1.MachineConfigPool, now time.Time) *Pause {
	spec := pool.GetSpec()
	p := spec.GetPause()
	if p.GetUntil() != nil && !now.Before(p.GetUntil().AsTime()) {
		p = nil
	}
	switch {
	case !spec.GetPaused():
		return p
	case p != nil && spec.GetPausedBy() == "": // it was set by an earlier version
		return &Pause{Reason: p.GetReason(), By: p.GetBy(), Since: p.GetSince()}
	}
	return &Pause{By: spec.GetPausedBy(), Since: spec.GetPausedSince()}
}

// PauseText says what holds back the nodes of a pool: who, since when, until when and why.
func PauseText(pool *configv1.MachineConfigPool, p *Pause) string {
	text := "pool " + pool.GetMetadata().GetName() + " is paused"
	if p.GetBy() != "" {
		text += " by " + p.GetBy()
	}
	if p.GetSince() != nil {
		text += " since " + p.GetSince().AsTime().UTC().Format(time.RFC3339)
	}
	if p.GetUntil() != nil {
		text += " until " + p.GetUntil().AsTime().UTC().Format(time.RFC3339)
	} else {
		text += " until resumed"
	}
	if p.GetReason() != "" {
		text += ": " + p.GetReason()
	}
	return text
}

// Pausing writes into the spec of a pool, as a user sets it at now, who paused it and since when: these are not theirs
// to say, and stay if nothing else changes. It returns what is wrong with the pause.
func Pausing(old, spec *configv1.MachineConfigPoolSpec, user string, now time.Time) []object.Fault {
	since := timestamppb.New(now.UTC().Truncate(time.Second))
	switch {
	case !spec.GetPaused():
		spec.PausedBy, spec.PausedSince = "", nil
	case old.GetPaused():
		spec.PausedBy, spec.PausedSince = old.GetPausedBy(), old.GetPausedSince()
	default:
		spec.PausedBy, spec.PausedSince = user, since
	}
	if spec.GetPause() == nil {
		return nil
	}
	p := proto.CloneOf(spec.GetPause())
	p.By, p.Since = old.GetPause().GetBy(), old.GetPause().GetSince()
	if !proto.Equal(p, old.GetPause()) {
		p.By, p.Since = user, since
	}
	if spec.Pause = p; p.GetUntil() != nil && !p.GetUntil().AsTime().After(p.GetSince().AsTime()) {
		return []object.Fault{{Path: "spec.pause.until", Description: "must be later than now"}}
	}
	return nil
}

// behindSince returns since when nodes of the pool do not have its configuration; now if that has just begun.
func (v View) behindSince() time.Time {
	if c := object.FindCondition(v.Pool.GetStatus().GetConditions(), ConditionUpdated); c.GetStatus() == "False" {
		return c.GetLastTransitionTime().AsTime()
	}
	return v.Now.Truncate(time.Second)
}

// waitsSince returns since when nodes wait for the end of a pause: those that were not updated before it waited for
// something else then.
func (v View) waitsSince(p *Pause) time.Time {
	since := v.behindSince()
	if p.GetSince().AsTime().After(since) {
		return p.GetSince().AsTime()
	}
	return since
}

// pauseMessage says what holds the pool back, and what waits behind it.
func (v View) pauseMessage(p *Pause, waiting, total int) string {
	text := PauseText(v.Pool, p)
	if waiting == 0 {
		return text + "; no node waits"
	}
	return fmt.Sprintf("%s; %d of %d nodes wait for %s since %s", text, waiting, total,
		v.Pool.GetSpec().GetConfiguration().GetName(), v.waitsSince(p).UTC().Format(time.RFC3339))
}
