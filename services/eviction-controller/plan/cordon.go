package plan

import (
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
)

// Cordon keeps a user's cordon and spec.unschedulable in sync on a node that user wrote: next is modified. A change of
// spec.unschedulable is a request of the user to cordon or uncordon the node. The annotations of the cordon and of a
// reboot stay as in old: only this service writes them. old is nil for a new node; drains are those of the node, and
// keep it unschedulable.
func Cordon(old, next *nodev1.Node, drains []*nodev1.Drain, user string) {
	by, cordoned := old.GetMetadata().GetAnnotations()[CordonedBy]
	if want := next.GetSpec().GetUnschedulable(); want != old.GetSpec().GetUnschedulable() {
		if want && !cordoned {
			by = user
		}
		cordoned = want
	}
	setAnnotation(next, CordonedBy, by, cordoned)
	boot, rebooting := old.GetMetadata().GetAnnotations()[RebootOf]
	setAnnotation(next, RebootOf, boot, rebooting)
	setUnschedulable(next, len(HeldBy(next, drains)) > 0)
}

// SetCordon changes a user's cordon on a node; drains as for Cordon.
func SetCordon(node *nodev1.Node, drains []*nodev1.Drain, user string, on bool) {
	if _, already := node.GetMetadata().GetAnnotations()[CordonedBy]; already != on {
		setAnnotation(node, CordonedBy, user, on)
	}
	setUnschedulable(node, len(HeldBy(node, drains)) > 0)
}

// SetReboot requests a reboot of a node that runs the boot with that ID.
func SetReboot(node *nodev1.Node, bootID string) { setAnnotation(node, RebootOf, bootID, true) }

func setAnnotation(node *nodev1.Node, key, value string, on bool) {
	m := node.GetMetadata()
	if !on {
		delete(m.GetAnnotations(), key)
		return
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[key] = value
}
