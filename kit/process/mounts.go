package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
		err = try.isolate()
	})
	return err
}

// maxUserNamespaces is the file with how many user namespaces there can be.
const maxUserNamespaces = "/proc/sys/user/max_user_namespaces"

// CanMap returns why this process cannot start others whose User has Inside; nil if it can.
func CanMap() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can give processes user namespaces")
	}
	text, err := os.ReadFile(maxUserNamespaces)
	if err == nil && string(text) == "0\n" {
		err = fmt.Errorf("%s is 0", maxUserNamespaces)
	}
	return err
}

// isolate gives the thread that calls it, which must be locked and end soon, a mount namespace of its own with the
// mounts and the root of spec. What it starts inherits that. Mounts that the host makes or removes later are made or
// removed there as well, so that none is kept busy; the host sees nothing of these.
func (spec Spec) isolate() error {
	if spec.Root == nil && len(spec.Mounts) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if spec.Root != nil {
		err := spec.Root.build(spec.Mounts, spec.User)
		if err == nil && !spec.Wrapper {
			err = spec.Root.enter()
		}
		return err
	}
	for _, m := range spec.Mounts {
		if err := m.onHost(spec.User); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
		}
	}
	return nil
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

// unmountIn unmounts what this process sees mounted in a directory.
func unmountIn(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	at, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil // it is not there
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) <= mountPoint {
			continue
		}
		point := unescape(fields[mountPoint])
		if rel, err := filepath.Rel(at, point); err != nil || !filepath.IsLocal(rel) {
			continue
		}
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}

// mountPoint is the field of a line of mountinfo with the mount's path. Source: proc_pid_mountinfo(5).
const mountPoint = 4

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
