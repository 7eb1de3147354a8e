package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

// repairs are what is put back of a configuration.
type repairs struct {
	entries  []drifted
	services []*configv1.ServiceAction // that are to see it
}

// repairsOf returns what is to be put back of paths that differ, as the cluster allows it. Nothing is while the cluster
// wants another configuration, nor below a directory that is not put back.
func (h *Host) repairsOf(list []drifted) repairs {
	var r repairs
	if len(list) == 0 || h.order == nil || h.order.name() != h.st.Name {
		return r
	}
	var stays []string
	for _, d := range list { // directories come before what is in them
		i := slices.IndexFunc(h.order.repairs, func(g *configv1.PathRepair) bool {
			return slices.Contains(g.GetPaths(), "/"+d.path)
		})
		if i < 0 || slices.ContainsFunc(stays, func(dir string) bool { return strings.HasPrefix(d.path, dir+"/") }) {
			stays = append(stays, d.path)
			continue
		}
		r.entries = append(r.entries, d)
		r.services = append(r.services, h.order.repairs[i].GetServices()...)
	}
	return r
}

// repair says that the machine differs from its configuration, and puts back what it may.
func (h *Host) repair(ctx context.Context, r repairs) {
	why := summary(r.entries)
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
		if err := h.incur(r.services, true); err != nil { // they may have read what others wrote
			return st, wanted{}, err
		}
		return st, is, errors.Join(h.putBack(r.entries, is), h.pay(ctx, is.units))
	})
	h.busy.corrects = true
}

// parent returns an error if a directory above an entry is missing that the configuration wants: with its own mode.
func (h *Host) parent(e entry, is wanted) error {
	for _, dir := range h.tree.missing(e.path) {
		if slices.ContainsFunc(is.entries, func(o entry) bool { return o.path == dir }) {
			return fmt.Errorf("its directory %q is missing", "/"+dir)
		}
	}
	return nil
}

// putBack writes paths of the present configuration, all that it can.
func (h *Host) putBack(paths []drifted, is wanted) error {
	var broken []error
	var done []string
	for _, e := range is.entries {
		if !slices.ContainsFunc(paths, func(d drifted) bool { return d.path == e.path }) {
			continue
		}
		err := h.parent(e, is)
		if err == nil {
			err = h.tree.put(e)
		}
		if err != nil {
			broken = append(broken, fmt.Errorf("put back %q: %w", "/"+e.path, err))
		} else {
			done = append(done, e.path)
		}
	}
	return errors.Join(append(broken, h.tree.sync(done))...)
}
