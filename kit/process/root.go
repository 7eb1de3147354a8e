package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is a directory that a process, and what it starts, have as their root: of the host they see nothing but Mounts,
// devices that every program needs, /sys, and in /proc their own processes. It requires CanMount. The executable of
// Spec must be linked statically, or have its libraries in Dir.
type Root struct {
	Dir      string // absolute; directories are made in it for what is mounted
	ReadOnly bool   // the root, not what is mounted in it
	Hostname string // empty: the host's
}

// bindAttributes are of everything that is mounted in a root, beside those that it has: no program gets privileges by
// it, and no device works.
const bindAttributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// procOptions have a user see its own processes in /proc only.
const procOptions = "hidepid=invisible"

// devices of a root. Source: the OCI runtime specification, "Default Devices".
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// devLinks are the links of /dev. Source: the same, "Dev symbolic links".
var devLinks = [][2]string{
	{"/proc/self/fd", "fd"},
	{"/proc/self/fd/0", "stdin"},
	{"/proc/self/fd/1", "stdout"},
	{"/proc/self/fd/2", "stderr"},
	{"pts/ptmx", "ptmx"},
}

// shmSize is the size of /dev/shm. Source: the default of container engines.
const shmSize = "64m"

// build mounts everything at its place in the root. The calling thread has a mount namespace of its own.
func (r *Root) build(mounts []Mount, user *User) error {
	if err := unix.Mount(r.Dir, r.Dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("root %s: %w", r.Dir, err)
	}
	fd, err := unix.Open(r.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("root %s: %w", r.Dir, err)
	}
	defer unix.Close(fd)
	if err := r.system(fd, user); err != nil {
		return err
	}
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b Mount) int { // a mount in another one comes after it
		return cmp.Compare(strings.Count(path.Clean(a.To), "/"), strings.Count(path.Clean(b.To), "/"))
	})
	for _, m := range mounts {
		if err := m.bind(place{root: fd, user: user}); err != nil {
			return fmt.Errorf("mount %s at %s: %w", path.Join(m.From, m.Sub), m.To, err)
		}
	}
	if err := restrict(fd, r.ReadOnly, 0); err != nil {
		return fmt.Errorf("root %s: %w", r.Dir, err)
	}
	if r.Hostname != "" {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte(r.Hostname))); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
	}
	return nil
}

// restrict adds restrictions to what is mounted at an open directory or file; flags may be AT_RECURSIVE.
func restrict(fd int, readOnly bool, flags uint) error {
	attr := unix.MountAttr{Attr_set: bindAttributes}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, &attr)
}

