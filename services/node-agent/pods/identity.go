package pods

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/kit/process"
	"github.com/windlass-dev/windlass/kit/security"
	"github.com/windlass-dev/windlass/services/node-agent/image"
	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

// Files of an image that say who its users are, and how much of them is read.
const (
	usersFile   = "etc/passwd"
	groupsFile  = "etc/group"
	maxAccounts = 1 << 20
)

// runAs says what the processes of a container take themselves for and may do, and returns their home directory; empty
// if it is their working directory. Without an image and without a number that is asked for they are the pod's user.
func (s *Pods) runAs(l *launch, pod *schedulingv1.Pod, c *schedulingv1.Container, img *image.Cached) (home string,
	err error,
) {
	asked := security.Of(pod.GetSpec(), c)
	if l.readOnly = asked.ReadOnlyRoot; l.readOnly && !l.isolated {
		return "", errors.New("readOnlyRootFilesystem: what runs without an image has the root directory of its host")
	}
	l.confined = s.confinement == nil &&
		(asked.Seccomp == security.RuntimeDefault || l.isolated && asked.Seccomp != security.Unconfined)
	if s.namespaces != nil || img == nil && asked.User == nil && asked.Group == nil {
		if asked.NonRoot && l.user == nil && os.Geteuid() == 0 {
			return "", plan.ErrRoot
		}
		if l.isolated {
			home = "/"
		}
		return home, nil
	}
	var name string
	var in plan.Accounts
	if img == nil {
		name = strconv.FormatUint(uint64(l.user.UID), 10)
	} else {
		name = img.Config.User
		if in, err = accountsOf(l.root); err != nil {
			return "", err
		}
	}
	id, err := plan.IdentityOf(asked, name, in)
	if err != nil {
		return "", err
	}
	l.user = &process.User{UID: l.user.UID, GID: l.user.GID, Inside: &process.ID{UID: id.UID, GID: id.GID}}
	if img == nil {
		return "", nil
	}
	return id.Home, nil
}

// accountsOf returns what the files of an image say of its users.
func accountsOf(root string) (out plan.Accounts, err error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return out, err
	}
	defer r.Close()
	for name, to := range map[string]*string{usersFile: &out.Users, groupsFile: &out.Groups} {
		f, err := r.Open(name)
		if err != nil {
			continue // an image need not have them
		}
		text, err := io.ReadAll(io.LimitReader(f, maxAccounts))
		f.Close()
		if err != nil {
			return out, fmt.Errorf("%s of the image: %w", name, err)
		}
		*to = string(text)
	}
	return out, nil
}
