package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Hold shows a file or a directory at m.To of the host itself, which it makes, for programs that get paths and open
// them with all rights, such as container runtimes: m.To keeps leading to the same file or directory when links and
// directories on the path m.From change. It is opened as a user, who gets nothing that could not be reached anyway;
// nil: as this process's. No program gets privileges by it, and no device works. A directory that the user cannot write
// to is read-only with all that is below it: those programs make what is missing to mount at, and a link that they
// follow may lead there. It requires CanMount. An error may leave an empty m.To. Release ends it.
func Hold(m Mount, user *User) (err error) {
	onOwnThread(func() { err = m.hold(user) })
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", path.Join(m.From, m.Sub), m.To, err)
	}
	return nil
}

// HoldIn shows a file or a directory at a path within what Hold shows at m.To, as Hold does; at is the path there,
// whose links stay in it. What is missing there is made as the user, who gets nothing made that the user could not
// make.
func HoldIn(m Mount, at string, user *User) (err error) {
	onOwnThread(func() { err = m.holdIn(at, user) })
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", path.Join(m.From, m.Sub), path.Join(m.To, at), err)
	}
	return nil
}

func (m Mount) holdIn(at string, user *User) error {
	root, err := unix.Open(m.To, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	shown, dir, err := m.lasting(user)
	if err != nil {
		return err
	}
	defer unix.Close(shown)
	return place{root: root, user: user}.with(at, dir, func(to int) error {
		return unix.MoveMount(shown, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	})
}

// lasting returns what Hold shows, as a mount that is nowhere yet. It gets nothing of what the host mounts in the
// original later, nor the other way round.
func (m Mount) lasting(user *User) (shown int, dir bool, err error) {
	if shown, dir, err = m.copy(user); err != nil {
		return -1, false, err
	}
	attributes := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if dir && !writable(shown, user) {
		attributes.Attr_set = unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(shown, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attributes); err != nil {
		unix.Close(shown)
		return -1, false, err
	}
	return shown, dir, nil
}

// writable reports whether a user can make something in an open directory.
func writable(dir int, user *User) bool {
	return as(user, func() error {
		return unix.Faccessat(dir, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	}) == nil
}

func (m Mount) hold(user *User) error {
	shown, dir, err := m.lasting(user)
	if err != nil {
		return err
	}
	defer unix.Close(shown)
	if dir {
		err = os.Mkdir(m.To, 0o700)
	} else {
		err = os.WriteFile(m.To, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(shown, "", unix.AT_FDCWD, m.To, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Release ends what Hold shows in a directory, and removes that directory; nil if it does not exist. It never removes
// anything of what is shown. Processes that have it mounted keep it.
func Release(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		for err = nil; err == nil; { // several may be there, one upon the other
			err = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if !errors.Is(err, unix.EINVAL) { // it is no mount
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		if err := os.Remove(at); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
