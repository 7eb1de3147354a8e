package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stage is where a thread is while it starts a process that has a Root: outside of it, in an empty file system with
// /proc. What the thread opens for the process, such as the maps of its user namespace in /proc, must not be what
// others who have that root put in their place: the thread may open everything, and would do so for them. The zero
// stage is the host's root.
type stage struct {
	root   string   // the name of the root on the stage
	mounts *os.File // the thread's mount namespace
}

// newStage has the calling thread, which has a mount namespace of its own, be outside of its root directory. A root
// that is only another directory than that of the mount namespace would do as well, but for that no user namespace is
// made there. proc is the host's /proc, open: that of the root may be anything.
func newStage(proc *os.File) (stage, error) {
	mounts, err := ownMounts(proc)
	if err != nil {
		return stage{}, err
	}
	if err := setStage(); err != nil {
		return stage{}, errors.Join(fmt.Errorf("stage: %w", err), mounts.Close())
	}
	return stage{"/root", mounts}, nil
}

func setStage() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "mode", "755"), unix.FsconfigSetString(fs, "size", "16k"),
		unix.FsconfigCreate(fs))
	if err != nil {
		return err
	}
	at, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	for _, do := range []func() error{
		func() error { return unix.MoveMount(at, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH) },
		func() error { return unix.Fchdir(at) },
		func() error { return unix.Mkdir("root", 0o755) },
		func() error { return unix.Mkdir("proc", 0o755) },
		func() error { return unix.PivotRoot(".", "root") },
		func() error {
			return unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, procOptions)
		},
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// leave has nothing of the stage be left in the mount namespace, of which the root is the root again. It does so on
// another thread: that which was on the stage may be confined.
func (s stage) leave() error {
	if s.mounts == nil {
		return nil
	}
	defer s.mounts.Close()
	var err error
	onOwnThread(func() {
		err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(s.mounts.Fd()), unix.CLONE_NEWNS))
		if err == nil {
			err = exchangeRoot(s.root)
		}
	})
	return err
}

// close releases a stage on which no process was started.
func (s stage) close() {
	if s.mounts != nil {
		s.mounts.Close()
	}
}

// exchangeRoot makes a directory the root of everything in the calling thread's mount namespace that has the present
// one. Source: pivot_root(2), "pivot_root(".", ".")".
func exchangeRoot(dir string) error {
	old, err := unix.Open("/", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(old)
	if err := unix.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("root %s: %w", dir, err)
	}
	return errors.Join(unix.Fchdir(old), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
}

// ownMounts opens the mount namespace of the calling thread.
func ownMounts(proc *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(proc.Fd()), "thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount namespace: %w", err)
	}
	return os.NewFile(uintptr(fd), "mnt"), nil
}

// inode returns the number of an open file.
func inode(f *os.File) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return st.Ino, err
}
