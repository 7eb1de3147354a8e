// Package ownership decides what happens to objects when their owners go. Everything here is a pure function of its
// arguments; collectors read the owners, ask, and write.
package ownership

import (
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Owner is one owner of an object, as a collector found it. An owner of a kind that the collector does not know is
// taken to exist.
type Owner struct {
	UID   string
	Gone  bool // no object with this uid exists any more
	Keeps bool // its objects stay when it goes
}

// Decision is what to do with an object. The zero Decision leaves it alone.
type Decision struct {
	Remove bool     // delete the object, if it is still as it was read
	Disown []string // else forget these owners, by uid
}

// Collect decides on an object by all its owners: it goes with the last of them if one of those that are gone takes its
// objects along; otherwise it forgets those that are gone.
func Collect(owners []Owner) Decision {
	var gone []string
	taken := false
	for _, o := range owners {
		if o.Gone {
			gone = append(gone, o.UID)
			taken = taken || !o.Keeps
		}
	}
	if taken && len(gone) == len(owners) {
		return Decision{Remove: true}
	}
	return Decision{Disown: gone}
}

// Orphans reports whether an object is being deleted and leaves alone what belongs to it, which has yet to be let go.
func Orphans(o object.Object) bool {
	return object.Deleting(o) && slices.Contains(o.GetMetadata().GetFinalizers(), object.OrphanFinalizer)
}

// Owned reports whether an object belongs to the owner with a uid.
func Owned(o object.Object, uid string) bool {
	return slices.ContainsFunc(o.GetMetadata().GetOwnerReferences(), func(r *metav1.OwnerReference) bool {
		return r.GetUid() == uid
	})
}

// Disown takes the references to owners off an object.
func Disown(m *metav1.ObjectMeta, uids []string) {
	m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(r *metav1.OwnerReference) bool {
		return slices.Contains(uids, r.GetUid())
	})
}

// LetGo takes off an owner what holds it until its objects are let go.
func LetGo(m *metav1.ObjectMeta) {
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == object.OrphanFinalizer })
}
