package hostconfig

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	ignition "github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
)

const (
	// maxContent bounds all files of a configuration together after they were unpacked; packed, they are far smaller.
	maxContent = 64 << 20

	defaultFileMode      = 0o644
	defaultDirectoryMode = 0o755

	unitDir = "etc/systemd/system"
	// sshKeys is the file with the SSH keys of the user core. Source: Ignition on Fedora CoreOS.
	sshKeys = "home/core/.ssh/authorized_keys.d/ignition"
)

// unreconcilableError means that a running machine cannot be brought to a configuration.
type unreconcilableError struct{ path, why string }

func (e *unreconcilableError) Error() string { return e.path + ": " + e.why }

// cannot says why a running machine cannot have something.
func cannot(path, format string, args ...any) error {
	return &unreconcilableError{path, fmt.Sprintf(format, args...)}
}

// Kinds of file system entries.
const (
	absent    = "absent"
	file      = "file"
	directory = "directory"
	link      = "link"
)

// entry is one thing that a configuration wants on disk.
type entry struct {
	path    string // below the machine's root, without a slash in front
	kind    string
	mode    fs.FileMode // of files and directories, without the type
	content []byte      // of files; dropped once it is on disk
	sum     string      // of the content
	target  string      // of links
}

// wanted is what a configuration wants of a machine.
type wanted struct {
	entries []entry // directories first, then files, then links, each by path
	units   []unit  // enabled services, by name
}

// read returns what a configuration wants. The error is an unreconcilableError if a running machine cannot have it;
// before is the present configuration of the machine, nil if there is none.
func read(before, cfg *configv1.MachineConfig) (wanted, error) {
	var w wanted
	if before != nil && before.GetSpec().GetFips() != cfg.GetSpec().GetFips() {
		return w, cannot("spec.fips", "cannot be changed once a machine has its configuration")
	}
	config, err := parse(cfg)
	if err != nil {
		return w, err
	}
	if err := refuse(config); err != nil {
		return w, err
	}
	for _, add := range []func(types.Config) error{w.storage, w.systemd, w.users} {
		if err := add(config); err != nil {
			return w, err
		}
	}
	rank := map[string]int{directory: 0, file: 1, link: 2}
	slices.SortFunc(w.entries, func(a, b entry) int {
		if a.kind != b.kind {
			return rank[a.kind] - rank[b.kind]
		}
		return strings.Compare(a.path, b.path)
	})
	for i := 1; i < len(w.entries); i++ {
		if slices.ContainsFunc(w.entries[:i], func(e entry) bool { return e.path == w.entries[i].path }) {
			return w, cannot("spec.config", "%q is wanted twice", "/"+w.entries[i].path)
		}
	}
	return w, nil
}

func parse(cfg *configv1.MachineConfig) (types.Config, error) {
	if cfg.GetSpec().GetConfig() == nil {
		return types.Config{}, nil
	}
	raw, err := cfg.GetSpec().GetConfig().MarshalJSON()
	if err != nil {
		return types.Config{}, cannot("spec.config", "%v", err)
	}
	config, report, err := ignition.ParseCompatibleVersion(raw)
	if err != nil {
		return config, cannot("spec.config", "%v: %s", err, strings.TrimSpace(report.String()))
	}
	return config, nil
}

// refuse names what can be had only when a machine is made.
func refuse(c types.Config) error {
	const late = "cannot be changed on a machine that runs"
	for _, bad := range []struct {
		path  string
		there bool
	}{
		{"ignition.config", len(c.Ignition.Config.Merge) > 0 || c.Ignition.Config.Replace.Source != nil},
		{"kernelArguments", len(c.KernelArguments.ShouldExist)+len(c.KernelArguments.ShouldNotExist) > 0},
		{"passwd.groups", len(c.Passwd.Groups) > 0},
		{"storage.disks", len(c.Storage.Disks) > 0},
		{"storage.filesystems", len(c.Storage.Filesystems) > 0},
		{"storage.luks", len(c.Storage.Luks) > 0},
		{"storage.raid", len(c.Storage.Raid) > 0},
	} {
		if bad.there {
			return cannot("spec.config."+bad.path, late)
		}
	}
	return nil
}

