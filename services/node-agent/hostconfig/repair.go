package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

// repairs are what is put back of a configuration.
type repairs struct {
	entries []drifted
	by      map[string][]*configv1.ServiceAction // that are to see it, by path
}

// repairsOf returns what is to be put back of paths that differ, as the cluster allows it. Nothing is while the cluster
// wants another configuration, nor below a directory that is not put back.
func (h *Host) repairsOf(list []drifted) repairs {
	r := repairs{by: map[string][]*configv1.ServiceAction{}}
	if len(list) == 0 || h.cfg.Observe || h.order == nil || h.order.name() != h.st.Name {
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
		r.by[d.path] = h.order.repairs[i].GetServices()
	}
	return r
}

// repair says that the machine differs from its configuration, and puts back what it may.
func (h *Host) repair(ctx context.Context, r repairs) {
	why := summary(r.entries)
	h.cfg.Log.WarnContext(ctx, "what others changed is put back", "config", h.st.Name, "reason", why)
	heard := h.say(degraded, h.st.Name, why+"; it is put back")
	h.begin(ctx, *h.order, func(ctx context.Context, st state) (state, wanted, error) {
		if awaitReceipt(ctx, heard); ctx.Err() != nil {
			return st, wanted{}, ctx.Err()
		}
		cfg, err := st.config()
		if err != nil {
			return st, wanted{}, err
		}
		is, err := read(cfg, cfg)
		if err != nil {
			return st, wanted{}, err
		}
		older, err := h.owed()
		if err == nil {
			err = h.incur(ctx, r.services(), true) // they may have read what others wrote
		}
		if err != nil {
			return st, wanted{}, err
		}
		done, failed := h.putBack(r.entries, is)
		return st, is, errors.Join(failed, h.forgive(r.unseen(done, older)...), h.pay(ctx, is.units))
	})
	h.busy.corrects = true
}

// unseen returns the services for which nothing was put back, unless they owed something before.
func (r repairs) unseen(done []string, older []debt) []string {
	var seen []*configv1.ServiceAction
	for _, d := range r.entries {
		if slices.Contains(done, d.path) {
			seen = append(seen, r.by[d.path]...)
		}
	}
	var out []string
	for _, s := range r.services() {
		same := func(o *configv1.ServiceAction) bool { return o.GetName() == s.GetName() }
		if !slices.ContainsFunc(seen, same) &&
			!slices.ContainsFunc(older, func(d debt) bool { return d.Name == s.GetName() }) {
			out = append(out, s.GetName())
		}
	}
	return out
}

// services returns the services of all paths.
func (r repairs) services() []*configv1.ServiceAction {
	var out []*configv1.ServiceAction
	for _, d := range r.entries {
		out = append(out, r.by[d.path]...)
	}
	return out
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

// putBack writes paths of the present configuration, all that it can, and returns those.
func (h *Host) putBack(paths []drifted, is wanted) (done []string, err error) {
	var broken []error
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
	return done, errors.Join(append(broken, h.tree.sync(done))...)
}
