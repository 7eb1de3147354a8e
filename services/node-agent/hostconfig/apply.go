package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/durable"
	"github.com/windlass-dev/windlass/kit/machineconfig"
)

// apply brings the machine to a configuration and returns what it has then. It does so wholly or not at all: what goes
// wrong, or an end of ctx, takes back whatever was done.
func (h *Host) apply(ctx context.Context, st state, o order) (state, wanted, error) {
	before, was, err := h.heal(ctx, st)
	if err != nil {
		return st, wanted{}, err
	}
	from := before
	if o.back { // it had that one, so it can have it
		from = o.config
	}
	is := wanted{}
	if o.config != nil {
		if is, err = read(from, o.config); err == nil && !o.back {
			err = h.refused(st, before, o.config, is)
		}
	}
	if err != nil {
		return st, wanted{}, err
	}
	o.deployment = st.Deployment
	// it is staged, so it costs nothing
	if s := machineconfig.SystemOf(o.config); !s.Equal(machineconfig.SystemOf(before)) {
		if o.deployment, err = h.cfg.System.Stage(ctx, s); err != nil {
			return st, wanted{}, fmt.Errorf("%w: %w", errSystem, err)
		}
		o.reboot, o.switches = true, true
	}
	next, j, ops, err := h.prepare(st, o, is)
	if err != nil {
		return st, wanted{}, err
	}
	if err := save(h.cfg.Dir, journalFile, j); err != nil {
		return st, wanted{}, err
	}
	if begun, err := h.carryOut(ctx, ops, was.units, is.units, o, next); err != nil {
		now := is.units
		if !begun { // the units are as they were
			now = was.units
		}
		return st, wanted{}, errors.Join(err, h.takeBack(ctx, st, j, now, was.units))
	}
	h.settle(next)
	if err := h.units.settled(is.units); err != nil {
		h.cfg.Log.WarnContext(ctx, "units that ended stay recorded", "error", err)
	}
	if err := h.forgive(started(was.units, is.units, o.services)...); err != nil {
		h.cfg.Log.WarnContext(ctx, "services will be restarted once more", "error", err)
	}
	return next, is, nil
}

// started returns the units that run with the files of a change, or not any more: those that it started or ended, and
// the given services.
func started(was, is []unit, services []*configv1.ServiceAction) []string {
	var out []string
	for _, u := range is {
		if !contains(was, u) {
			out = append(out, u.name)
		}
	}
	for _, u := range was {
		if !slices.ContainsFunc(is, func(o unit) bool { return o.name == u.name }) {
			out = append(out, u.name)
		}
	}
	for _, s := range services {
		out = append(out, s.GetName())
	}
	return out
}

// rerun returns the units of before whose commands that run once a change runs in another form.
func rerun(was, is []unit) []*configv1.ServiceAction {
	var out []*configv1.ServiceAction
	for _, u := range was {
		if (!u.long() || len(u.pre) > 0) && !contains(is, u) &&
			slices.ContainsFunc(is, func(o unit) bool { return o.name == u.name }) {
			out = append(out, &configv1.ServiceAction{Name: u.name})
		}
	}
	return out
}

// op is one change of the disk.
type op struct {
	undo saved
	do   func() error
}

