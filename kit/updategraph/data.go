// Package updategraph makes update graphs of releases and of graph data: which versions a channel has, and which
// updates have risks. Source: the graph data of OpenShift, format 1.1.0, and the Cincinnati protocol.
package updategraph

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/windlass-dev/windlass/kit/manifest"
)

// Data is what a directory of graph data says.
type Data struct {
	channels map[string][]string  // versions, some with +arch, by channel
	blocked  map[string][]blocked // by the version that they lead to, in the order of their files' names
}

// blocked is a set of updates to a version that have a risk, or that are not offered.
type blocked struct {
	key  string         // the same for blocked updates with the same risk
	arch string         // of the version; empty: every one
	from *regexp.Regexp // of versions with +arch
	risk *Risk          // nil: the updates are not offered
}

// Risk is a risk of an update, as a graph states it.
type Risk struct {
	URL           string `json:"url"`
	Name          string `json:"name"`
	Message       string `json:"message"`
	MatchingRules []Rule `json:"matchingRules"`
}

// Rule determines whether a risk applies.
type Rule struct {
	Type   string  `json:"type"`
	PromQL *PromQL `json:"promql,omitempty"`
}

// PromQL is the query of a rule.
type PromQL struct {
	PromQL string `json:"promql"`
}

const (
	// formatMajor and formatMinor are the version of the format that is understood, and older minor ones.
	formatMajor, formatMinor = 1, 1
	// Limits of a directory: some twenty times what the public one has.
	maxFiles = 10_000
	maxFile  = 1 << 20
	maxRisks = 100     // of one version
	maxFrom  = 4 << 10 // bytes of the expression of sources
)

// channelName is the form of names of channels. Source: the Cincinnati protocol.
var channelName = regexp.MustCompile(`^[0-9a-z.-]+$`)

// Read reads a directory of graph data: version, channels/*.yaml and blocked-edges/*.yaml. An error names the file and
// the field: a graph of half the data could offer what is blocked.
func Read(dir fs.FS) (*Data, error) {
	if err := readVersion(dir); err != nil {
		return nil, err
	}
	d := &Data{channels: map[string][]string{}, blocked: map[string][]blocked{}}
	if err := each(dir, "channels", func(raw []byte) error { return d.addChannel(raw) }); err != nil {
		return nil, err
	}
	if len(d.channels) == 0 {
		return nil, errors.New("channels: no channel is defined")
	}
	if _, err := fs.Stat(dir, "blocked-edges"); errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err := each(dir, "blocked-edges", func(raw []byte) error { return d.addBlocked(raw) }); err != nil {
		return nil, err
	}
	return d, nil
}

func readVersion(dir fs.FS) error {
	raw, err := readFile(dir, "version")
	if err != nil {
		return err
	}
	v, err := semver.StrictNewVersion(strings.TrimSpace(string(raw)))
	if err != nil {
		return fmt.Errorf("version: %w", err)
	}
	if v.Major() != formatMajor || v.Minor() > formatMinor {
		return fmt.Errorf("version: format %s is not understood, only %d.0 to %d.%d are", v, formatMajor, formatMajor,
			formatMinor)
	}
	return nil
}

// each calls do with each YAML file of a directory, in the order of their names. A file that is not read is an error,
// but for README and LICENSE: it could block an update.
func each(dir fs.FS, name string, do func(raw []byte) error) error {
	files, err := fs.ReadDir(dir, name)
	if err != nil {
		return err
	}
	if len(files) > maxFiles {
		return fmt.Errorf("%s: has %d files, more than %d", name, len(files), maxFiles)
	}
	for _, f := range files {
		file := path.Join(name, f.Name())
		if strings.HasPrefix(f.Name(), ".") || slices.Contains([]string{"README.md", "LICENSE", "OWNERS"}, f.Name()) {
			continue
		}
		if ext := path.Ext(file); ext != ".yaml" && ext != ".yml" {
			return fmt.Errorf("%s: only *.yaml and *.yml are read", file)
		}
		raw, err := readFile(dir, file)
		if err != nil {
			return err
		}
		if err := do(raw); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// readFile reads a regular file, or one that a link leads to: another kind may have no end.
func readFile(dir fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(dir, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no regular file", name)
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("%s: has more than %d bytes", name, maxFile)
	}
	return raw, err
}

func (d *Data) addChannel(raw []byte) error {
	var c struct {
		Name     string   `json:"name"`
		Versions []string `json:"versions"`
	}
	if err := manifest.ReadOne(raw, &c); err != nil {
		return err
	}
	if !channelName.MatchString(c.Name) {
		return fmt.Errorf("name: %q must have the form %s", c.Name, channelName)
	}
	if _, twice := d.channels[c.Name]; twice {
		return fmt.Errorf("name: channel %s is defined twice", c.Name)
	}
	for i, v := range c.Versions {
		if _, err := semver.StrictNewVersion(v); err != nil {
			return fmt.Errorf("versions[%d]: %q is no semantic version", i, v)
		}
	}
	d.channels[c.Name] = c.Versions
	return nil
}

func (d *Data) addBlocked(raw []byte) error {
	var b struct {
		Risk
		To   string `json:"to"`
		From string `json:"from"`
	}
	if err := manifest.ReadOne(raw, &b); err != nil {
		return err
	}
	if _, err := semver.StrictNewVersion(b.To); err != nil {
		return fmt.Errorf("to: %q is no semantic version", b.To)
	}
	switch {
	case b.From == "":
		return errors.New("from: must not be empty")
	case len(b.From) > maxFrom:
		return fmt.Errorf("from: has %d bytes, more than %d", len(b.From), maxFrom)
	}
	from, err := regexp.Compile(b.From)
	if err != nil {
		return fmt.Errorf("from: %w", err)
	}
	to, arch, _ := strings.Cut(b.To, "+")
	if len(d.blocked[to]) == maxRisks {
		return fmt.Errorf("to: more than %d files are about %s", maxRisks, to)
	}
	edge := blocked{arch: arch, from: from}
	if len(b.MatchingRules) > 0 {
		for _, f := range []struct{ name, value string }{{"name", b.Name}, {"message", b.Message}, {"url", b.URL}} {
			if f.value == "" {
				return fmt.Errorf("%s: must not be empty", f.name)
			}
		}
		for i, r := range b.MatchingRules {
			if query := r.PromQL != nil && r.PromQL.PromQL != ""; query != (r.Type == "PromQL") {
				return fmt.Errorf("matchingRules[%d].promql: is for rules of type PromQL, and they need it", i)
			}
		}
		edge.risk, edge.key = &b.Risk, describe(b.Risk)
	}
	d.blocked[to] = append(d.blocked[to], edge)
	return nil
}

// Channels returns the names of the channels in order.
func (d *Data) Channels() []string {
	var names []string
	for name := range d.channels {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// compareVersions orders semantic versions.
func compareVersions(a, b string) int {
	x, errX := semver.StrictNewVersion(a)
	y, errY := semver.StrictNewVersion(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(x.Compare(y), cmp.Compare(a, b))
}
