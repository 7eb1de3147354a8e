package image

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	// maxBytes and maxEntries bound what an image may unpack to, so that a small file cannot fill the disk.
	maxBytes   = 8 << 30
	maxEntries = 1_000_000

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Unpack writes the files of an image into dir, which it makes in one step: if it is there, it is complete. Owners,
// devices and setuid bits are left out, absolute links made to stay inside.
func (i *Image) Unpack(dir string) error {
	partial := dir + ".new"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.MkdirAll(partial, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(partial)
	if err != nil {
		return err
	}
	defer root.Close()
	layers, err := i.image.Layers()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	u := unpacking{root: root, left: maxBytes, entries: maxEntries}
	for n, l := range layers {
		if err := u.layer(l, i.diffIDs[n]); err != nil {
			return fmt.Errorf("%w: layer %d: %w", ErrBroken, n, err)
		}
	}
	return os.Rename(partial, dir)
}

// unpacking is the state of one image that is being unpacked.
type unpacking struct {
	root    *os.Root
	left    int64               // bytes that may still be written
	entries int                 // files, directories and links that may still be made
	fresh   map[string]struct{} // what the present layer wrote: its own whiteouts do not remove that
}

func (u *unpacking) layer(l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	all := io.TeeReader(r, sum)
	u.fresh = map[string]struct{}{}
	for t := tar.NewReader(all); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, all); err != nil { // what follows the last entry counts for the digest
		return err
	}
	if is := fmt.Sprintf("sha256:%x", sum.Sum(nil)); is != want.String() {
		return fmt.Errorf("has digest %s, not %s", is, want)
	}
	return nil
}

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	if u.entries--; u.entries < 0 {
		return fmt.Errorf("unpacks to more than %d files", maxEntries)
	}
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" {
		return nil // the root itself
	}
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if base == opaque {
		return u.empty(dir)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return u.hide(path.Join(dir, hidden))
	}
	if err := u.root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	u.wrote(name)
	mode := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, mode)
	case tar.TypeReg:
		return u.file(name, mode, content)
	case tar.TypeSymlink:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		return u.root.Symlink(inside(dir, h.Linkname), name)
	case tar.TypeLink:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		return u.root.Link(strings.TrimPrefix(path.Clean("/"+h.Linkname), "/"), name)
	}
	return nil // a device or the like
}

// wrote notes that the present layer has something at a path, and so the directories above it, whether it names them or
// not.
func (u *unpacking) wrote(name string) {
	for ; name != "."; name = path.Dir(name) {
		if _, known := u.fresh[name]; known {
			return
		}
		u.fresh[name] = struct{}{}
	}
}

// hide removes what earlier layers put at a path, or below it.
func (u *unpacking) hide(name string) error {
	if _, ours := u.fresh[name]; !ours {
		return u.root.RemoveAll(name)
	}
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return notThere(err)
	}
	return u.empty(name)
}

// empty removes from a directory what earlier layers put there.
func (u *unpacking) empty(dir string) error {
	entries, err := fs.ReadDir(u.root.FS(), dir)
	if err != nil {
		return notThere(err)
	}
	for _, e := range entries {
		if err := u.hide(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// notThere takes what is not there for no error.
func notThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// dir makes a directory that its owner can always clear away again.
func (u *unpacking) dir(name string, mode fs.FileMode) error {
	if info, err := u.root.Lstat(name); err == nil && !info.IsDir() {
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	if err := u.root.MkdirAll(name, 0o700); err != nil {
		return err
	}
	return u.root.Chmod(name, mode|0o700)
}

func (u *unpacking) file(name string, mode fs.FileMode, content io.Reader) error {
	if err := u.root.RemoveAll(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, u.left+1))
	if u.left -= n; err == nil && u.left < 0 {
		err = fmt.Errorf("unpacks to more than %d bytes", int64(maxBytes))
	}
	return errors.Join(err, f.Close())
}

// inside turns the target of a link in dir into a relative one, so that an absolute one means the root of the image.
func inside(dir, target string) string {
	if !path.IsAbs(target) {
		return target
	}
	up := ""
	if dir != "." {
		up = strings.Repeat("../", strings.Count(dir, "/")+1)
	}
	return path.Clean(up + "." + path.Clean(target))
}
