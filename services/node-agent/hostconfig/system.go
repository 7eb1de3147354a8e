package hostconfig

import (
	"context"
	"fmt"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/backoff"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
)

// systemRoot returns the directory with the files of the operating system that runs; empty if those are the host's.
func (c Config) systemRoot() string {
	if c.System == nil {
		return ""
	}
	return c.System.Root()
}

// isStaged reports whether the machine could boot the operating system of an order at once: it has it already, or it is
// ready.
func (h *Host) isStaged(before *configv1.MachineConfig, o order) bool {
	return h.staged == o.name() || machineconfig.SystemOf(before).Equal(machineconfig.SystemOf(o.config))
}

// stage has the operating system of an order ready to boot. Nothing that runs is disturbed, so it is done before the
// machine is drained.
func (h *Host) stage(ctx context.Context, o order) {
	s := machineconfig.SystemOf(o.config)
	if h.cfg.System == nil {
		h.fail(ctx, o, &unreconcilableError{[]object.Fault{{
			Path: "spec", Description: "no driver changes the operating system of this machine",
		}}})
		return
	}
	h.say(working, o.name(), "gets "+s.String())
	h.begin(ctx, o, func(ctx context.Context, st state) (state, wanted, error) {
		_, err := h.cfg.System.Stage(ctx, s)
		return st, wanted{}, err
	})
	h.busy.stages = true
}

// selectSystem has the next boot run the operating system of the configuration, and tries until that succeeds; it is
// false if ctx ended first.
func (h *Host) selectSystem(ctx context.Context) bool {
	if h.cfg.System == nil {
		return true
	}
	for again := backoff.New(firstRetry, longRetry); ; {
		err := h.cfg.System.Select(h.st.Deployment)
		if err == nil {
			return true
		}
		h.cfg.Log.WarnContext(ctx, "boot link is not changed", "config", h.st.Name, "error", err)
		h.say(degraded, h.st.Name, "the next boot would run another operating system: "+err.Error())
		if !again.Wait(ctx) {
			return false
		}
	}
}

// unselected reports whether neither this boot nor the next one runs the operating system of the configuration.
func (h *Host) unselected() bool {
	if h.cfg.System == nil || h.st.Name == "" {
		return false
	}
	booted, _, err := h.cfg.System.Booted()
	if err != nil || booted == h.st.Deployment {
		return false
	}
	selected, err := h.cfg.System.Selected()
	return err == nil && selected != h.st.Deployment
}

// systemTrouble says why this boot does not run the operating system of the configuration; empty if it does.
func (h *Host) systemTrouble() string {
	if h.cfg.System == nil {
		return ""
	}
	deployment, s, err := h.cfg.System.Booted()
	switch {
	case err != nil:
		return err.Error()
	case deployment != h.st.Deployment || !s.Equal(h.wanted.system):
		return fmt.Sprintf("the machine runs %s, and its configuration is for %s", s, h.wanted.system)
	}
	return ""
}