// prepare says what has to be done, and how it is taken back.
func (h *Host) prepare(st state, o order, is wanted) (state, journal, []op, error) {
	raw, err := marshal(o.config)
	if err != nil {
		return st, journal{}, nil, err
	}
	next := state{
		Name: o.name(), Config: raw, Previous: st.Name, Change: uuid.NewString(),
		Systems: st.Systems || o.switches, Deployment: o.deployment,
		Failed:   st.Failed, // those that start with this one are taken off later
		Oneshots: h.cfg.BootID,
	}
	if o.reboot {
		next.EndingBoot = h.cfg.BootID
	}
	if h.cfg.Patience > 0 && !o.back {
		next.Trial = &trial{Before: st.Name, Config: st.Config}
	}
	if next.Rejected = o.rejects; o.back {
		next.Previous = next.Name // what is taken back counts no more
	}
	ops, err := h.removals(st, is)
	if err != nil {
		return st, journal{}, nil, err
	}
	j := journal{Change: next.Change, Config: next.Name}
	made := map[string]bool{}
	for _, e := range is.entries {
		have, err := h.tree.look(e.path)
		if err != nil {
			return st, journal{}, nil, err
		}
		original, ok := st.original(e.path)
		if !ok {
			original = have
		}
		if err := h.tree.preserve(have); err != nil {
			return st, journal{}, nil, err
		}
		next.Originals = append(next.Originals, original)
		if have.holds(e) {
			continue
		}
		for _, dir := range h.tree.missing(e.path) {
			made[dir] = true
		}
		ops = append(ops, op{undo: have, do: func() error { return h.tree.put(e) }})
	}
	j.Made = slices.Sorted(maps.Keys(made))
	for _, dir := range st.Made {
		if _, err := h.tree.root.Lstat(dir); err == nil {
			made[dir] = true
		}
	}
	for _, e := range is.entries {
		delete(made, e.path) // it is wanted for itself
	}
	next.Made = slices.Sorted(maps.Keys(made))
	for _, o := range ops {
		j.Undo = append(j.Undo, o.undo)
	}
	return next, j, ops, nil
}

// removals are the changes of paths that the former configuration had and the next one has not; the innermost come
// first.
func (h *Host) removals(st state, is wanted) ([]op, error) {
	var ops []op
	for _, original := range st.Originals {
		if slices.ContainsFunc(is.entries, func(e entry) bool { return e.path == original.Path }) {
			continue
		}
		have, err := h.tree.look(original.Path)
		if err != nil {
			return nil, err
		}
		if reflect.DeepEqual(have, original) {
			continue
		}
		if err := h.tree.preserve(have); err != nil {
			return nil, err
		}
		ops = append(ops, op{undo: have, do: func() error { return h.tree.restore(original) }})
	}
	slices.SortFunc(ops, func(a, b op) int { return strings.Compare(b.undo.Path, a.undo.Path) })
	return ops, nil
}

// carryOut changes the disk, then the units, has services see it, and then writes down that it is done. With an error,
// begun reports whether units were changed.
func (h *Host) carryOut(ctx context.Context, ops []op, was, is []unit, o order, next state) (begun bool, err error) {
	services := o.services
	if o.reboot {
		services = nil // everything is started again
	}
	if err := errors.Join(h.incur(ctx, services, false), h.units.expect(is)); err != nil {
		return false, err
	}
	for _, op := range ops {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if err := op.do(); err != nil {
			return false, fmt.Errorf("%q: %w", "/"+op.undo.Path, err)
		}
	}
	if err := h.tree.sync(changed(ops)); err != nil {
		return false, err
	}
	if err := h.incur(ctx, rerun(was, is), true); err != nil {
		return false, err
	}
	if !o.switches { // else their programs may be in the system that runs after the restart
		if err := h.units.change(ctx, was, is, h.root()); err != nil {
			return true, err
		}
	}
	if err := h.incur(ctx, services, true); err != nil {
		return true, err
	}
	if services, err = h.due(services); err != nil {
		return true, err
	}
	if err := h.units.renew(ctx, services, was, is, h.root()); err != nil {
		return true, err
	}
	if err := h.tree.before("record"); err != nil {
		return true, err
	}
	return true, save(h.cfg.Dir, currentFile, next)
}

func changed(ops []op) []string {
	var out []string
	for _, o := range ops {
		out = append(out, o.undo.Path)
	}
	return out
}

// takeBack undoes a journal. What it leaves is healed later, since the journal stays, and so are debts.
func (h *Host) takeBack(ctx context.Context, st state, j journal, is, was []unit) error {
	// This ignores the cancellation of ctx: a partial change must not stay.
	ctx = context.WithoutCancel(ctx)
	maps.DeleteFunc(h.units.failed, func(name, _ string) bool { // what does not start of a change goes with it
		return slices.ContainsFunc(is, func(u unit) bool { return u.name == name && !contains(was, u) })
	})
	if err := errors.Join(h.undo(j), h.units.back(ctx, is, was, h.root())); err != nil {
		return err
	}
	return h.taken(st)
}

