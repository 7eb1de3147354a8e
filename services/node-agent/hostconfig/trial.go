package hostconfig

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// busyRetry is the pause before a configuration is taken back while something else is done.
const busyRetry = time.Second

// trial is a configuration of which the cluster has received no report yet from the machine that has it. It may be what
// keeps the machine from the cluster, and is taken back unless a report arrives in time.
type trial struct {
	// Before is what the machine had; empty if it had no configuration.
	Before string          `json:"before,omitempty"`
	Config json.RawMessage `json:"config,omitempty"`
	// Boot is the one in which it is in force, since Began after the start of the kernel; empty before.
	Boot  string        `json:"boot,omitempty"`
	Began time.Duration `json:"began,omitempty"`
}

// rejected is a configuration that was taken back.
type rejected struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	// Boot is the one in which it stays rejected; empty until the machine has been restarted for it.
	Boot string `json:"boot,omitempty"`
}

func (r rejected) String() string {
	return fmt.Sprintf(
		"%s was taken back at %s: %s; another configuration, or windlass adm reboot, lets it be tried again",
		r.Name, r.At.Format(time.RFC3339), r.Why)
}

// remind has a configuration stay rejected until the boot ends that follows its end.
func (h *Host) remind() {
	switch r := h.st.Rejected; {
	case r == nil || r.Boot == h.cfg.BootID || h.st.EndingBoot == h.cfg.BootID:
	case r.Boot == "":
		next := *r
		next.Boot = h.cfg.BootID
		h.st.Rejected, h.unsaved = &next, true
	default:
		h.st.Rejected, h.unsaved = nil, true
	}
}

// proofPart is the part of the time of a trial that must have passed before a report counts: what cuts a host off may
// do so a moment later.
const proofPart = 20

// onTrial begins the time of a configuration that is on trial, in the boot in which it is in force. It goes on where an
// earlier process of that boot began it.
func (h *Host) onTrial() {
	h.expires, h.proves, h.heard = nil, nil, nil
	if h.st.Trial == nil || h.st.EndingBoot == h.cfg.BootID || h.cfg.Patience == 0 {
		return
	}
	now := sinceBoot()
	if h.st.Trial.Boot != h.cfg.BootID {
		t := *h.st.Trial
		t.Boot, t.Began = h.cfg.BootID, now
		h.st.Trial, h.unsaved = &t, true
	}
	h.expires = time.After(h.st.Trial.Began + h.cfg.Patience - now)
	h.proves = time.After(h.cfg.Patience / proofPart)
}

// sinceBoot returns a time that goes on steadily, whatever the clock is set to.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// heardOnTrial returns a channel that is closed when the cluster has received what the machine has; nil unless that is
// on trial.
func (h *Host) heardOnTrial() <-chan struct{} {
	if h.expires == nil || h.busy != nil { // what is done may change the state, too
		return nil
	}
	return h.heard
}

// confirm ends a trial: the cluster has received what the machine has.
func (h *Host) confirm() {
	h.expires, h.proves, h.heard = nil, nil, nil
	h.st.Trial, h.unsaved = nil, true
	h.remember()
}

// expire takes a configuration back with which the machine did not reach the cluster.
func (h *Host) expire(ctx context.Context) {
	h.expires = nil
	if h.st.Trial == nil {
		return
	}
	if h.busy != nil {
		h.expires = time.After(busyRetry)
		return
	}
	was := *h.st.Trial
	o := order{reboot: true, back: true} // whatever has read the files of this one sees those of before
	before, err := state{Name: was.Before, Config: was.Config}.config()
	if err != nil {
		h.cfg.Log.ErrorContext(ctx, "configuration cannot be taken back", "config", h.st.Name, "error", err)
		return
	}
	o.config = before
	why := fmt.Sprintf("the cluster received no report within %v", h.cfg.Patience)
	h.cfg.Log.ErrorContext(ctx, "configuration is taken back", "config", h.st.Name, "before", was.Before, "reason", why)
	o.rejects = &rejected{Name: h.st.Name, At: time.Now().UTC().Truncate(time.Second), Why: why}
	h.begin(ctx, o, func(ctx context.Context, st state) (state, wanted, error) { return h.apply(ctx, st, o) })
}
