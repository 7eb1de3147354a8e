package plan

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
)

// Impact is what a configuration requires of a node that applies it; a greater one includes the work of the lesser.
type Impact int

// The impacts.
const (
	None    Impact = iota
	Restart        // services are restarted or read their configuration again
	Drain          // the node is emptied first
	Reboot         // and restarted afterwards
)

// String returns the impact in one CamelCase word.
func (a Impact) String() string { return [...]string{"None", "Restart", "Drain", "Reboot"}[a] }

// Drains reports whether a node has to be empty for it.
func (a Impact) Drains() bool { return a >= Drain }

// Change is one item that differs between two configurations.
type Change struct {
	Item     string // such as `file "/etc/chrony.conf"`
	How      string // added, changed or removed
	Action   Impact
	Services []*configv1.ServiceAction // what is done to services for it, in order
	Why      string                    // why Action is more than its policy says; empty if it is not

	Added, Removed []string // entries of an item that is a list, in order
}

// String returns the change in one line.
func (c Change) String() string {
	var entries []string
	if len(c.Added) > 0 {
		entries = append(entries, "added "+quoted(c.Added))
	}
	if len(c.Removed) > 0 {
		entries = append(entries, "removed "+quoted(c.Removed))
	}
	if len(entries) > 0 {
		return c.Item + " " + c.How + ": " + strings.Join(entries, "; ")
	}
	if c.Why != "" {
		return c.Item + " " + c.How + ": " + c.Why
	}
	return c.Item + " " + c.How
}

// Diff returns what differs between two configurations, in a fixed order, and what that requires of a node by the
// policies in force; before may be nil for a node that has none. What cannot be read counts as empty: kinds refuse it,
// so it does not come here.
func Diff(before, after *configv1.MachineConfig, policy *configv1.NodeDisruptionPolicy) []Change {
	a, b := before.GetSpec(), after.GetSpec()
	j := judge{policy: policy, before: before, after: after}
	var out []Change
	system := Reboot
	if machineconfig.SystemOf(before).Equal(machineconfig.SystemOf(after)) {
		system = None // it is written in another way
	}
	for _, s := range []struct {
		item   string
		differ bool
		action Impact
	}{
		{"osImageURL", a.GetOsImageUrl() != b.GetOsImageUrl(), system},
		{
			"baseOSExtensionsContainerImage",
			a.GetBaseOsExtensionsContainerImage() != b.GetBaseOsExtensionsContainerImage(), system,
		},
		{kernelArguments, !slices.Equal(a.GetKernelArguments(), b.GetKernelArguments()), system},
		{extensions, !slices.Equal(a.GetExtensions(), b.GetExtensions()), system},
		{"fips", a.GetFips() != b.GetFips(), Reboot},
		{"kernelType", kernel(a) != kernel(b), Reboot},
	} {
		if s.differ {
			c := Change{Item: s.item, How: "changed", Action: s.action}
			switch s.item {
			case kernelArguments:
				c.Added, c.Removed = entries(a.GetKernelArguments(), b.GetKernelArguments())
			case extensions:
				c.Added, c.Removed = entries(a.GetExtensions(), b.GetExtensions())
			}
			if lists := s.item == kernelArguments || s.item == extensions; lists && len(c.Added)+len(c.Removed) == 0 {
				c.How = "reordered"
			}
			out = append(out, c)
		}
	}
	was, _ := parse(a.GetConfig(), "")
	is, _ := parse(b.GetConfig(), "")
	out = append(out, compare("file", byPath(was), byPath(is), j.file)...)
	out = append(out, compare("unit", units(was), units(is), j.unit)...)
	return append(out, compare("user", users(was), users(is), j.user)...)
}

// Items that are lists. An entry may come several times.
const (
	kernelArguments = "kernelArguments"
	extensions      = "extensions"
)

// entries returns which entries of a list come new into another one, and which go, each as often as it does.
func entries(was, is []string) (added, removed []string) {
	count := map[string]int{}
	for _, e := range was {
		count[e]++
	}
	for _, e := range is {
		if count[e]--; count[e] < 0 {
			added = append(added, e)
		}
	}
	clear(count)
	for _, e := range is {
		count[e]++
	}
	for _, e := range was {
		if count[e]--; count[e] < 0 {
			removed = append(removed, e)
		}
	}
	return added, removed
}

func quoted(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%q", s))
	}
	return strings.Join(out, ", ")
}

func kernel(s *configv1.MachineConfigSpec) string {
	if s.GetKernelType() == "" {
		return defaultKernel
	}
	return s.GetKernelType()
}

// byPath returns files, directories and links, which share one space of names.
func byPath(c types.Config) map[string]any {
	out := map[string]any{}
	for _, f := range c.Storage.Files {
		f.Overwrite = nil // says how to get there, not what is there
		out[path.Clean(f.Path)] = f
	}
	for _, d := range c.Storage.Directories {
		d.Overwrite = nil
		out[path.Clean(d.Path)] = d
	}
	for _, l := range c.Storage.Links {
		l.Overwrite = nil
		out[path.Clean(l.Path)] = l
	}
	for what, there := range map[string]any{
		"disks": c.Storage.Disks, "filesystems": c.Storage.Filesystems, "raid": c.Storage.Raid, "luks": c.Storage.Luks,
	} {
		if reflect.ValueOf(there).Len() > 0 {
			out[what] = there
		}
	}
	return out
}

func units(c types.Config) map[string]any {
	out := map[string]any{}
	for _, u := range c.Systemd.Units {
		out[u.Name] = u
	}
	return out
}

func users(c types.Config) map[string]any {
	out := map[string]any{}
	for _, u := range c.Passwd.Users {
		out[u.Name] = u
	}
	return out
}

// compare returns the differences of two sets of items, by name.
func compare(what string, was, is map[string]any, decide func(name string, c *Change)) []Change {
	names := slices.Sorted(maps.Keys(was))
	for name := range is {
		if _, ok := was[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []Change
	for _, name := range names {
		a, had := was[name]
		b, has := is[name]
		how := "changed"
		switch {
		case !had:
			how = "added"
		case !has:
			how = "removed"
		case reflect.DeepEqual(a, b):
			continue
		}
		c := Change{Item: fmt.Sprintf("%s %q", what, name), How: how}
		decide(name, &c)
		out = append(out, c)
	}
	return out
}

// Needed returns the greatest action of some changes, and the first change that makes it necessary in one line.
func Needed(changes []Change) (Impact, string) {
	action, why := None, ""
	for _, c := range changes {
		if c.Action > action {
			action, why = c.Action, c.String()
		}
	}
	return action, why
}

// Services returns what is done to services for some changes, each service once, in the order of the changes. To
// restart one includes to reload it. None is for a node that is rebooted.
func Services(changes []Change) []*configv1.ServiceAction {
	var out []*configv1.ServiceAction
	for _, c := range changes {
		if c.Action == Reboot {
			return nil
		}
		for _, s := range c.Services {
			i := slices.IndexFunc(out, func(o *configv1.ServiceAction) bool { return o.GetName() == s.GetName() })
			if i < 0 {
				out = append(out, s)
			} else if out[i].GetReload() {
				out[i] = s
			}
		}
	}
	return out
}
