package pods

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"golang.org/x/sys/unix"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/security"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// Files of an image that say who its users are, and how much of them is read.
const (
	usersFile   = "etc/passwd"
	maxAccounts = 1 << 20
)

// runAs decides what user the processes of a container have and what they may do, and returns the home directory of
// that user in the container's root directory. A user or a group that the container asks for is its pod's user in a
// namespace of its own. Else the processes have the number of the pod's user, whatever the image says: it is not root.
func (s *Pods) runAs(l *launch, pod *schedulingv1.Pod, c *schedulingv1.Container) (home string, err error) {
	asked := security.Of(pod.GetSpec(), c)
	if l.readOnly = asked.ReadOnlyRoot; l.readOnly && !l.isolated {
		return "", errors.New("readOnlyRootFilesystem: what runs without an image has the root directory of its host")
	}
	l.confined = s.driver().lacks().Confinement == nil &&
		(asked.Seccomp == security.RuntimeDefault || l.isolated && asked.Seccomp != security.Unconfined)
	own := plan.Identity{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if l.user != nil {
		own.UID, own.GID = l.user.UID, l.user.GID
	}
	var users string
	if l.isolated && l.root != "" { // of a runtime's root nothing is known
		if users, err = usersOf(l.root); err != nil {
			return "", err
		}
	}
	id, err := plan.IdentityOf(asked, own, users)
	if err != nil {
		return "", err
	}
	if l.user == nil || id.UID == own.UID && id.GID == own.GID {
		return id.Home, addUser(l, own, users)
	}
	l.user = &process.User{UID: own.UID, GID: own.GID, Inside: &process.ID{UID: id.UID, GID: id.GID}}
	return id.Home, nil
}

// usersOf returns what the file of an image says of its users; empty if it has none.
func usersOf(root string) (string, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return "", err
	}
	defer r.Close()
	f, err := r.OpenFile(usersFile, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be anything
	if err != nil {
		return "", nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	if err != nil {
		return "", fmt.Errorf("%s of the image: %w", usersFile, err)
	}
	return string(text), nil
}

// addUser gives the pod's user a name in the image's file of users, if there is that file and the user is not in it:
// programs look for one. Source: CRI-O, which does so for the users that OpenShift gives to pods.
func addUser(l *launch, own plan.Identity, users string) error {
	if l.user == nil || users == "" || plan.HasUser(users, own.UID) {
		return nil
	}
	r, err := os.OpenRoot(l.root)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := r.OpenFile(usersFile, os.O_WRONLY|os.O_APPEND|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // it is another one by now: other containers of the pod may have replaced it
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != own.UID || st.Nlink != 1 {
		return nil // it may be a file of the host
	}
	line := fmt.Sprintf("%d:x:%d:%d:user of the pod:/:/sbin/nologin\n", own.UID, own.UID, own.GID)
	if !strings.HasSuffix(users, "\n") {
		line = "\n" + line
	}
	_, err = f.WriteString(line)
	return err
}
