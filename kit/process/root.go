package process

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is a directory that a process, and what it starts, have as their root: of the host they see nothing but Mounts,
// devices that every program needs, /sys, and in /proc their own user's processes. It requires CanMount.
//
// A Wrapper starts in the host's root, where its program is, and loses that before it starts its child: descriptor
// 3+len(Spec.Files) is a socket to which it writes a byte when its program is loaded, and which it then reads a line
// from. If there is none to be read, it must end. Its working directory is the root, whatever Spec.Dir says.
type Root struct {
	Dir      string // absolute; directories are made in it for what is mounted
	ReadOnly bool   // the root, not what is mounted in it
	Hostname string // empty: the host's
}

// bind flags of everything that is mounted in a root: no program gets privileges by it, and no device works.
const bindFlags = unix.MS_NOSUID | unix.MS_NODEV

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
	if err := r.system(fd); err != nil {
		return err
	}
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b Mount) int { // a mount in another one comes after it
		return cmp.Compare(strings.Count(path.Clean(a.To), "/"), strings.Count(path.Clean(b.To), "/"))
	})
	for _, m := range mounts {
		if err := m.bind(fd, user); err != nil {
			return fmt.Errorf("mount %s at %s: %w", path.Join(m.From, m.Sub), m.To, err)
		}
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | bindFlags)
	if r.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", r.Dir, "", flags, ""); err != nil {
		return fmt.Errorf("root %s: %w", r.Dir, err)
	}
	if r.Hostname != "" {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte(r.Hostname))); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
	}
	return nil
}

// system mounts what programs expect of a Unix system.
func (r *Root) system(root int) error {
	for _, m := range []struct {
		at, kind, options string
		flags             uintptr
	}{
		{"/proc", "proc", "hidepid=invisible", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"/dev", "tmpfs", "mode=755,size=64k", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"/dev/shm", "tmpfs", "mode=1777,size=" + shmSize, unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		err := onPlace(root, m.at, true, func(at string) error { return unix.Mount(m.kind, at, m.kind, m.flags, m.options) })
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	sys := Mount{From: "/sys", To: "/sys", ReadOnly: true}
	if err := sys.bind(root, nil); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	dev, err := inRoot(root, "/dev", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for _, name := range devices {
		err := onPlace(dev, name, false, func(at string) error {
			return unix.Mount(path.Join("/dev", name), at, "", unix.MS_BIND, "")
		})
		if err != nil {
			return fmt.Errorf("mount /dev/%s: %w", name, err)
		}
	}
	for _, l := range devLinks {
		if err := unix.Symlinkat(l[0], dev, l[1]); err != nil {
			return fmt.Errorf("link /dev/%s: %w", l[1], err)
		}
	}
	return nil
}

// enter makes the directory the root of everything in the calling thread's mount namespace: of this thread, and of the
// wrapper that it started. Source: pivot_root(2), "pivot_root(".", ".")".
func (r *Root) enter() error {
	old, err := unix.Open("/", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(old)
	if err := unix.Chdir(r.Dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("root %s: %w", r.Dir, err)
	}
	return errors.Join(unix.Fchdir(old), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
}

// enterAs is enter for the mount namespace of a child, on another thread: that which started the child may be confined.
func (r *Root) enterAs(pid int) error {
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(child)
	onOwnThread(func() {
		if err = join(child); err == nil {
			err = r.enter()
		}
	})
	return err
}

// join gives the calling thread, which must be locked and end soon, the mounts, the root and the hostname of a process.
func join(pidfd int) error {
	return errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(pidfd, unix.CLONE_NEWNS|unix.CLONE_NEWUTS))
}

// bind shows a file or directory in the root, which is made if nothing is there. It is opened as the user, who gets
// nothing that could not be reached anyway, and wherever links lead, it stays below m.From if m has Sub.
func (m Mount) bind(root int, user *User) error {
	source, err := m.open(user)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return err
	}
	return onPlace(root, m.To, st.Mode&unix.S_IFMT == unix.S_IFDIR, func(at string) error {
		if err := unix.Mount(fdPath(source), at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | bindFlags)
		if m.ReadOnly {
			flags |= unix.MS_RDONLY
		}
		place, err := inRoot(root, m.To, unix.O_PATH) // what is mounted, not what it was mounted on
		if err != nil {
			return err
		}
		defer unix.Close(place)
		return unix.Mount("", fdPath(place), "", flags, "")
	})
}

// open opens what is to be shown.
func (m Mount) open(user *User) (fd int, err error) {
	if user != nil { // the thread ends soon
		if err := asUser(*user); err != nil {
			return -1, err
		}
		defer func() { err = errors.Join(err, asUser(User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())})) }()
	}
	from, err := unix.Open(m.From, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil || m.Sub == "" {
		return from, err
	}
	defer unix.Close(from)
	return unix.Openat2(from, m.Sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
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

// onPlace calls mount with a name of what is at a path for the processes that have the root. If nothing is there, a
// directory or a file is made first, and the directories above it.
func onPlace(root int, at string, dir bool, mount func(at string) error) error {
	fd, err := inRoot(root, at, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		name := path.Base(at)
		err = inParent(root, at, func(parent int) error {
			if dir {
				return unix.Mkdirat(parent, name, 0o755)
			}
			made, err := unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
			if err != nil {
				return err
			}
			return unix.Close(made)
		})
		if err != nil {
			return err
		}
		fd, err = inRoot(root, at, unix.O_PATH)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mount(fdPath(fd))
}

// inParent calls f with the directory above a path, which is made if it is not there.
func inParent(root int, at string, f func(parent int) error) error {
	above := path.Dir(at)
	err := onPlace(root, above, true, func(string) error { return nil })
	if err != nil {
		return err
	}
	parent, err := inRoot(root, above, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return f(parent)
}

// fdPath is the name of an open file of this process.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// door is the socket between a supervisor and a wrapper that is to change its root. The zero door is none.
type door struct{ here, there *os.File }

// doorPatience is how long a wrapper may take to load its program. Others of its pool could stop it.
const doorPatience = 10 * time.Second

func newDoor() (door, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return door{}, err
	}
	err = unix.SetNonblock(fds[0], true) // for the deadline
	return door{os.NewFile(uintptr(fds[0]), "door"), os.NewFile(uintptr(fds[1]), "door")}, err
}

func (d door) close() {
	d.here.Close() // of a nil File this does nothing
	d.there.Close()
}

// pass waits until the wrapper's program is loaded, changes its root, and has it go on. pid is that of the wrapper.
func (d door) pass(r *Root, pid int) error {
	if err := errors.Join(d.there.Close(), d.here.SetDeadline(time.Now().Add(doorPatience))); err != nil {
		return err
	}
	if _, err := io.ReadFull(d.here, make([]byte, 1)); err != nil {
		return fmt.Errorf("wrapper does not begin: %w", err)
	}
	if err := r.enterAs(pid); err != nil {
		return err
	}
	_, err := d.here.WriteString("\n")
	return err
}
