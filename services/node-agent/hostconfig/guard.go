package hostconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"github.com/windlass-dev/windlass/kit/object"
)

// vendorUnits are where the units of packages are, which those of administrators hide. Source: systemd.unit(5).
var vendorUnits = []string{"usr/lib/systemd/system", "lib/systemd/system"}

// refused returns an unreconcilableError if a host, as it is, does not admit a configuration after the present one:
// only what is Windlass' own of its files is replaced, unless the configuration says that it overwrites, and no driver
// changes its operating system.
func (h *Host) refused(st state, before, after *configv1.MachineConfig, is wanted) error {
	if h.cfg.Files == nil {
		return nil
	}
	var bad []object.Fault
	if s := machineconfig.SystemOf(after); !s.Equal(machineconfig.SystemOf(before)) {
		bad = append(bad, object.Fault{Path: "spec", Description: "the operating system of a host is not changed: " +
			"osImageURL, extensions and kernelArguments are for machines that have a directory for their files alone"})
	}
	for _, e := range is.entries {
		at, err := h.tree.resolve(e.path)
		if err != nil {
			return err
		}
		faults := h.cfg.Files.Faults(machineconfig.Entry{Path: e.path, Kind: e.kind}, at)
		if len(faults) == 0 {
			if faults, err = h.foreign(st, e); err != nil {
				return err
			}
		}
		bad = append(bad, faults...)
	}
	if len(bad) > 0 {
		return &unreconcilableError{bad}
	}
	return nil
}

// foreign returns a fault if the host has something at the path of an entry that no configuration put there.
func (h *Host) foreign(st state, e entry) ([]object.Fault, error) {
	if _, ours := st.original(e.path); ours {
		return nil, nil
	}
	have, err := h.tree.look(e.path)
	if err != nil {
		return nil, err
	}
	if have.Kind != absent && !have.holds(e) && !e.overwrite {
		return []object.Fault{object.Faultf("spec.config", "the host has another %s at %q, which is not Windlass': "+
			"overwrite: true replaces it, until the host leaves", have.Kind, "/"+e.path)}, nil
	}
	if path.Dir(e.path) != strings.TrimPrefix(unitFiles, "/") || e.overwrite {
		return nil, nil
	}
	for _, dir := range vendorUnits {
		p := path.Join(dir, path.Base(e.path))
		if _, err := h.tree.root.Lstat(p); err == nil {
			return []object.Fault{object.Faultf("spec.config", "%q would hide the unit of the host, %q: use another name",
				"/"+e.path, "/"+p)}, nil
		}
	}
	return nil, nil
}

// resolve returns where an entry comes to be: links in the directories above it are followed.
func (t *tree) resolve(p string) (string, error) {
	top, err := filepath.EvalSymlinks(t.root.Name())
	if err != nil {
		return "", err
	}
	dir, rest := path.Dir(p), path.Base(p)
	for {
		real, err := filepath.EvalSymlinks(filepath.Join(top, dir))
		switch {
		case err == nil:
			at, err := filepath.Rel(top, filepath.Join(real, rest))
			if err != nil || !fs.ValidPath(at) {
				return "", fmt.Errorf("%q is outside of the machine", "/"+p)
			}
			return at, nil
		case dir == ".", !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return "", err
		}
		dir, rest = path.Dir(dir), path.Join(path.Base(dir), rest)
	}
}

// observe compares the machine with a configuration and changes nothing. It takes it up if there is no difference, so
// that what is said of the machine is so.
func (h *Host) observe(ctx context.Context, o order, is wanted) {
	var differ []string
	next := state{
		Name: o.name(), Previous: h.st.Name, Change: h.st.Change, Oneshots: h.cfg.BootID, Made: h.st.Made,
		Observed: h.st.Observed || h.st.Name == "",
	}
	var err error
	if next.Config, err = marshal(o.config); err != nil {
		h.fail(ctx, o, err)
		return
	}
	for _, e := range is.entries {
		have, err := h.tree.look(e.path)
		if err == nil && have.holds(e) {
			err = h.tree.preserve(have)
		}
		switch original, ours := h.st.original(e.path); {
		case err != nil:
			differ = append(differ, fmt.Sprintf("%q: %v", "/"+e.path, reasonOf(err)))
		case !have.holds(e):
			differ = append(differ, h.tree.driftOf(e, map[string]stamp{}))
		case ours:
			next.Originals = append(next.Originals, original)
		default:
			next.Originals = append(next.Originals, have)
		}
	}
	for _, original := range h.st.Originals {
		if slices.ContainsFunc(is.entries, func(e entry) bool { return e.path == original.Path }) {
			continue
		}
		if have, err := h.tree.look(original.Path); err != nil || !reflect.DeepEqual(have, original) {
			differ = append(differ, fmt.Sprintf("%q is not as it was before Windlass", "/"+original.Path))
		}
	}
	for _, u := range h.wanted.units {
		s, _ := h.units.look(ctx, u)
		if s.running && !slices.ContainsFunc(is.units, func(o unit) bool { return o.name == u.name }) {
			differ = append(differ, fmt.Sprintf("unit %q runs", u.name))
		}
	}
	if why := h.units.idle(ctx, is.units); why != "" {
		differ = append(differ, why)
	}
	if len(differ) > 0 {
		const most = 5
		text := strings.Join(differ[:min(len(differ), most)], "; ")
		if len(differ) > most {
			text += fmt.Sprintf("; and %d more", len(differ)-most)
		}
		h.fail(ctx, o, &unreconcilableError{[]object.Fault{{Path: "spec", Description: "this host only observes: " + text}}})
		return
	}
	if err := save(h.cfg.Dir, currentFile, next); err != nil {
		h.fail(ctx, o, err)
		return
	}
	h.st, h.failed = next, ""
	h.know(is)
	h.check(ctx)
}

// Restore ends what configurations have put on a machine: its units are ended, and its files are as they were before
// the first configuration. It may be repeated.
func Restore(ctx context.Context, cfg Config) error {
	h := New(cfg)
	if err := h.open(); err != nil {
		return err
	}
	defer h.tree.root.Close()
	if !h.st.Observed && h.st.Name != "" {
		if _, _, err := h.apply(ctx, h.st, order{back: true}); err != nil {
			return err
		}
	}
	left, err := h.units.strays(nil, false) // of a change that was cut off
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := h.units.end(ctx, name); err != nil {
			return err
		}
	}
	return h.units.settled(nil)
}
