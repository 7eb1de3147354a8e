package kinds

import (
	"slices"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
)

// mayOwn lets only a user who may delete an object set its owners: an object is deleted if its owners do not exist.
// Source: OwnerReferencesPermissionEnforcement of Kubernetes, which OpenShift enables. plural is that of the kind.
func mayOwn[T object.Object](t *Tables, w *resource.Write[T], plural string) error {
	if w.Own || w.Deletes() {
		return nil
	}
	var before []*metav1.OwnerReference
	if !w.Creates() {
		before = w.Old.GetMetadata().GetOwnerReferences()
	}
	m := w.New.GetMetadata()
	if slices.EqualFunc(before, m.GetOwnerReferences(), func(a, b *metav1.OwnerReference) bool {
		return proto.Equal(a, b)
	}) {
		return nil
	}
	if ok, why := t.policy.Allowed(w.By, identity.Attributes{
		Verb: "delete", Group: "machine.openshift.io", Resource: plural, Namespace: m.GetNamespace(), Name: m.GetName(),
	}); !ok {
		return rpcerr.Forbidden("metadata.ownerReferences: needs the right to delete the object: " + why)
	}
	return nil
}
