package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount shows a file or a directory at another path: to one process, and to what that starts.
type Mount struct {
	From string // absolute; the process's user must be able to reach it
	Sub  string `json:",omitempty"` // what is shown of From, if that is a directory; links do not lead out of From
	// absolute, in Spec.Root if there is one; a link is followed. Without a root something must be there.
	To       string
	ReadOnly bool `json:",omitempty"`
}

// CanMount returns why this process cannot start others that have Mounts or a Root; nil if it can.
func CanMount() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can give processes mounts of their own")
	}
	dir, err := os.MkdirTemp("", "windlass-root-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	onOwnThread(func() {
		try := Spec{Root: &Root{Dir: dir}, Mounts: []Mount{{From: os.DevNull, To: "/null"}}}
		var at stage
		at, _, err = try.isolate()
		err = errors.Join(err, at.leave())
	})
	return err
}

// CanMap returns why this process cannot start others whose User has Inside; nil if it can.
func CanMap() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can give processes user namespaces")
	}
	// It is tried: engines of containers refuse it by filters of system calls. There is no such program.
	err := Start(exec.Command("/proc/self/fd/none"), &User{UID: 1, GID: 1, Inside: &ID{}})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("user namespace: %w", err)
}

// isolate gives the thread that calls it, which must be locked and end soon, a mount namespace of its own with the
// mounts and the root of spec, and has it be outside of that root. What it starts inherits that. Mounts that the host
// makes or removes later are made or removed there as well, so that none is kept busy; the host sees nothing of these.
// It returns the inode of the namespace, 0 if there is none.
func (spec Spec) isolate() (at stage, namespace uint64, err error) {
	if spec.Root == nil && len(spec.Mounts) == 0 {
		return stage{}, 0, nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return stage{}, 0, fmt.Errorf("mount namespace: %w", err)
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return stage{}, 0, err
	}
	defer proc.Close()
	own, err := ownMounts(proc)
	if err != nil {
		return stage{}, 0, err
	}
	defer own.Close()
	if namespace, err = inode(own); err != nil {
		return stage{}, 0, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return stage{}, 0, fmt.Errorf("mount namespace: %w", err)
	}
	if spec.Root != nil {
		if err := spec.Root.build(spec.Mounts, spec.User); err != nil {
			return stage{}, 0, err
		}
		if err := exchangeRoot(spec.Root.Dir); err != nil {
			return stage{}, 0, err
		}
		at, err := newStage(proc)
		return at, namespace, err
	}
	for _, m := range spec.Mounts {
		if err := m.onHost(spec.User); err != nil {
			return stage{}, 0, fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
		}
	}
	return stage{}, namespace, nil
}

// onHost shows a file or a directory at a path of the host.
func (m Mount) onHost(user *User) error {
	source, err := m.open(user)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	return unix.Mount(fdPath(source), m.To, "", unix.MS_BIND, "")
}

// InMemory makes a file system in memory at a directory, with options of tmpfs, unless one is there. RemoveAll and
// Unmount unmount it.
func InMemory(dir, options string) error {
	mounted := false
	err := eachInMemory(filepath.Dir(dir), func(at string) error {
		mounted = mounted || filepath.Base(at) == filepath.Base(dir)
		return nil
	})
	if err != nil || mounted {
		return err
	}
	return unix.Mount(memorySource, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// Unmount unmounts the file systems of InMemory below a directory. What has files of them open keeps them.
func Unmount(dir string) error {
	return eachInMemory(dir, func(at string) error {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		return nil
	})
}

// memorySource is what the table of mounts has as the source of the file systems of InMemory.
const memorySource = "windlass-memory"

// Fields of a line of mountinfo: the mount's path, and after a "-" its type and source. Source:
// proc_pid_mountinfo(5).
const mountPoint, afterDash = 4, 2

// eachInMemory calls f with the file systems of InMemory below a directory.
func eachInMemory(dir string, f func(at string) error) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !strings.Contains(string(table), " "+memorySource+" ") {
		return err
	}
	above, err := filepath.EvalSymlinks(filepath.Dir(dir)) // a link in its own place is not followed
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	within := filepath.Join(above, filepath.Base(dir)) + "/"
	for line := range strings.Lines(string(table)) {
		fields := strings.Split(line, " ") // what else is a space stays in names as it is
		dash := slices.Index(fields, "-")
		if dash < mountPoint || len(fields) <= dash+afterDash || fields[dash+afterDash] != memorySource {
			continue
		}
		if at := unescape(fields[mountPoint]); strings.HasPrefix(at, within) {
			if err := f(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// unescape returns a path of mountinfo, which writes some characters as a backslash and three octal digits.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
