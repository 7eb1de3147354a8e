// Package machineconfig reads what a MachineConfig wants of a machine, and finds what of it cannot be put in force on a
// machine that runs. It is a pure function of two configurations: node-configurator calls it at render, before any node
// is disturbed, and the agent of a machine calls it before it changes anything there.
package machineconfig

import (
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/ignition"
	"github.com/windlass-dev/windlass/kit/object"
)

// maxContent is how many bytes all files of a configuration may have together after they are unpacked.
const maxContent = 64 << 20

// Kinds of entries.
const (
	File      = "file"
	Directory = "directory"
	Link      = "link"
)

// Wanted is what a configuration wants of a machine.
type Wanted struct {
	Entries []Entry // directories first, then files, then links, each by path
	Units   []Unit  // enabled services, by name
}

// Entry is one file, directory or symbolic link.
type Entry struct {
	Path    string // below the machine's root, without a slash in front
	Kind    string
	Mode    fs.FileMode // of files and directories, without the type
	Content []byte      // of files
	Target  string      // of links
	// Overwrite says that it may replace what a host has there. Source: Ignition 3.5, "overwrite".
	Overwrite bool
}

// Read returns what the configuration after wants of a machine that has the configuration before, which is nil for a
// machine without one. The faults name what cannot be put in force; the machine can have after only if there are none.
// What is the same in both configurations is no fault: Read(c, c) returns what a machine that has c already runs.
func Read(before, after *configv1.MachineConfig) (Wanted, []object.Fault) {
	r := reader{}
	r.was, _ = parse(before) // one that is not readable holds nothing that after could share
	r.settings(before, after.GetSpec())
	config, err := parse(after)
	if err != nil {
		r.faults = append(r.faults, object.Fault{Path: "spec.config", Description: err.Error()})
		return Wanted{}, r.faults
	}
	r.sections(config)
	r.storage(config)
	r.systemd(config)
	r.users(config)
	r.sort()
	if !reflect.DeepEqual(r.was, config) {
		r.overlaps()
	}
	return r.out, r.faults
}

// reader collects what a configuration wants.
type reader struct {
	was    types.Config // what the machine has
	out    Wanted
	faults []object.Fault
}

// judge adds the faults of one item, unless the machine has that very item already.
func (r *reader) judge(was, is any, faults []object.Fault) {
	if len(faults) > 0 && !reflect.DeepEqual(was, is) {
		r.faults = append(r.faults, faults...)
	}
}

func parse(cfg *configv1.MachineConfig) (types.Config, error) {
	if cfg.GetSpec().GetConfig() == nil {
		return types.Config{}, nil
	}
	config, report, err := ignition.Parse(cfg.GetSpec().GetConfig())
	if err != nil {
		return config, fmt.Errorf("%w: %s", err, strings.TrimSpace(report.String()))
	}
	return config, nil
}

// settings checks what is not Ignition. No driver changes the kernel of a machine, so a machine never has another one,
// and a configuration that no longer asks for it is in force.
func (r *reader) settings(before *configv1.MachineConfig, is *configv1.MachineConfigSpec) {
	was := before.GetSpec()
	r.system(was, is)
	if t := is.GetKernelType(); t != "" && t != "default" && t != was.GetKernelType() {
		r.faults = append(r.faults, object.Fault{
			Path: "spec.kernelType", Description: "cannot be changed: no driver of this release changes the kernel of a machine",
		})
	}
	if before != nil && was.GetFips() != is.GetFips() {
		r.faults = append(r.faults, object.Fault{
			Path: "spec.fips", Description: "cannot be changed once a machine has its configuration",
		})
	}
}

// sections checks the sections that are in force only when a machine is made.
func (r *reader) sections(c types.Config) {
	for _, s := range []struct {
		path    string
		was, is any
	}{
		{"ignition.config", r.was.Ignition.Config, c.Ignition.Config},
		{"ignition.proxy", r.was.Ignition.Proxy, c.Ignition.Proxy},
		{"ignition.security", r.was.Ignition.Security, c.Ignition.Security},
		{"ignition.timeouts", r.was.Ignition.Timeouts, c.Ignition.Timeouts},
		{"kernelArguments", r.was.KernelArguments, c.KernelArguments},
		{"passwd.groups", r.was.Passwd.Groups, c.Passwd.Groups},
		{"storage.disks", r.was.Storage.Disks, c.Storage.Disks},
		{"storage.filesystems", r.was.Storage.Filesystems, c.Storage.Filesystems},
		{"storage.luks", r.was.Storage.Luks, c.Storage.Luks},
		{"storage.raid", r.was.Storage.Raid, c.Storage.Raid},
	} {
		if !(isEmpty(reflect.ValueOf(s.was)) && isEmpty(reflect.ValueOf(s.is))) {
			r.judge(s.was, s.is, []object.Fault{
				object.Faultf("spec.config."+s.path, "cannot be changed on a machine that runs"),
			})
		}
	}
}

// isEmpty reports whether a section of Ignition says nothing: an empty list is as good as none.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !isEmpty(v.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// sort puts entries and units in their order.
func (r *reader) sort() {
	rank := map[string]int{Directory: 0, File: 1, Link: 2}
	slices.SortFunc(r.out.Entries, func(a, b Entry) int {
		if a.Kind != b.Kind {
			return rank[a.Kind] - rank[b.Kind]
		}
		return strings.Compare(a.Path, b.Path)
	})
	slices.SortFunc(r.out.Units, func(a, b Unit) int { return strings.Compare(a.Name, b.Name) })
}

// overlaps finds paths that cannot all exist: one that is wanted twice, or below another that is no directory.
func (r *reader) overlaps() {
	kinds := map[string]string{}
	for _, e := range r.out.Entries {
		if kinds[e.Path] != "" {
			r.faults = append(r.faults, object.Faultf("spec.config", "%q is wanted twice", "/"+e.Path))
		}
		kinds[e.Path] = e.Kind
	}
	for _, e := range r.out.Entries {
		for dir := path.Dir(e.Path); dir != "."; dir = path.Dir(dir) {
			if kind := kinds[dir]; kind != "" && kind != Directory {
				r.faults = append(r.faults, object.Faultf("spec.config", "%q is wanted below %q, which is a %s",
					"/"+e.Path, "/"+dir, kind))
			}
		}
	}
}
