package printer

import (
	"cmp"

	etcdv1 "github.com/windlass-dev/windlass/gen/windlass/etcd/v1"
)

// Etcd says which version of etcd a member runs, and how that relates to the executable of its host.
func Etcd(m *etcdv1.Member) string {
	text := cmp.Or(m.GetVersion(), "unknown version")
	switch {
	case m.GetNextVersion() != "" && m.GetNextVersion() != m.GetVersion():
		return text + ", to be restarted with " + m.GetNextVersion()
	case m.GetNextVersion() != "" && m.GetOtherExecutable():
		return text + ", not restarted: the executable of its host has the same version of etcd"
	}
	return text
}
