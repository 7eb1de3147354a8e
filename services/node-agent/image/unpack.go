package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/windlass-dev/windlass/kit/registry"
)

const (
	// maxBytes and maxEntries bound what an image may unpack to, so that a small file cannot fill the disk.
	maxBytes   = 8 << 30
	maxEntries = 1_000_000
	// maxName is how long the name of an entry may be, in bytes. Source: PATH_MAX of Linux.
	maxName = 4096
	// maxLayers is how many layers an image may have. Source: containerd's and Docker's limit is 127.
	maxLayers = 127

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// Unpack writes the files of an image into dir, which it makes in one step: if it is there, it is complete. Owners and
// setuid bits are left out, absolute links made to stay inside. A layer with a path or a hard link that leads out, with
// a device or a pipe, or that is larger than the bounds is refused: the error is ErrBroken and says what. It ends when
// ctx does.
func (i *Image) Unpack(ctx context.Context, dir string) error {
	partial := dir + ".new"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.MkdirAll(partial, 0o700); err != nil {
		return err
	}
	if _, err := i.unpack(ctx, partial); err != nil {
		return err
	}
	return os.Rename(partial, dir)
}

// unpack writes the files of an image into a directory that is empty, and returns how many bytes they have.
func (i *Image) unpack(ctx context.Context, dir string) (int64, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	layers, err := i.image.Layers()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if len(layers) > maxLayers {
		return 0, fmt.Errorf("%w: it has %d layers, more than %d", ErrBroken, len(layers), maxLayers)
	}
	u := unpacking{
		ctx: ctx, root: root, left: maxBytes, packed: maxBytes + maxBytes/8, entries: maxEntries, seed: maphash.MakeSeed(),
	}
	for n, l := range layers {
		if err := u.layer(n, l, i.diffIDs[n]); err != nil {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			return 0, fmt.Errorf("%w: layer %d: %w", kindOf(err), n, err)
		}
	}
	return maxBytes - u.left, nil
}

// kindOf distinguishes a registry that does not deliver, and a disk that does not take, from an image that is broken.
func kindOf(err error) error {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) {
			return errTransfer
		}
	}
	if registry.IsTransport(err) {
		return errTransfer
	}
	return ErrBroken
}

// errTransfer means that an image did not arrive; another try may succeed.
var errTransfer = errors.New("image was not unpacked")

// unpacking is the state of one image that is being unpacked.
type unpacking struct {
	ctx     context.Context
	root    *os.Root
	left    int64 // bytes that may still be written
	packed  int64 // bytes that the layers may still have, written or not
	entries int   // files, directories and links that may still be made
	lower   bool  // there are earlier layers

	// fresh is what the present layer wrote: its own whiteouts do not remove that. It has hashes, since a layer may have
	// a million long names.
	fresh map[uint64]struct{}
	seed  maphash.Seed
}

// bounded reads a layer within the bound of packed bytes, until the unpacking's ctx ends.
type bounded struct {
	u *unpacking
	r io.Reader
}

// Read implements io.Reader.
func (b bounded) Read(p []byte) (int, error) {
	if err := b.u.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.u.packed -= int64(n); b.u.packed < 0 {
		return n, fmt.Errorf("unpacks to more than %d bytes", int64(maxBytes))
	}
	return n, err
}

func (u *unpacking) layer(n int, l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	all := io.TeeReader(bounded{u, r}, sum)
	u.fresh, u.lower = map[uint64]struct{}{}, n > 0
	for t := tar.NewReader(all); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("%.200q: %w", h.Name, err)
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

// errLeads means that a path of an image leads out of it.
var errLeads = errors.New("leads out of the image")

// local returns a path of an archive without a leading slash; empty for the root itself.
func local(name string) (string, error) {
	if len(name) > maxName {
		return "", fmt.Errorf("has a name of more than %d bytes", maxName)
	}
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", errLeads
	}
	if clean == "." {
		return "", nil
	}
	return clean, nil
}

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	name, err := local(h.Name)
	if err != nil || name == "" {
		return err
	}
	if err := u.count(); err != nil {
		return err
	}
	dir, base := path.Split(name)
	dir = path.Clean(dir)
	if base == opaque {
		return u.empty(dir)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return errors.New("hides nothing that a layer can have")
		}
		return u.hide(path.Join(dir, hidden))
	}
	if err := u.parents(dir); err != nil {
		return err
	}
	u.wrote(name)
	mode := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, mode)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, mode, h.Size, content)
	case tar.TypeSymlink:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		return u.root.Symlink(inside(dir, h.Linkname), name)
	case tar.TypeLink:
		return u.hardLink(name, h.Linkname)
	case tar.TypeChar, tar.TypeBlock:
		return errors.New("is a device")
	case tar.TypeFifo:
		return errors.New("is a named pipe")
	}
	return nil // a header of the archive itself
}

func (u *unpacking) count() error {
	if u.entries--; u.entries < 0 {
		return fmt.Errorf("unpacks to more than %d files", maxEntries)
	}
	return nil
}

// parents makes the directories above an entry, which count as entries if no entry made them.
func (u *unpacking) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if info, err := u.root.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	if err := u.count(); err != nil {
		return err
	}
	return u.root.MkdirAll(dir, 0o700)
}

// hardLink links a name to a file that is there. What it leads through stays inside, as with every name.
func (u *unpacking) hardLink(name, target string) error {
	to, err := local(target)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	if to == name {
		return nil
	}
	info, err := u.root.Lstat(to)
	if err != nil {
		return fmt.Errorf("hard link to %.200q, which %w: %w", target, errNoTarget, err)
	}
	if info.IsDir() {
		return fmt.Errorf("hard link to %.200q: is a directory", target)
	}
	if err := u.root.RemoveAll(name); err != nil {
		return err
	}
	return u.root.Link(to, name)
}

// errNoTarget means that a hard link has nothing to link to.
var errNoTarget = errors.New("is not in the image")

// wrote notes that the present layer has something at a path, and so the directories above it, whether it names them or
// not.
func (u *unpacking) wrote(name string) {
	if !u.lower {
		return // nothing that it could hide
	}
	for ; name != "."; name = path.Dir(name) {
		h := maphash.String(u.seed, name)
		if _, known := u.fresh[h]; known {
			return
		}
		u.fresh[h] = struct{}{}
	}
}

// hide removes what earlier layers put at a path, or below it.
func (u *unpacking) hide(name string) error {
	if !u.lower {
		return nil
	}
	if _, ours := u.fresh[maphash.String(u.seed, name)]; !ours {
		return u.root.RemoveAll(name)
	}
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return notThere(err)
	}
	return u.empty(name)
}

// empty removes from a directory what earlier layers put there.
func (u *unpacking) empty(dir string) error {
	if !u.lower {
		return nil
	}
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

func (u *unpacking) file(name string, mode fs.FileMode, size int64, content io.Reader) error {
	if size > u.left { // before anything of it is written, also of one that is nearly all holes
		return fmt.Errorf("unpacks to more than %d bytes", int64(maxBytes))
	}
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
