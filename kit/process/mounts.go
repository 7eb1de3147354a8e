package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount shows a file at the path of another one, which must be there: to one process, and to what that starts.
type Mount struct {
	From string // absolute
	To   string // absolute; a symbolic link is followed
}

// CanMount returns why this process cannot start others that have Mounts; nil if it can.
func CanMount() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can give processes mounts of their own")
	}
	var err error
	onOwnThread(func() { err = mountAll([]Mount{{From: os.DevNull, To: os.DevNull}}) })
	return err
}

// mountAll gives the thread that calls it, which must be locked and end soon, a mount namespace of its own with the
// mounts. What it starts inherits that. Mounts that the host makes or removes later are made or removed there as well,
// so that none is kept busy; the host sees nothing of these.
func mountAll(mounts []Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	for _, m := range mounts {
		if err := unix.Mount(m.From, m.To, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
		}
	}
	return nil
}
