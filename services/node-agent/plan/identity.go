package plan

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/windlass-dev/windlass/kit/security"
)

// Identity is what the processes of a container take themselves for.
type Identity struct {
	UID, GID uint32
	Home     string // their home directory, in the image
}

// Accounts are the texts of an image's /etc/passwd and /etc/group.
type Accounts struct{ Users, Groups string }

// ErrRoot means that a container that must not be root would be.
var ErrRoot = errors.New("container has runAsNonRoot and would run as root")

// IdentityOf returns the user and the group of a container: those that it asks for, else those that its image says, as
// NAME, NUMBER, or either with :GROUP, else root. The group of a user is that of the image's file of users, 0 if that
// does not have the user. Source: Kubernetes, pkg/kubelet/kuberuntime/security_context.go; the image specification.
func IdentityOf(asked security.Context, image string, in Accounts) (Identity, error) {
	name, group, grouped := strings.Cut(image, ":")
	out := Identity{Home: "/"}
	var entry account
	var err error
	switch {
	case asked.User != nil:
		out.UID, grouped = *asked.User, false
		entry, _ = find(in.Users, userLine, strconv.FormatUint(uint64(out.UID), 10))
	case name != "":
		if asked.NonRoot && !isNumber(name) {
			return out, fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), "+
				"cannot verify user is non-root", name)
		}
		if entry, err = find(in.Users, userLine, name); err != nil {
			return out, fmt.Errorf("user of the image: %w", err)
		}
		out.UID = entry.id
	default:
		entry, _ = find(in.Users, userLine, "0")
	}
	out.GID = entry.group
	if entry.home != "" {
		out.Home = entry.home
	}
	if grouped {
		entry, err := find(in.Groups, groupLine, group)
		if err != nil {
			return out, fmt.Errorf("group of the image: %w", err)
		}
		out.GID = entry.id
	}
	if asked.Group != nil {
		out.GID = *asked.Group
	}
	if asked.NonRoot && out.UID == 0 {
		return out, ErrRoot
	}
	return out, nil
}

// account is a line of a file of users or groups.
type account struct {
	id, group uint32
	home      string
}

// Fields of a line. Source: passwd(5), group(5).
const (
	userLine  = 7
	groupLine = 4
)

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// find returns the line of a name or a number; a number needs no line.
func find(text string, fields int, name string) (account, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	numeric := err == nil
	if numeric && n > math.MaxInt32 {
		return account{}, fmt.Errorf("%s is larger than %d", name, math.MaxInt32)
	}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < fields || f[0] != name && (!numeric || f[2] != name) {
			continue
		}
		a, err := accountOf(f, fields == userLine)
		if err == nil {
			return a, nil
		}
	}
	if numeric {
		return account{id: uint32(n)}, nil
	}
	return account{}, fmt.Errorf("the image has no %q", name)
}

func accountOf(f []string, user bool) (account, error) {
	id, err := strconv.ParseUint(f[2], 10, 31)
	if err != nil || !user {
		return account{id: uint32(id)}, err
	}
	group, err := strconv.ParseUint(f[3], 10, 31)
	return account{uint32(id), uint32(group), f[5]}, err
}
