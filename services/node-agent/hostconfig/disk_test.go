package hostconfig

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// disk is a file system of which a loss of power leaves only what was synced: of a file what it held at its last fsync,
// of a directory the names that it had at its last fsync. It notes after each operation what such a loss would leave.
type disk struct {
	mu     sync.Mutex
	ino    uint64
	root   *inode
	random *rand.Rand
	more   int // losses noted after each operation beside that of all that was not synced
	losses []loss
	mark   string // of the losses that are noted
}

// loss is what a loss of power leaves.
type loss struct {
	mark  string // what was under way
	after string // the operation before it
	left  map[string]inode
}

// inode is a file, a directory or a link. A synced one is what of it survives.
type inode struct {
	ino      uint64
	mode     uint32 // with the type
	data     []byte // of a file; the target of a link
	children map[string]*inode
	synced   *inode
}

// node is an inode as the kernel sees it.
type node struct {
	fs.Inode
	disk *disk
	of   *inode
}

// newDisk mounts an empty disk at a directory, or skips the test.
func newDisk(t *testing.T, dir string, seed uint64) *disk {
	t.Helper()
	d := &disk{random: rand.New(rand.NewPCG(seed, 1))}
	d.root = d.create(syscall.S_IFDIR | 0o755)
	server, err := fs.Mount(dir, &node{disk: d, of: d.root}, &fs.Options{
		MountOptions:    fuse.MountOptions{DirectMount: true, FsName: "disk", Name: "disk"},
		RootStableAttr:  &fs.StableAttr{Ino: d.root.ino},
		NullPermissions: true,
	})
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
	})
	return d
}

func (d *disk) create(mode uint32) *inode {
	d.ino++
	i := &inode{ino: d.ino + 1, mode: mode}
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		i.children = map[string]*inode{}
	}
	i.synced = &inode{mode: mode} // it exists once its directory is synced, without anything in it
	return i
}

// sync has what an inode is now survive.
func (i *inode) sync() {
	i.synced = &inode{mode: i.mode, data: bytes.Clone(i.data), children: maps.Clone(i.children)}
}

// syncAll has everything survive.
func (d *disk) syncAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all func(i *inode)
	all = func(i *inode) {
		i.sync()
		for _, c := range i.children {
			all(c)
		}
	}
	all(d.root)
}

// begin marks the losses that follow; an empty mark notes none.
func (d *disk) begin(mark string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mark = mark
}

// did notes what losses after an operation leave. The caller holds d.mu.
func (d *disk) did(what string) {
	if d.mark == "" {
		return
	}
	for i := range 1 + d.more {
		kept := func() bool { return i > 0 && d.random.IntN(2) == 0 }
		l := loss{d.mark, what, map[string]inode{}}
		d.left(l.left, "", d.root, kept)
		d.losses = append(d.losses, l)
	}
}

// left adds what a loss leaves of an inode and of what is in it; kept has something survive that was not synced.
func (d *disk) left(out map[string]inode, path string, i *inode, kept func() bool) {
	is := *i.synced
	if kept() || i.mode&syscall.S_IFMT == syscall.S_IFLNK {
		is = *i
	}
	if is.mode&syscall.S_IFMT == syscall.S_IFDIR {
		for name, c := range is.children {
			d.left(out, filepath.Join(path, name), c, kept)
		}
	}
	out[path] = inode{mode: is.mode, data: bytes.Clone(is.data)}
}