func (w *wanted) storage(c types.Config) error {
	for i, d := range c.Storage.Directories {
		at := fmt.Sprintf("spec.config.storage.directories[%d]", i)
		p, err := place(d.Node, at)
		if err != nil {
			return err
		}
		w.entries = append(w.entries, entry{path: p, kind: directory, mode: modeOf(d.Mode, defaultDirectoryMode)})
	}
	left := maxContent
	for i, f := range c.Storage.Files {
		at := fmt.Sprintf("spec.config.storage.files[%d]", i)
		p, err := place(f.Node, at)
		if err != nil {
			return err
		}
		if len(f.Append) > 0 {
			return cannot(at+".append", "append is not supported: the existing content of the file is unknown")
		}
		content, err := contentOf(f.Contents, at+".contents", left)
		if err != nil {
			return err
		}
		left -= len(content)
		w.file(p, content, modeOf(f.Mode, defaultFileMode))
	}
	for i, l := range c.Storage.Links {
		at := fmt.Sprintf("spec.config.storage.links[%d]", i)
		p, err := place(l.Node, at)
		if err != nil {
			return err
		}
		if (l.Hard != nil && *l.Hard) || l.Target == nil {
			return cannot(at, "only symbolic links with a target can be made")
		}
		w.link(p, *l.Target)
	}
	return nil
}

func (w *wanted) file(p string, content []byte, mode fs.FileMode) {
	w.entries = append(w.entries, entry{path: p, kind: file, mode: mode, content: content, sum: sumOf(content)})
}

func (w *wanted) link(p, target string) {
	w.entries = append(w.entries, entry{path: p, kind: link, target: target})
}

// place returns an entry's path below the machine's root. Everything belongs to the agent's own user, which is
// root to the machine.
func place(n types.Node, at string) (string, error) {
	p := strings.TrimPrefix(path.Clean(n.Path), "/")
	if p == "" || !fs.ValidPath(p) {
		return "", cannot(at+".path", "%q is no path of a file", n.Path)
	}
	other := func(id *int, name *string) bool {
		return (id != nil && *id != 0) || (name != nil && *name != "" && *name != "root")
	}
	if other(n.User.ID, n.User.Name) {
		return "", cannot(at+".user", "files of other users than root cannot be made")
	}
	if other(n.Group.ID, n.Group.Name) {
		return "", cannot(at+".group", "files of other groups than root cannot be made")
	}
	return p, nil
}

func modeOf(mode *int, otherwise fs.FileMode) fs.FileMode {
	if mode == nil {
		return otherwise
	}
	m := fs.FileMode(*mode & 0o777)
	for bit, flag := range map[int]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if *mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// contentOf returns the content of a file, which the configuration itself holds: limit bytes at the most.
func contentOf(r types.Resource, at string, limit int) ([]byte, error) {
	if r.Source == nil || *r.Source == "" {
		return nil, nil
	}
	content, err := dataURL(*r.Source)
	if err != nil {
		return nil, cannot(at+".source", "%v", err)
	}
	if r.Verification.Hash != nil {
		if err := verify(content, *r.Verification.Hash); err != nil {
			return nil, cannot(at+".verification.hash", "%v", err)
		}
	}
	if r.Compression != nil && *r.Compression != "" {
		if content, err = unpack(content, limit); err != nil {
			return nil, cannot(at+".compression", "%v", err)
		}
	}
	return content, nil
}

// dataURL returns what a URL holds. Source: RFC 2397.
func dataURL(source string) ([]byte, error) {
	rest, ok := strings.CutPrefix(source, "data:")
	if !ok {
		scheme, _, _ := strings.Cut(source, ":")
		return nil, fmt.Errorf("is a %s URL: contents must be inline, as data: URLs", scheme)
	}
	head, data, ok := strings.Cut(rest, ",")
	if !ok {
		return nil, errors.New("is a data: URL without a comma")
	}
	plain, err := url.PathUnescape(data)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(head, ";base64") {
		return []byte(plain), nil
	}
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(plain, "="))
}

