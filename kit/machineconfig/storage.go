package machineconfig

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/windlass-dev/windlass/kit/object"
)

const (
	defaultFileMode      = 0o644
	defaultDirectoryMode = 0o755

	// sshKeys is the file with the SSH keys of the user core. Source: Ignition on Fedora CoreOS.
	sshKeys = "home/core/.ssh/authorized_keys.d/ignition"
)

// byKey returns the items of a list of the present configuration by their keys.
func byKey[T any](items []T, key func(T) string) map[string]T {
	out := map[string]T{}
	for _, i := range items {
		out[key(i)] = i
	}
	return out
}

func (r *reader) storage(c types.Config) {
	directories := byKey(r.was.Storage.Directories, func(d types.Directory) string { return d.Path })
	for i, d := range c.Storage.Directories {
		p, bad := place(d.Node, fmt.Sprintf("spec.config.storage.directories[%d]", i))
		r.entry(directories[d.Path], d, bad, Entry{
			Path: p, Kind: Directory, Mode: modeOf(d.Mode, defaultDirectoryMode), Overwrite: overwrites(d.Node),
		})
	}
	left := maxContent
	files := byKey(r.was.Storage.Files, func(f types.File) string { return f.Path })
	for i, f := range c.Storage.Files {
		at := fmt.Sprintf("spec.config.storage.files[%d]", i)
		p, bad := place(f.Node, at)
		if len(f.Append) > 0 {
			bad = append(bad, object.Fault{
				Path: at + ".append", Description: "append is not supported: the existing content of the file is unknown",
			})
		}
		content, more := contentOf(f.Contents, at+".contents", left)
		left -= len(content)
		r.entry(files[f.Path], f, append(bad, more...), Entry{
			Path: p, Kind: File, Mode: modeOf(f.Mode, defaultFileMode), Content: content, Overwrite: overwrites(f.Node),
		})
	}
	links := byKey(r.was.Storage.Links, func(l types.Link) string { return l.Path })
	for i, l := range c.Storage.Links {
		at := fmt.Sprintf("spec.config.storage.links[%d]", i)
		p, bad := place(l.Node, at)
		target := ""
		if l.Target != nil {
			target = *l.Target
		}
		if target == "" || l.Hard != nil && *l.Hard {
			bad = append(bad, object.Fault{Path: at, Description: "only symbolic links with a target can be made"})
		}
		r.entry(links[l.Path], l, bad, Entry{Path: p, Kind: Link, Target: target, Overwrite: overwrites(l.Node)})
	}
}

func overwrites(n types.Node) bool { return n.Overwrite != nil && *n.Overwrite }

// entry adds what an item of storage wants. An item with a fault wants nothing, also if it does not change.
func (r *reader) entry(was, is any, bad []object.Fault, e Entry) {
	r.judge(was, is, bad)
	if len(bad) == 0 {
		r.out.Entries = append(r.out.Entries, e)
	}
}

func (r *reader) file(p, content string, mode fs.FileMode) {
	r.out.Entries = append(r.out.Entries, Entry{Path: p, Kind: File, Mode: mode, Content: []byte(content)})
}

func (r *reader) link(p, target string) {
	r.out.Entries = append(r.out.Entries, Entry{Path: p, Kind: Link, Target: target})
}

// place returns an entry's path below the machine's root. Everything belongs to the agent's own user, which is
// root to the machine.
func place(n types.Node, at string) (string, []object.Fault) {
	var bad []object.Fault
	p := strings.TrimPrefix(path.Clean(n.Path), "/")
	if p == "" || p == "." || !fs.ValidPath(p) {
		bad = append(bad, object.Faultf(at+".path", "%q is no path of a file", n.Path))
	}
	other := func(id *int, name *string) bool {
		return (id != nil && *id != 0) || (name != nil && *name != "" && *name != "root")
	}
	if other(n.User.ID, n.User.Name) {
		bad = append(bad, object.Faultf(at+".user", "files of other users than root cannot be made"))
	}
	if other(n.Group.ID, n.Group.Name) {
		bad = append(bad, object.Faultf(at+".group", "files of other groups than root cannot be made"))
	}
	return p, bad
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
func contentOf(r types.Resource, at string, limit int) ([]byte, []object.Fault) {
	if r.Source == nil || *r.Source == "" {
		return nil, nil
	}
	content, err := dataURL(*r.Source)
	if err != nil {
		return nil, []object.Fault{{Path: at + ".source", Description: err.Error()}}
	}
	if r.Verification.Hash != nil {
		if err := verify(content, *r.Verification.Hash); err != nil {
			return nil, []object.Fault{{Path: at + ".verification.hash", Description: err.Error()}}
		}
	}
	if r.Compression != nil && *r.Compression != "" {
		if content, err = unpack(content, limit); err != nil {
			return nil, []object.Fault{{Path: at + ".compression", Description: err.Error()}}
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
		sum := sha256.Sum256(content)
		have = hex.EncodeToString(sum[:])
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

// unpack returns unpacked contents of limit bytes at the most.
func unpack(packed []byte, limit int) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	_, err = out.ReadFrom(&limited{r, limit})
	return out.Bytes(), err
}

// limited ends with an error when more than left bytes are read.
type limited struct {
	r    *gzip.Reader
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= n; l.left < 0 {
		return n, fmt.Errorf("the files of the configuration unpack to more than %d bytes", maxContent)
	}
	return n, err
}

func (r *reader) users(c types.Config) {
	was := byKey(r.was.Passwd.Users, func(u types.PasswdUser) string { return u.Name })
	for i, u := range c.Passwd.Users {
		at := fmt.Sprintf("spec.config.passwd.users[%d]", i)
		had := was[u.Name]
		if u.Name != "core" {
			r.judge(had, u, []object.Fault{object.Faultf(at+".name", "is %q: no user but core can be changed", u.Name)})
			continue
		}
		had.SSHAuthorizedKeys = nil
		rest := u
		rest.SSHAuthorizedKeys = nil
		if rest.Gecos != nil || rest.Groups != nil || rest.HomeDir != nil || rest.NoCreateHome != nil ||
			rest.NoLogInit != nil || rest.NoUserGroup != nil ||
			rest.PasswordHash != nil || rest.PrimaryGroup != nil || rest.Shell != nil || rest.ShouldExist != nil ||
			rest.System != nil || rest.UID != nil {
			r.judge(had, rest, []object.Fault{object.Faultf(at, "only sshAuthorizedKeys can be changed")})
		}
		var keys strings.Builder
		for _, k := range u.SSHAuthorizedKeys {
			keys.WriteString(string(k) + "\n")
		}
		r.file(sshKeys, keys.String(), 0o600)
	}
}
