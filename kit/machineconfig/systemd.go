package machineconfig

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	unitDir     = "etc/systemd/system"
	serviceUnit = ".service"
)

func (r *reader) systemd(c types.Config) {
	was := byKey(r.was.Systemd.Units, func(u types.Unit) string { return u.Name })
	for i, u := range c.Systemd.Units {
		r.judge(was[u.Name], u, r.unit(u, fmt.Sprintf("spec.config.systemd.units[%d]", i)))
	}
}

// unit adds what one unit wants, as far as it is understood, and returns what of it cannot be put in force. A unit that
// is not enabled is only written, so anything may be in it.
func (r *reader) unit(u types.Unit, at string) []object.Fault {
	if u.Name != path.Base(u.Name) || !fs.ValidPath(u.Name) {
		return []object.Fault{object.Faultf(at+".name", "%q is no name of a unit", u.Name)}
	}
	if u.Mask != nil && *u.Mask {
		r.link(path.Join(unitDir, u.Name), "/dev/null")
		return nil
	}
	parts, bad := r.unitFiles(u, at)
	if u.Enabled == nil || !*u.Enabled {
		return bad
	}
	if u.Contents == nil || *u.Contents == "" {
		return append(bad, object.Faultf(at+".enabled", "unit %q has no contents, and units of the image are not run",
			u.Name))
	}
	parsed, faults := parseUnit(u.Name, parts)
	switch {
	case path.Ext(u.Name) != serviceUnit:
		bad = append(bad, object.Faultf(at+".enabled", "unit %q never runs: only units of the type service do", u.Name))
	case strings.HasSuffix(u.Name, "@"+serviceUnit):
		bad = append(bad, object.Faultf(at+".enabled", "unit %q never runs: it is a template without an instance", u.Name))
	default:
		bad = append(bad, faults...)
	}
	if path.Ext(u.Name) == serviceUnit && len(parsed.Start) > 0 {
		r.out.Units = append(r.out.Units, parsed.Unit)
	}
	for _, by := range parsed.links() {
		r.link(path.Join(unitDir, by, u.Name), "/"+path.Join(unitDir, u.Name))
	}
	return bad
}

// part is one file of a unit.
type part struct{ at, text string }

// unitFiles adds a unit's own file and its drop-ins, and returns them in the order in which they count.
func (r *reader) unitFiles(u types.Unit, at string) ([]part, []object.Fault) {
	var parts []part
	var bad []object.Fault
	if u.Contents != nil && *u.Contents != "" {
		parts = append(parts, part{at + ".contents", *u.Contents})
		r.file(path.Join(unitDir, u.Name), *u.Contents, defaultFileMode)
	}
	for _, i := range inOrder(u.Dropins) {
		d := u.Dropins[i]
		if d.Name != path.Base(d.Name) || !fs.ValidPath(d.Name) {
			bad = append(bad, object.Faultf(at+".dropins", "%q is no name of a drop-in", d.Name))
			continue
		}
		if d.Contents == nil || *d.Contents == "" {
			continue
		}
		r.file(path.Join(unitDir, u.Name+".d", d.Name), *d.Contents, defaultFileMode)
		parts = append(parts, part{fmt.Sprintf("%s.dropins[%d].contents", at, i), *d.Contents})
	}
	return parts, bad
}

// inOrder returns the indices of drop-ins in the order of their names.
func inOrder(dropins []types.Dropin) []int {
	out := make([]int, len(dropins))
	for i := range out {
		out[i] = i
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(dropins[a].Name, dropins[b].Name) })
	return out
}
