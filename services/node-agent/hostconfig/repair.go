package hostconfig

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

// repairsOf returns what is to be put back of paths that differ, as the cluster allows it, and the services that are to
// see it. Nothing is while the cluster wants another configuration.
func (h *Host) repairsOf(drifted []string) journal {
	j := journal{Change: uuid.NewString(), Config: h.st.Name}
	if h.order == nil || h.order.name() != h.st.Name {
		return j
	}
	for _, r := range h.order.repairs {
		if !slices.ContainsFunc(drifted, func(p string) bool { return "/"+p == r.GetPath() }) {
			continue
		}
		j.Repair = append(j.Repair, r.GetPath()[1:])
		for _, s := range r.GetServices() {
			same := func(o *configv1.ServiceAction) bool {
				return o.GetName() == s.GetName() && o.GetReload() == s.GetReload()
			}
			if !slices.ContainsFunc(j.Services, same) {
				j.Services = append(j.Services, s)
			}
		}
	}
	return j
}

// repair says that the machine differs from its configuration, and puts back what it may. The journal has services see
// it also after a kill in between.
func (h *Host) repair(ctx context.Context, j journal, why string) {
	h.cfg.Log.WarnContext(ctx, "what others changed is put back", "config", h.st.Name, "reason", why)
	heard := h.say(degraded, h.st.Name, why+"; it is put back")
	h.begin(ctx, *h.order, func(ctx context.Context, st state) (state, wanted, error) {
		timer := time.NewTimer(tellReboot)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return st, wanted{}, ctx.Err()
		case <-heard:
		case <-timer.C:
		}
		cfg, err := st.config()
		if err != nil {
			return st, wanted{}, err
		}
		is, err := read(cfg, cfg)
		if err != nil {
			return st, wanted{}, err
		}
		if err := save(h.cfg.Dir, journalFile, j); err != nil {
			return st, wanted{}, err
		}
		if err := h.putBack(j, is); err != nil {
			return st, wanted{}, err
		}
		if err := h.units.renew(ctx, j.Services, is.units, is.units, h.root()); err != nil {
			return st, wanted{}, err
		}
		return st, is, remove(h.cfg.Dir, journalFile)
	})
	h.busy.heals = true
}

// putBack writes what a journal is to put back of the present configuration.
func (h *Host) putBack(j journal, is wanted) error {
	for _, e := range is.entries {
		if !slices.Contains(j.Repair, e.path) {
			continue
		}
		if err := h.tree.put(e); err != nil {
			return fmt.Errorf("put back %q: %w", "/"+e.path, err)
		}
	}
	return h.tree.sync(j.Repair)
}
