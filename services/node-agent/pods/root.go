package pods

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/windlass-dev/windlass/kit/process"
)

// copyChunk is how much of a file is copied between two checks of whether the pod is still there.
const copyChunk = 16 << 20

// copyTree makes a copy of an image's files, in one step: if root is there, it is complete. The files belong to the
// user, who may write all of them: they share nothing with the image, or only blocks that the file system copies when
// one writes (reflinks). It ends when ctx does.
func copyTree(ctx context.Context, from, root string, user *process.User) error {
	partial := partialOf(root)
	if err := errors.Join(process.RemoveAll(root), process.RemoveAll(partial)); err != nil {
		return err
	}
	if err := os.MkdirAll(partial, 0o700); err != nil {
		return err
	}
	source, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer source.Close()
	to, err := os.OpenRoot(partial)
	if err != nil {
		return err
	}
	defer to.Close()
	c := copying{ctx: ctx, from: source, to: to, user: user, linked: map[uint64]string{}}
	if err := fs.WalkDir(source.FS(), ".", c.visit); err != nil {
		return err
	}
	for i := len(c.dirs) - 1; i >= 0; i-- { // what is below a directory before the directory itself
		if err := c.own(c.dirs[i]); err != nil {
			return err
		}
	}
	return os.Rename(partial, root)
}

// copying is the state of one copy.
type copying struct {
	ctx      context.Context
	from, to *os.Root
	user     *process.User
	linked   map[uint64]string // by inode: files with several names
	dirs     []string
}

func (c *copying) visit(name string, e fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if err := c.ctx.Err(); err != nil {
		return context.Cause(c.ctx)
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	switch {
	case e.IsDir():
		c.dirs = append(c.dirs, name)
		if name == "." {
			return nil
		}
		if err := c.to.Mkdir(name, 0o700); err != nil {
			return err
		}
		return c.to.Chmod(name, info.Mode().Perm()|0o700)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := c.from.Readlink(name)
		if err != nil {
			return err
		}
		if err := c.to.Symlink(target, name); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			if first := c.linked[st.Ino]; first != "" {
				return c.to.Link(first, name)
			}
			c.linked[st.Ino] = name
		}
		if err := c.file(name, info); err != nil {
			return err
		}
	}
	if c.user == nil {
		return nil
	}
	return c.to.Lchown(name, int(c.user.UID), os.Getegid())
}

// own gives a directory to the user.
func (c *copying) own(name string) error {
	if c.user == nil {
		return nil
	}
	return errors.Join(addMode(c.to, name, ownDir), c.to.Lchown(name, int(c.user.UID), os.Getegid()))
}

func (c *copying) file(name string, info fs.FileInfo) error {
	in, err := c.from.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := c.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for err == nil && c.ctx.Err() == nil {
		_, err = io.CopyN(out, in, copyChunk) // the kernel copies, and shares blocks where it can
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	return errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close())
}

// rootOf returns the directory of a container's own files.
func rootOf(dir string) string { return filepath.Join(dir, "root") }

// partialOf returns where the files of a root are until all are there.
func partialOf(root string) string { return root + ".new" }
