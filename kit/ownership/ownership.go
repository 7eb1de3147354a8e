// Package ownership decides what happens to objects when their owners are deleted. Everything here is a pure function
// of its arguments: its package collector reads the owners, asks, and writes.
package ownership

import (
	"slices"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// Owner is one owner of an object, as a collector found it. An owner of a kind that the collector does not know is
// assumed to exist.
type Owner struct {
	UID   string
	Gone  bool // no object with this uid exists any more
	Keeps bool // its dependents remain when it is deleted
}

// Decision is what to do with an object. The zero Decision leaves it as it is.
type Decision struct {
	Remove bool     // delete the object, if it is still as it was read
	Disown []string // else remove the references to these owners, by uid
}

// Collect decides on an object by all its owners: it is deleted with the last of them, unless all that are gone keep
// their dependents; otherwise it loses the references to those that are gone.
func Collect(owners []Owner) Decision {
	var gone []string
	cascades := false
	for _, o := range owners {
		if o.Gone {
			gone = append(gone, o.UID)
			cascades = cascades || !o.Keeps
		}
	}
	if cascades && len(gone) == len(owners) {
		return Decision{Remove: true}
	}
	return Decision{Disown: gone}
}

// Orphans reports whether an object is being deleted and still has to release its dependents, which remain. keeps is
// the finalizer of a kind whose objects always do so; "" if only a deletion with propagation Orphan does.
func Orphans(o object.Object, keeps string) bool {
	return object.Deleting(o) && slices.ContainsFunc(o.GetMetadata().GetFinalizers(), holds(keeps))
}

// Release removes the finalizers that Orphans found, once all dependents are released.
func Release(m *metav1.ObjectMeta, keeps string) {
	m.Finalizers = slices.DeleteFunc(m.Finalizers, holds(keeps))
}

// holds reports for a finalizer whether it holds an owner until its dependents are released.
func holds(keeps string) func(finalizer string) bool {
	return func(f string) bool { return f == object.OrphanFinalizer || f == keeps && keeps != "" }
}

// Disown removes the references to owners from an object.
func Disown(m *metav1.ObjectMeta, uids []string) {
	m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, func(r *metav1.OwnerReference) bool {
		return slices.Contains(uids, r.GetUid())
	})
}

// Names reports whether a reference of an object in a namespace names an owner of a kind, in whichever version. That of
// an object without a namespace names none of a kind with namespaces: in which one the owner is, is not known.
func Names(r *metav1.OwnerReference, namespace string, t *metav1.ResourceType) bool {
	group, _, grouped := strings.Cut(r.GetApiVersion(), "/")
	return r.GetKind() == t.GetKind() && (grouped && group == t.GetGroup() || !grouped && t.GetGroup() == "") &&
		(namespace != "" || !t.GetNamespaced())
}

// RefersTo reports whether a reference of an object names an owner of a kind.
func RefersTo(o object.Object, t *metav1.ResourceType) bool {
	return slices.ContainsFunc(o.GetMetadata().GetOwnerReferences(), func(r *metav1.OwnerReference) bool {
		return Names(r, o.GetMetadata().GetNamespace(), t)
	})
}

// Owners returns the uids of an object's owners, in the order of its references.
func Owners(o object.Object) []string {
	var uids []string
	for _, r := range o.GetMetadata().GetOwnerReferences() {
		uids = append(uids, r.GetUid())
	}
	return uids
}
