package plan

import (
	"cmp"
	"maps"
	"slices"

	ignition "github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
)

// mergeAll returns what ignition.Merge makes of configurations, each merged into those before it. It merges the lists
// that grow with the number of configurations item by item: Ignition's own function copies and records all that was
// merged before, each time.
func mergeAll(parts []types.Config) types.Config {
	var whole types.Config
	items := map[string]*item{}
	n := 0
	for i, part := range parts {
		rest, own := split(part)
		if i == 0 {
			whole = rest
		} else {
			whole = ignition.Merge(whole, rest)
		}
		for _, it := range own {
			n++
			if has := items[it.key]; has != nil && has.list == it.list {
				has.alone = ignition.Merge(has.alone, it.alone)
				continue
			}
			it.order = n // one that takes the path of an item of another list starts without what was there
			items[it.key] = &it
		}
	}
	for _, it := range slices.SortedFunc(maps.Values(items), func(a, b *item) int {
		return cmp.Compare(a.order, b.order)
	}) {
		whole.Storage.Files = append(whole.Storage.Files, it.alone.Storage.Files...)
		whole.Storage.Directories = append(whole.Storage.Directories, it.alone.Storage.Directories...)
		whole.Storage.Links = append(whole.Storage.Links, it.alone.Storage.Links...)
		whole.Systemd.Units = append(whole.Systemd.Units, it.alone.Systemd.Units...)
	}
	return whole
}

// item is a file, directory, link or unit.
type item struct {
	key   string // what it is merged by: files, directories and links share their paths
	list  string
	alone types.Config // with nothing but the item
	order int
}

// split returns a configuration without its items, and these.
func split(c types.Config) (types.Config, []item) {
	var out []item
	for _, f := range c.Storage.Files {
		alone := types.Config{Storage: types.Storage{Files: []types.File{f}}}
		out = append(out, item{key: "path " + f.Key(), list: "files", alone: alone})
	}
	for _, d := range c.Storage.Directories {
		alone := types.Config{Storage: types.Storage{Directories: []types.Directory{d}}}
		out = append(out, item{key: "path " + d.Key(), list: "directories", alone: alone})
	}
	for _, l := range c.Storage.Links {
		alone := types.Config{Storage: types.Storage{Links: []types.Link{l}}}
		out = append(out, item{key: "path " + l.Key(), list: "links", alone: alone})
	}
	for _, u := range c.Systemd.Units {
		alone := types.Config{Systemd: types.Systemd{Units: []types.Unit{u}}}
		out = append(out, item{key: "unit " + u.Key(), list: "units", alone: alone})
	}
	c.Storage.Files, c.Storage.Directories, c.Storage.Links, c.Systemd.Units = nil, nil, nil, nil
	return c, out
}