// verify compares the hash of contents as they come, which are packed if they are.
func verify(content []byte, want string) error {
	kind, digest, _ := strings.Cut(want, "-")
	have := ""
	switch kind {
	case "sha256":
		have = sumOf(content)
	case "sha512":
		sum := sha512.Sum512(content)
		have = hex.EncodeToString(sum[:])
	default:
		return fmt.Errorf("%q is no kind of hash that is known", kind)
	}
	if have != digest {
		return fmt.Errorf("the contents have another hash: %s-%s", kind, have)
	}
	return nil
}

func unpack(packed []byte, limit int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(out) > limit {
		err = fmt.Errorf("the files of the configuration unpack to more than %d bytes", maxContent)
	}
	return out, err
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func (w *wanted) users(c types.Config) error {
	for i, u := range c.Passwd.Users {
		at := fmt.Sprintf("spec.config.passwd.users[%d]", i)
		if u.Name != "core" {
			return cannot(at+".name", "is %q: no user but core can be changed", u.Name)
		}
		rest := u
		rest.Name, rest.SSHAuthorizedKeys = "", nil
		if rest.Gecos != nil || rest.Groups != nil || rest.HomeDir != nil || rest.NoCreateHome != nil ||
			rest.NoLogInit != nil || rest.NoUserGroup != nil ||
			rest.PasswordHash != nil || rest.PrimaryGroup != nil || rest.Shell != nil || rest.ShouldExist != nil ||
			rest.System != nil || rest.UID != nil {
			return cannot(at, "only sshAuthorizedKeys can be changed")
		}
		var keys strings.Builder
		for _, k := range u.SSHAuthorizedKeys {
			keys.WriteString(string(k) + "\n")
		}
		w.file(sshKeys, []byte(keys.String()), 0o600)
	}
	return nil
}

func (w *wanted) systemd(c types.Config) error {
	for i, u := range c.Systemd.Units {
		at := fmt.Sprintf("spec.config.systemd.units[%d]", i)
		if u.Name != path.Base(u.Name) || !fs.ValidPath(u.Name) {
			return cannot(at+".name", "%q is no name of a unit", u.Name)
		}
		if u.Mask != nil && *u.Mask {
			w.link(path.Join(unitDir, u.Name), "/dev/null")
			continue
		}
		text, err := w.unitFiles(u, at)
		if err != nil {
			return err
		}
		if u.Enabled == nil || !*u.Enabled || text == "" {
			continue
		}
		parsed, err := parseUnit(u.Name, text)
		if err != nil {
			return cannot(at, "unit %q: %v", u.Name, err)
		}
		w.link(path.Join(unitDir, parsed.wantedBy+".wants", u.Name), "/"+path.Join(unitDir, u.Name))
		if len(parsed.start) > 0 {
			w.units = append(w.units, parsed)
		}
	}
	slices.SortFunc(w.units, func(a, b unit) int { return strings.Compare(a.name, b.name) })
	return nil
}

// unitFiles adds a unit's own file and its drop-ins, and returns their text in the order in which it counts.
func (w *wanted) unitFiles(u types.Unit, at string) (string, error) {
	text := ""
	if u.Contents != nil && *u.Contents != "" {
		text = *u.Contents
		w.file(path.Join(unitDir, u.Name), []byte(text), defaultFileMode)
	}
	dropins := slices.Clone(u.Dropins)
	slices.SortFunc(dropins, func(a, b types.Dropin) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range dropins {
		if d.Name != path.Base(d.Name) || !fs.ValidPath(d.Name) {
			return "", cannot(at+".dropins", "%q is no name of a drop-in", d.Name)
		}
		if d.Contents == nil || *d.Contents == "" {
			continue
		}
		w.file(path.Join(unitDir, u.Name+".d", d.Name), []byte(*d.Contents), defaultFileMode)
		if text != "" {
			text += "\n" + *d.Contents
		}
	}
	return text, nil
}
