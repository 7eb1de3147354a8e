package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

// debt is a service that may run with other files than there are, until it is restarted or reloaded. Debts are written
// down before the files change, apart from the journal: one that cannot be paid keeps no other change from being made.
type debt struct {
	Name   string `json:"name"`
	Reload bool   `json:"reload,omitempty"`
	PID    int    `json:"pid,omitempty"` // its process before; 0 if there was none
	// it may have read what was taken back, though its process is the same
	Seen bool `json:"seen,omitempty"`
}

type debts struct {
	Boot     string `json:"boot"` // in another one everything was started again
	Services []debt `json:"services"`
}

// owed returns the debts.
func (h *Host) owed() ([]debt, error) {
	var d debts
	if _, err := load(h.cfg.Dir, owedFile, &d); err != nil || d.Boot != h.cfg.BootID {
		return nil, err
	}
	return d.Services, nil
}

func (h *Host) owe(list []debt) error {
	if len(list) == 0 {
		return remove(h.cfg.Dir, owedFile)
	}
	return save(h.cfg.Dir, owedFile, debts{h.cfg.BootID, list})
}

// recount has a record of debts that is not readable be one of everything that runs.
func (h *Host) recount() error {
	_, err := h.owed()
	var file *fs.PathError
	if err == nil || errors.As(err, &file) {
		return err
	}
	h.cfg.Log.Warn("it is not known which services run with other files: all are restarted", "error", err)
	var all []debt
	for _, u := range h.wanted.units {
		if u.long() {
			all = append(all, debt{Name: u.name, Seen: true})
		}
	}
	return h.owe(all)
}

// oweAll has all services of a state owe a restart where systemd runs them: it started them before the agent took files
// back that they may have read.
func (h *Host) oweAll(st state) error {
	cfg, err := st.config()
	if err != nil || cfg == nil || !h.cfg.Systemd {
		return err
	}
	is, err := read(cfg, cfg)
	if err != nil {
		return err
	}
	var all []debt
	for _, u := range is.units {
		if u.long() {
			all = append(all, debt{Name: u.name, Seen: true})
		}
	}
	return h.owe(all)
}

// incur adds debts for services that are about to see other files. An older debt of a service stays as it is.
func (h *Host) incur(ctx context.Context, services []*configv1.ServiceAction, seen bool) error {
	if len(services) == 0 {
		return nil
	}
	list, err := h.owed()
	if err != nil {
		return err
	}
	for _, s := range services {
		i := slices.IndexFunc(list, func(d debt) bool { return d.Name == s.GetName() })
		if i < 0 {
			is, _ := h.units.look(ctx, unit{name: s.GetName()})
			i, list = len(list), append(list, debt{
				Name: s.GetName(), Reload: true, PID: is.pid,
				Seen: !is.running && !is.final, // it may start, and end for good, before it is checked again
			})
		}
		list[i].Seen = list[i].Seen || seen
		list[i].Reload = list[i].Reload && s.GetReload() // to restart one includes to reload it
	}
	return h.owe(list)
}

// due returns what is to be done to services of an order: at least that, and what else they owe.
func (h *Host) due(services []*configv1.ServiceAction) ([]*configv1.ServiceAction, error) {
	list, err := h.owed()
	if err != nil {
		return nil, err
	}
	var out []*configv1.ServiceAction
	for _, s := range services {
		reload := s.GetReload()
		for _, d := range list {
			reload = reload && (d.Name != s.GetName() || d.Reload)
		}
		out = append(out, &configv1.ServiceAction{Name: s.GetName(), Reload: reload})
	}
	return out, nil
}

// forgive drops the debts of services that have seen the files that there are.
func (h *Host) forgive(names ...string) error {
	list, err := h.owed()
	if err != nil || len(list) == 0 {
		return err
	}
	return h.owe(slices.DeleteFunc(list, func(d debt) bool { return slices.Contains(names, d.Name) }))
}

// pay has services see the files that there are, all that it can: those of the present units.
func (h *Host) pay(ctx context.Context, units []unit) error {
	list, err := h.owed()
	if err != nil {
		return err
	}
	var broken []error
	for _, d := range list {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(broken, err)...)
		}
		i := slices.IndexFunc(units, func(u unit) bool { return u.name == d.Name })
		if i >= 0 && h.touched(ctx, d, units[i]) {
			err := h.units.renewAndWatch(ctx, units[i], d.Reload, h.root())
			if err != nil && d.Reload && ctx.Err() == nil { // a restart reads everything
				err = h.units.renewAndWatch(ctx, units[i], false, h.root())
			}
			if err != nil {
				broken = append(broken, fmt.Errorf("unit %q: %w", d.Name, err))
				continue
			}
		}
		if err := h.forgive(d.Name); err != nil {
			broken = append(broken, err)
		}
	}
	return errors.Join(broken...)
}

// touched reports whether a service may have read other files than there are.
func (h *Host) touched(ctx context.Context, d debt, u unit) bool {
	if d.Seen || !u.long() {
		return d.Seen
	}
	s, known := h.units.look(ctx, u)
	return !known || s.pid != d.PID || !s.running && !s.final
}
