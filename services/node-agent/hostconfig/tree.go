package hostconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/windlass-dev/windlass/kit/durable"
)

// modeBits are what is compared of a mode.
const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// tree is the file system of the machine. Nothing outside of it is ever touched, whatever links are in it.
type tree struct {
	root *os.Root
	kept string // directory of contents that may have to come back, named after their hash
	// step is called before each change of the disk and may end it; nil outside of tests.
	step func(what string) error
}

// openTree opens the file system of a machine; dir is made if makes is set.
func openTree(dir, kept string, makes bool) (*tree, error) {
	if makes {
		if err := durable.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := durable.MkdirAll(kept, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root, kept: kept}, nil
}

// saved is the former entry at a path.
type saved struct {
	Path   string      `json:"path"`
	Kind   string      `json:"kind"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	Sum    string      `json:"sum,omitempty"`
	Target string      `json:"target,omitempty"`
	traits
}

// look returns the entry at a path.
func (t *tree) look(p string) (saved, error) {
	s := saved{Path: p, Kind: absent}
	info, err := t.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.Mode = info.Mode() & modeBits
	if s.traits, err = t.traitsOf(p, info); err != nil {
		return s, fmt.Errorf("%q: %w", "/"+p, err)
	}
	switch info.Mode().Type() {
	case 0:
		content, err := t.root.ReadFile(p)
		s.Kind, s.Sum = file, sumOf(content)
		return s, err
	case fs.ModeDir:
		s.Kind = directory
		return s, nil
	case fs.ModeSymlink:
		s.Kind, s.Mode = link, 0
		s.Target, err = t.root.Readlink(p)
		return s, err
	}
	return s, fmt.Errorf("%q is neither a file, a directory nor a link", "/"+p)
}

// preserve keeps the content of the entry, so that it can come back.
func (t *tree) preserve(s saved) error {
	if err := s.returnable(); err != nil {
		return fmt.Errorf("%q: %w", "/"+s.Path, err)
	}
	if s.Kind != file {
		return nil
	}
	target := filepath.Join(t.kept, s.Sum)
	if content, err := os.ReadFile(target); err == nil && sumOf(content) == s.Sum {
		return nil
	}
	content, err := t.root.ReadFile(s.Path)
	if err != nil {
		return err
	}
	if sumOf(content) != s.Sum {
		return fmt.Errorf("%q changes while it is read", "/"+s.Path)
	}
	return durable.WriteFile(target, content, 0o600)
}

// holds reports whether a path has the wanted entry.
func (s saved) holds(e entry) bool {
	if s.Kind != e.kind {
		return false
	}
	switch s.Kind {
	case file:
		return s.Sum == e.sum && s.Mode == e.mode
	case directory:
		return s.Mode == e.mode
	}
	return s.Target == e.target
}

func (t *tree) before(what string) error {
	if t.step == nil {
		return nil
	}
	return t.step(what)
}

// put makes what an entry wants.
func (t *tree) put(e entry) error {
	if err := t.before("put " + e.path); err != nil {
		return err
	}
	if err := t.root.MkdirAll(path.Dir(e.path), defaultDirectoryMode); err != nil {
		return err
	}
	if e.kind == directory {
		return t.makeDirectory(e)
	}
	if info, err := t.root.Lstat(e.path); err == nil && info.IsDir() {
		if err := t.root.Remove(e.path); err != nil {
			return err
		}
	}
	temp := tempName(e.path)
	_ = t.root.Remove(temp) // left by a process that was killed
	if e.kind == link {
		if err := t.root.Symlink(e.target, temp); err != nil {
			return err
		}
		if o := e.traits.Owner; o != nil {
			if err := t.root.Lchown(temp, int(o.User), int(o.Group)); err != nil {
				return err
			}
		}
	} else if err := t.write(temp, e); err != nil {
		return err
	}
	return t.root.Rename(temp, e.path)
}

func (t *tree) makeDirectory(e entry) error {
	if info, err := t.root.Lstat(e.path); err == nil && !info.IsDir() {
		if err := t.root.Remove(e.path); err != nil {
			return err
		}
	}
	if err := t.root.MkdirAll(e.path, defaultDirectoryMode); err != nil {
		return err
	}
	f, err := t.root.Open(e.path)
	if errors.Is(err, fs.ErrPermission) {
		return t.root.Chmod(e.path, e.mode) // one that cannot be read is none that was made here
	}
	if err != nil {
		return err
	}
	return errors.Join(e.traits.give(f, e.mode), f.Sync(), f.Close())
}

func (t *tree) write(p string, e entry) error {
	f, err := t.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(e.content)
	return errors.Join(err, e.traits.give(f, e.mode), f.Sync(), f.Close())
}

// tempName returns the name of a path's entry before its rename; however long that one's name is, this one is not too
// long.
func tempName(p string) string {
	return path.Join(path.Dir(p), ".windlass-new-"+sumOf([]byte(path.Base(p)))[:16])
}

// restore puts back the former entry at a path. A directory that is not empty stays.
func (t *tree) restore(s saved) error {
	if err := t.before("restore " + s.Path); err != nil {
		return err
	}
	_ = t.root.Remove(tempName(s.Path))
	e := entry{path: s.Path, kind: s.Kind, mode: s.Mode, target: s.Target, traits: s.traits}
	switch s.Kind {
	case absent:
		err := t.root.Remove(s.Path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENOTEMPTY) {
			return nil
		}
		return err
	case file:
		content, err := os.ReadFile(filepath.Join(t.kept, s.Sum))
		if err != nil {
			return err
		}
		if sumOf(content) != s.Sum {
			return errors.New("the content that was kept of it is damaged")
		}
		e.content = content
	}
	return t.put(e)
}

// sync has renames and removals at paths survive a loss of power: it syncs the directories that hold them, up to the
// root, since some of these may be new.
func (t *tree) sync(paths []string) error {
	done := map[string]bool{}
	for _, p := range paths {
		for dir := path.Dir(p); !done[dir]; dir = path.Dir(dir) {
			done[dir] = true
			f, err := t.root.Open(dir)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
				continue // it went, too
			}
			if err != nil {
				return err
			}
			if err := errors.Join(f.Sync(), f.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// missing returns the directories above a path that are not there, the outermost first.
func (t *tree) missing(p string) []string {
	var out []string
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if _, err := t.root.Lstat(dir); err == nil {
			break
		}
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}

// tidy removes directories that were made for what is gone, if they are empty.
func (t *tree) tidy(made []string) {
	for _, dir := range slices.Backward(made) {
		_ = t.root.Remove(dir)
	}
}

// forget drops kept contents that nothing refers to.
func (t *tree) forget(originals []saved) {
	files, err := os.ReadDir(t.kept)
	if err != nil {
		return
	}
	for _, f := range files {
		if !slices.ContainsFunc(originals, func(s saved) bool { return s.Sum == f.Name() }) {
			_ = os.Remove(filepath.Join(t.kept, f.Name()))
		}
	}
}

// stamp is what a file looked like when its content was right.
type stamp struct {
	modified time.Time
	size     int64
}

// drifted is a path where the disk differs from what is wanted.
type drifted struct{ path, why string }

// drift returns where the disk differs from what is wanted. Contents are read only where a file looks different from
// when they were right.
func (t *tree) drift(entries []entry, seen map[string]stamp) []drifted {
	var out []drifted
	for _, e := range entries {
		if why := t.driftOf(e, seen); why != "" {
			delete(seen, e.path)
			out = append(out, drifted{e.path, why})
		}
	}
	return out
}

// summary says in one line how the first path differs, and how many others do; empty for none.
func summary(list []drifted) string {
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0].why
	}
	return fmt.Sprintf("%s, and %d more", list[0].why, len(list)-1)
}

func (t *tree) driftOf(e entry, seen map[string]stamp) string {
	name := "/" + e.path
	info, err := t.root.Lstat(e.path)
	if err != nil {
		return fmt.Sprintf("content mismatch for %s %q: %v", e.kind, name, reasonOf(err))
	}
	if kindOf(info) != e.kind {
		return fmt.Sprintf("content mismatch for %s %q: it is a %s", e.kind, name, kindOf(info))
	}
	if mode := info.Mode() & modeBits; e.kind != link && mode != e.mode {
		return fmt.Sprintf("mode mismatch for %s: %q; expected: %v; received: %v", e.kind, name, e.mode, mode)
	}
	now := stamp{info.ModTime(), info.Size()}
	if e.kind == directory || (e.kind == file && seen[e.path] == now) {
		return ""
	}
	have, err := t.look(e.path)
	if err != nil {
		return fmt.Sprintf("content mismatch for %s %q: %v", e.kind, name, reasonOf(err))
	}
	if !have.holds(e) {
		return fmt.Sprintf("content mismatch for %s %q", e.kind, name)
	}
	seen[e.path] = now
	return ""
}

func reasonOf(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "it is missing"
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func kindOf(info fs.FileInfo) string {
	switch info.Mode().Type() {
	case 0:
		return file
	case fs.ModeDir:
		return directory
	case fs.ModeSymlink:
		return link
	}
	return strings.TrimSpace(info.Mode().Type().String())
}