// taken ends a take-back to a state. It says once more what the machine has: that may have been replaced already.
func (h *Host) taken(st state) error {
	if st.Name == "" && st.Change == "" {
		return errors.Join(remove(h.cfg.Dir, currentFile), remove(h.cfg.Dir, journalFile))
	}
	if err := save(h.cfg.Dir, currentFile, st); err != nil {
		return err
	}
	return remove(h.cfg.Dir, journalFile)
}

// undo puts back the files of a journal, all that it can.
func (h *Host) undo(j journal) error {
	var broken []error
	var paths []string
	for _, s := range slices.Backward(j.Undo) {
		// What was not changed may be what cannot be: it would fail again, and block every other change.
		if have, err := h.tree.look(s.Path); err == nil && reflect.DeepEqual(have, s) {
			continue
		}
		paths = append(paths, s.Path)
		if err := h.tree.restore(s); err != nil {
			broken = append(broken, fmt.Errorf("take back %q: %w", "/"+s.Path, err))
		}
	}
	h.tree.tidy(j.Made)
	return errors.Join(append(broken, h.tree.sync(paths))...)
}

// settle clears away what a finished change needs no more.
func (h *Host) settle(next state) {
	h.tree.tidy(next.Made)
	h.tree.forget(next.Originals)
	if err := remove(h.cfg.Dir, journalFile); err != nil {
		h.cfg.Log.Warn("journal stays", "error", err) // the state names it, so it means nothing any more
	}
}

func remove(dir, name string) error {
	if err := durable.Remove(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// recall takes back a change that a killed agent left half-made, and returns the state of the machine.
func (h *Host) recall() (state, error) {
	var st state
	found, err := load(h.cfg.Dir, currentFile, &st)
	if err == nil && found && st.Name == "" && (st.Change == "" || len(st.Config) > 0) {
		err = fmt.Errorf("%s: it names no configuration", currentFile)
	}
	if err != nil {
		return state{}, err
	}
	j, err := h.pending(st)
	if err != nil || j == nil {
		return st, err
	}
	h.cfg.Log.Info("half-made change is taken back", "config", j.Config)
	if err := h.undo(*j); err != nil {
		return st, err
	}
	if err := h.oweAll(st); err != nil {
		return st, err
	}
	return st, remove(h.cfg.Dir, journalFile) // the units follow in resume
}

// pending returns the journal of a change that was not finished, nil if there is none. One that led to the present
// state is cleared away.
func (h *Host) pending(st state) (*journal, error) {
	var j journal
	found, err := load(h.cfg.Dir, journalFile, &j)
	switch {
	case err != nil || !found:
		return nil, err
	case j.Change == "":
		return nil, fmt.Errorf("%s: it names no change", journalFile)
	case j.Change == st.Change:
		h.settle(st)
		return nil, nil
	}
	return &j, nil
}

// heal takes back a change that could not be taken back when it failed: its files, and then the units, of which some
// may have ended or begun. The journal goes last, so that a failure or a kill in between is healed again. It returns
// the present configuration, nil for a machine without one, and what that wants.
func (h *Host) heal(ctx context.Context, st state) (*configv1.MachineConfig, wanted, error) {
	is := wanted{}
	cfg, err := st.config()
	if err != nil {
		return nil, is, err
	}
	if cfg != nil {
		if is, err = read(cfg, cfg); err != nil {
			return nil, is, fmt.Errorf("present configuration %s: %w", st.Name, err)
		}
	}
	j, err := h.pending(st)
	if err != nil || j == nil {
		return cfg, is, err
	}
	h.cfg.Log.InfoContext(ctx, "half-made change is taken back", "config", j.Config)
	if err := h.undo(*j); err != nil {
		return nil, is, err
	}
	if _, err := h.units.resumeAll(ctx, is.units, h.root(), false); err != nil {
		return nil, is, err
	}
	return cfg, is, h.taken(st)
}
