package plan

import (
	"errors"
	"strconv"
	"strings"

	"github.com/windlass-dev/windlass/kit/security"
)

// Identity is the user and the group of the processes of a container, as these see them.
type Identity struct {
	UID, GID uint32
	Home     string // the user's home directory
}

// ErrRoot means that a container that must not be root would be.
var ErrRoot = errors.New("container has runAsNonRoot and would run as root")

// IdentityOf returns the user and the group of a container: those that it asks for, else its own. users is the text of
// its /etc/passwd, which says the home directory of a user, and the group of one that is asked for without a group; the
// group is 0 otherwise. That an image names a user does not count. Source: Kubernetes; OpenShift for the last rule, in
// whose restricted security context constraints a pod has a user of its own.
func IdentityOf(asked security.Context, own Identity, users string) (Identity, error) {
	out := own
	if asked.User != nil {
		out.UID, out.GID = *asked.User, 0
	}
	out.Home = "/"
	if line, ok := userLine(users, out.UID); ok {
		if out.Home = line.Home; asked.User != nil {
			out.GID = line.GID
		}
	}
	if asked.Group != nil {
		out.GID = *asked.Group
	}
	if asked.NonRoot && out.UID == 0 {
		return out, ErrRoot
	}
	return out, nil
}

// HasUser reports whether the text of an /etc/passwd has a user with a number.
func HasUser(users string, uid uint32) bool {
	_, ok := userLine(users, uid)
	return ok
}

// userLine returns the first line of a user with a number. Source: passwd(5).
func userLine(text string, uid uint32) (Identity, bool) {
	const number, group, home = 2, 3, 5
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) <= home || f[number] != strconv.FormatUint(uint64(uid), 10) || f[home] == "" {
			continue
		}
		if gid, err := strconv.ParseUint(f[group], 10, 31); err == nil {
			return Identity{UID: uid, GID: uint32(gid), Home: f[home]}, true
		}
	}
	return Identity{}, false
}