// system mounts what programs expect of a Unix system. /dev is the user's, for what is mounted in it.
func (r *Root) system(root int, user *User) error {
	dev := "mode=755,size=64k,nr_inodes=1k"
	if user != nil {
		dev += fmt.Sprintf(",uid=%d,gid=%d", user.UID, user.GID)
	}
	for _, m := range []struct {
		at, kind, options string
		flags             uintptr
	}{
		{"/proc", "proc", procOptions, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"/dev", "tmpfs", dev, unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/shm", "tmpfs", "mode=1777,size=" + shmSize, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		err := place{root: root}.with(m.at, true, func(at int) error {
			return unix.Mount(m.kind, fdPath(at), m.kind, m.flags, m.options)
		})
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	sys := Mount{From: "/sys", To: "/sys", ReadOnly: true}
	if err := sys.bind(place{root: root}); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	at, err := inRoot(root, "/dev", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	for _, name := range devices {
		err := place{root: at}.with(name, false, func(file int) error {
			return unix.Mount(path.Join("/dev", name), fdPath(file), "", unix.MS_BIND, "")
		})
		if err != nil {
			return fmt.Errorf("mount /dev/%s: %w", name, err)
		}
	}
	for _, l := range devLinks {
		if err := unix.Symlinkat(l[0], at, l[1]); err != nil {
			return fmt.Errorf("link /dev/%s: %w", l[1], err)
		}
	}
	return nil
}

// bind shows a file or directory at its place.
func (m Mount) bind(in place) error {
	copied, dir, err := m.copy(in.user)
	if err != nil {
		return err
	}
	defer unix.Close(copied)
	return in.with(m.To, dir, func(at int) error {
		return unix.MoveMount(copied, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
}

// copy returns what is to be shown as a mount that is nowhere yet. It is opened as a user, who gets nothing that could
// not be reached anyway, and wherever links lead, it stays below m.From if m has Sub.
func (m Mount) copy(user *User) (fd int, dir bool, err error) {
	source, err := m.open(user)
	if err != nil {
		return -1, false, err
	}
	defer unix.Close(source)
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return -1, false, err
	}
	fd, err = unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|
		unix.AT_RECURSIVE)
	if err != nil {
		return -1, false, err
	}
	if err := restrict(fd, m.ReadOnly, unix.AT_RECURSIVE); err != nil {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// open opens what is to be shown.
func (m Mount) open(user *User) (fd int, err error) {
	err = as(user, func() error {
		from, err := unix.Openat2(unix.AT_FDCWD, m.From, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
		})
		if fd = from; err != nil || m.Sub == "" {
			return err
		}
		defer unix.Close(from)
		fd, err = unix.Openat2(from, m.Sub, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
	return fd, err
}

// as calls f while the calling thread, which ends soon, accesses files as a user; nil: as its own. The thread is in no
// supplementary groups then, and stays so: a shell of root may be in some.
func as(user *User, f func() error) error {
	if user == nil {
		return f()
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("supplementary groups: %w", err)
	}
	if err := asUser(*user); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, asUser(User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}))
}

// asUser has the calling thread access files as a user.
func asUser(u User) error {
	for _, set := range []struct {
		call func(int) (int, error)
		id   uint32
	}{{unix.SetfsgidRetGid, u.GID}, {unix.SetfsuidRetUid, u.UID}} {
		if _, err := set.call(int(set.id)); err != nil {
			return err
		}
		if now, err := set.call(-1); err != nil || uint32(now) != set.id {
			return errors.Join(fmt.Errorf("access to files as %d: %w", set.id, unix.EPERM), err)
		}
	}
	return nil
}

// inRoot opens what is at a path for the processes that have the root.
func inRoot(root int, at string, flags uint64) (int, error) {
	return unix.Openat2(root, at, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// place is where something is mounted: at a path for the processes that have a root.
type place struct {
	root int   // an open directory
	user *User // that makes what is missing there; nil: this process's
}

// maxLinks is how many links at the end of a path are followed to make what they lead to.
const maxLinks = 8

// with calls mount with what is at a path, open. If nothing is there, a directory or a file is made first, and the
// directories above it, by the user: neither in an image nor in a volume appears what the user could not have made.
func (p place) with(at string, dir bool, mount func(at int) error) error {
	var fd int
	err := as(p.user, func() (err error) {
		for range maxLinks {
			fd, err = inRoot(p.root, at, unix.O_PATH)
			if !errors.Is(err, unix.ENOENT) {
				return err
			}
			if to, ok := p.link(at); ok {
				at = to
			} else if err := p.make(at, dir); err != nil {
				return err
			}
		}
		return unix.ELOOP
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mount(fd)
}

// link returns where a link at a path leads.
func (p place) link(at string) (string, bool) {
	above, err := inRoot(p.root, path.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "", false
	}
	defer unix.Close(above)
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(above, path.Base(at), text)
	if err != nil {
		return "", false
	}
	if to := string(text[:n]); !path.IsAbs(to) {
		return path.Join(path.Dir(at), to), true
	} else {
		return to, true
	}
}

// make makes a directory or a file, and the directories above it.
func (p place) make(at string, dir bool) error {
	above, err := inRoot(p.root, path.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) && path.Dir(at) != at {
		if err := p.make(path.Dir(at), true); err != nil {
			return err
		}
		above, err = inRoot(p.root, path.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return err
	}
	defer unix.Close(above)
	if dir {
		return unix.Mkdirat(above, path.Base(at), 0o755)
	}
	made, err := unix.Openat(above, path.Base(at), unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(made)
}

// fdPath is the name of an open file of this process.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
