package machineconfig

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/windlass-dev/windlass/kit/object"
)

// ownUnit is the unit of Windlass itself on a host.
const ownUnit = "windlass.service"

// Files are the paths of a host that configurations may change when the host's own files are the machine's.
type Files struct {
	Allowed []string // absolute paths of files and directories, beside what every host allows
}

// Where configurations put files on any host, and what there is not theirs: what decides who may enter the host, what
// it mounts and how it is reached. All are below the root, without a slash in front.
var (
	open   = []string{"etc", "opt", "usr/local"}
	closed = []string{
		"etc/passwd", "etc/passwd-", "etc/shadow", "etc/shadow-", "etc/group", "etc/group-", "etc/gshadow", "etc/gshadow-",
		"etc/subuid", "etc/subgid", "etc/sudoers", "etc/sudoers.d", "etc/ssh/sshd_config", "etc/ssh/sshd_config.d",
		"etc/pam.d", "etc/pam.conf", "etc/security", "etc/ld.so.preload", "etc/fstab", "etc/crypttab", "etc/machine-id",
		"etc/network", "etc/netplan", "etc/NetworkManager", "etc/systemd/network", "etc/systemd/networkd.conf",
		"etc/systemd/networkd.conf.d", "etc/systemd/resolved.conf", "etc/systemd/resolved.conf.d", "etc/resolv.conf",
		"etc/hosts", "etc/sysconfig/network", "etc/sysconfig/network-scripts", "etc/nftables.conf", "etc/iptables",
		"etc/firewalld",
	}
	own = []string{
		"etc/windlass", "var/lib/windlass", path.Join(unitDir, ownUnit), path.Join(unitDir, ownUnit+".d"),
		path.Join(unitDir, "service.d"), "etc/systemd/system.control",
	}
)

// CheckAllowed returns an error unless a path can be allowed to configurations.
func CheckAllowed(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
		return fmt.Errorf("%q: must be an absolute path without . and .., and not / itself", p)
	}
	if in := within(p[1:], own); in != "" {
		return fmt.Errorf("%q: /%s is Windlass' own", p, in)
	}
	return nil
}

// Faults returns why an entry may not be put on the host; p is where it comes to be: its path, or where links lead
// that.
func (f Files) Faults(e Entry, p string) []object.Fault {
	refuse := func(format string, args ...any) []object.Fault {
		name := fmt.Sprintf("%q", "/"+e.Path)
		if p != e.Path {
			name += fmt.Sprintf(", which is %q,", "/"+p)
		}
		return []object.Fault{object.Faultf("spec.config", "%s "+format, append([]any{name}, args...)...)}
	}
	var allowed []string
	for _, a := range f.Allowed {
		allowed = append(allowed, strings.TrimPrefix(a, "/"))
	}
	const how = "allow it on the host with windlass host set --allow-path"
	switch {
	case path.Base(p) == ownUnit && within(p, []string{unitDir}) != "":
		return refuse("is of Windlass' own unit")
	case within(p, own) != "" || e.Kind != Directory && holds(p, own):
		return refuse("is Windlass' own")
	case within(p, allowed) != "":
		return nil
	case within(p, closed) != "":
		return refuse("is not changed by configurations: %s", how)
	case e.Kind != Directory && holds(p, closed):
		return refuse("has files below it that configurations do not change, and must stay a directory")
	case within(p, open) == "" || slices.Contains(open, p):
		return refuse("is not below /etc, /opt or /usr/local: %s", how)
	}
	return nil
}

// within returns the first of some paths that is p or above it; empty if none is.
func within(p string, of []string) string {
	for _, o := range of {
		if p == o || strings.HasPrefix(p, o+"/") {
			return o
		}
	}
	return ""
}

// holds reports whether one of some paths is below p.
func holds(p string, some []string) bool {
	return slices.ContainsFunc(some, func(s string) bool { return strings.HasPrefix(s, p+"/") })
}