// write makes what a loss left below a directory.
func (l loss) write(t *testing.T, dir string) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(l.left)) {
		i, at, err := l.left[path], filepath.Join(dir, path), error(nil)
		switch i.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			err = os.MkdirAll(at, 0o755)
		case syscall.S_IFLNK:
			err = os.Symlink(string(i.data), at)
		default:
			err = os.WriteFile(at, i.data, 0o600)
		}
		if err == nil && i.mode&syscall.S_IFMT != syscall.S_IFLNK {
			err = os.Chmod(at, os.FileMode(i.mode&0o777))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (n *node) child(ctx context.Context, i *inode, out *fuse.EntryOut) *fs.Inode {
	i.attr(&out.Attr)
	return n.NewInode(ctx, &node{disk: n.disk, of: i}, fs.StableAttr{Mode: i.mode & syscall.S_IFMT, Ino: i.ino})
}

func (i *inode) attr(out *fuse.Attr) {
	out.Ino, out.Mode, out.Size, out.Nlink = i.ino, i.mode, uint64(len(i.data)), 1
	out.Owner = fuse.Owner{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
}

func (n *node) add(ctx context.Context, name string, i *inode, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if n.of.children[name] != nil {
		return nil, syscall.EEXIST
	}
	n.of.children[name] = i
	n.disk.did("create " + name)
	return n.child(ctx, i, out), 0
}

// Lookup and what follows are the operations of the kernel. Sources: fuse(4), and package fs of go-fuse.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	i := n.of.children[name]
	if i == nil {
		return nil, syscall.ENOENT
	}
	return n.child(ctx, i, out), 0
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.of.attr(&out.Attr)
	return 0
}

func (n *node) Setattr(_ context.Context, _ fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	if mode, ok := in.GetMode(); ok {
		n.of.mode = n.of.mode&syscall.S_IFMT | mode&^syscall.S_IFMT
	}
	if size, ok := in.GetSize(); ok {
		n.of.data = append(n.of.data, make([]byte, max(0, int(size)-len(n.of.data)))...)[:size]
	}
	n.disk.did("change attributes")
	n.of.attr(&out.Attr)
	return 0
}

func (n *node) Create(ctx context.Context, name string, _, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle,
	uint32, syscall.Errno,
) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	i, err := n.add(ctx, name, n.disk.create(syscall.S_IFREG|mode), out)
	return i, nil, fuse.FOPEN_DIRECT_IO, err
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	return n.add(ctx, name, n.disk.create(syscall.S_IFDIR|mode), out)
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	i := n.disk.create(syscall.S_IFLNK | 0o777)
	i.data = []byte(target)
	return n.add(ctx, name, i, out)
}

func (n *node) Readlink(context.Context) ([]byte, syscall.Errno) { return n.of.data, 0 }

func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	from := min(int(off), len(n.of.data))
	to := min(from+len(dest), len(n.of.data))
	return fuse.ReadResultData(bytes.Clone(n.of.data[from:to])), 0
}

func (n *node) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	end := int(off) + len(data)
	n.of.data = append(n.of.data, make([]byte, max(0, end-len(n.of.data)))...)
	copy(n.of.data[off:], data)
	n.disk.did("write")
	return uint32(len(data)), 0
}

func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	n.of.sync()
	n.disk.did("fsync")
	return 0
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno { return n.drop(name) }

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno { return n.drop(name) }

func (n *node) drop(name string) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	switch i := n.of.children[name]; {
	case i == nil:
		return syscall.ENOENT
	case len(i.children) > 0:
		return syscall.ENOTEMPTY
	}
	delete(n.of.children, name)
	n.disk.did("remove " + name)
	return 0
}

func (n *node) Rename(_ context.Context, name string, parent fs.InodeEmbedder, to string, flags uint32) syscall.Errno {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	i, there := n.of.children[name], parent.(*node).of
	switch {
	case i == nil:
		return syscall.ENOENT
	case flags != 0:
		return syscall.EINVAL
	case there.children[to] != nil && len(there.children[to].children) > 0:
		return syscall.ENOTEMPTY
	}
	delete(n.of.children, name)
	there.children[to] = i
	n.disk.did("rename " + name + " to " + to)
	return 0
}

func (n *node) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	n.disk.mu.Lock()
	defer n.disk.mu.Unlock()
	var list []fuse.DirEntry
	for name, i := range n.of.children {
		list = append(list, fuse.DirEntry{Name: name, Ino: i.ino, Mode: i.mode})
	}
	return fs.NewListDirStream(list), 0
}
