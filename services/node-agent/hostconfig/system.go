package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
)

// errSystem means that an operating system could not be staged or selected.
var errSystem = errors.New("operating system")

// awaitReceipt waits until the cluster has received a report, for a moment: it may be away, and does not act then.
func awaitReceipt(ctx context.Context, heard <-chan struct{}) {
	timer := time.NewTimer(receiptPatience)
	defer timer.Stop()
	select {
	case <-heard:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// adopt takes a system over that is in force and of which the state does not say so: an agent of an earlier release
// wrote that, and forgot it.
func (h *Host) adopt(s machineconfig.System) {
	if h.cfg.System == nil || h.st.Systems || s.Equal(machineconfig.System{}) {
		return
	}
	is, found := h.cfg.System.Find(s)
	next, err := h.cfg.System.Selected()
	if found && err == nil && is == next {
		h.st.Systems, h.st.Deployment, h.unsaved = true, is, true
	}
}

// systemRoot returns the directory with the files of the operating system that runs; empty if those are the host's.
func (c Config) systemRoot() string {
	if c.System == nil {
		return ""
	}
	return c.System.Root()
}

// isStaged reports whether the machine can be restarted with the operating system of an order at once: that is the one
// of its configuration, or it was got ready.
func (h *Host) isStaged(before *configv1.MachineConfig, o order) bool {
	return h.staged == o.name() || machineconfig.SystemOf(before).Equal(machineconfig.SystemOf(o.config))
}

// stage has the operating system of an order ready to boot. Nothing that runs is disturbed, so it is done before the
// machine is drained. What was ready before may be replaced by it, so the cluster receives that first.
func (h *Host) stage(ctx context.Context, o order) {
	s := machineconfig.SystemOf(o.config)
	if h.cfg.System == nil {
		h.fail(ctx, o, &unreconcilableError{[]object.Fault{{
			Path: "spec", Description: "no driver changes the operating system of this machine",
		}}})
		return
	}
	h.staged = ""
	heard := h.say(working, o.name(), "gets "+s.String())
	h.begin(ctx, o, func(ctx context.Context, st state) (state, wanted, error) {
		awaitReceipt(ctx, heard)
		if _, err := h.cfg.System.Stage(ctx, s); err != nil {
			return st, wanted{}, fmt.Errorf("%w: %w", errSystem, err)
		}
		return st, wanted{}, nil
	})
	h.busy.stages = true
}

// selectSystem has the next boot run an operating system, and returns its deployment. It is staged if it is not there.
func (h *Host) selectSystem(ctx context.Context, s machineconfig.System) (string, error) {
	deployment, err := h.cfg.System.Stage(ctx, s)
	if err == nil {
		err = h.cfg.System.Select(deployment)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errSystem, err)
	}
	return deployment, err
}

// bootsNext has the next boot run the operating system of the configuration, and tries until that succeeds; it is false
// if ctx ended first.
func (h *Host) bootsNext(ctx context.Context) bool {
	if h.cfg.System == nil {
		return true
	}
	for again := backoff.New(firstRetry, longRetry); ; {
		deployment, err := h.selectSystem(ctx, h.system)
		if err == nil && deployment != h.st.Deployment {
			h.st.Deployment = deployment
			err = save(h.cfg.Dir, currentFile, h.st)
		}
		if err == nil {
			return true
		}
		h.cfg.Log.WarnContext(ctx, "machine does not restart", "config", h.st.Name, "error", err)
		h.say(degraded, h.st.Name, "the machine cannot restart with its configuration: "+err.Error())
		if !again.Wait(ctx) {
			return false
		}
	}
}

// unselected reports whether the machine was restarted for its configuration, and neither this boot nor the next one
// runs the operating system of that.
func (h *Host) unselected() bool {
	if h.cfg.System == nil || h.st.EndingBoot == "" || !h.offSystem() {
		return false
	}
	booted, _, err := h.cfg.System.Booted()
	return err == nil && booted != h.st.Deployment
}

// offSystem reports whether the next boot runs another operating system than that of the configuration. An agent of an
// earlier release forgets which deployment that is.
func (h *Host) offSystem() bool {
	if h.cfg.System == nil || h.st.Name == "" {
		return false
	}
	is, found := h.cfg.System.Find(h.system)
	next, err := h.cfg.System.Selected()
	return !found || err != nil || is != h.st.Deployment || is != next
}

// systemTrouble says why this boot does not run the operating system of the configuration; empty if it does.
func (h *Host) systemTrouble() string {
	if h.cfg.System == nil {
		return ""
	}
	deployment, s, err := h.cfg.System.Booted()
	switch {
	case err != nil:
		return "operating system: " + err.Error()
	case deployment != h.st.Deployment || !s.Equal(h.system):
		return fmt.Sprintf("the machine runs %s, and its configuration is for %s: restart it, with windlass adm reboot "+
			"%s", s, h.system, h.cfg.Node)
	}
	return ""
}
