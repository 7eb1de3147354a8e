package hostconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// traits are what an entry has beside its mode and content. The zero traits, as in records of earlier versions, leave
// them as they come.
type traits struct {
	Owner      *owner            `json:"owner,omitempty"`
	Attributes map[string][]byte `json:"xattrs,omitempty"` // extended attributes, access lists among them; not of links
}

type owner struct {
	User  uint32 `json:"user"`
	Group uint32 `json:"group"`
}

// selinux is the attribute of the label of a file. Only root may set it; others have the policy label new files.
const selinux = "security.selinux"

// traitsOf returns the traits of an entry.
func (t *tree) traitsOf(p string, info fs.FileInfo) (traits, error) {
	var out traits
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		out.Owner = &owner{st.Uid, st.Gid}
	}
	if kind := info.Mode().Type(); kind != 0 && kind != fs.ModeDir {
		return out, nil
	}
	f, err := t.root.Open(p)
	if errors.Is(err, fs.ErrPermission) && info.IsDir() {
		return out, nil // its attributes stay with it: a directory is never replaced by a copy
	}
	if err != nil {
		return out, err
	}
	out.Attributes, err = attributesOf(f)
	return out, errors.Join(err, f.Close())
}

func attributesOf(f *os.File) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // the most that Linux lists
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("extended attributes: %w", err)
	}
	var out map[string][]byte
	value := make([]byte, 64<<10) // the most that one has
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" || name == selinux && os.Geteuid() != 0 {
			continue
		}
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue // it has been removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("extended attribute %s: %w", name, err)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[name] = slices.Clone(value[:n])
	}
	return out, nil
}

// returnable says why an entry could not be put back once it is replaced; nil if it could. Only root gives files away.
func (s saved) returnable() error {
	if os.Geteuid() == 0 || s.Owner == nil || s.Kind != file && s.Kind != link {
		return nil
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	mine := int(s.Owner.User) == os.Geteuid()
	if mine && (int(s.Owner.Group) == os.Getegid() || slices.Contains(groups, int(s.Owner.Group))) {
		return nil
	}
	return fmt.Errorf("it belongs to user %d and group %d: node-agent runs as user %d, and could not give it back to them",
		s.Owner.User, s.Owner.Group, os.Geteuid())
}

// give gives an open file or directory an owner, a mode and attributes. A change of the owner takes bits of the mode
// and capabilities away, so it comes first.
func (t traits) give(f *os.File, mode fs.FileMode) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && t.Owner != nil && *t.Owner != (owner{st.Uid, st.Gid}) {
		if err := f.Chown(int(t.Owner.User), int(t.Owner.Group)); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(t.Attributes)) {
		if err := unix.Fsetxattr(int(f.Fd()), name, t.Attributes[name], 0); err != nil {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}
	if t.Owner == nil {
		return nil
	}
	have, err := attributesOf(f) // such as an access list that the directory hands down
	if err != nil {
		return err
	}
	for name := range have {
		if _, ok := t.Attributes[name]; ok || name == selinux {
			continue
		}
		if err := unix.Fremovexattr(int(f.Fd()), name); err != nil {
			return fmt.Errorf("extended attribute %s: %w", name, err)
		}
	}
	return nil
}
