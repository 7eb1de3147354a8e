// Package object is what all kinds have in common as plain data: how an object is named, referred to, owned, selected
// and described by conditions, and what is wrong with one. Everything here is a pure function of its arguments, safe
// for concurrent use, so that packages that decide (plan, placement, disruption) may import it.
package object

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Object is a message of a kind: api_version, kind, metadata and mostly spec and status.
type Object interface {
	proto.Message
	GetApiVersion() string
	GetKind() string
	GetMetadata() *metav1.ObjectMeta
}

// Key names an object of a known kind.
type Key struct {
	Namespace string // empty for kinds that have none
	Name      string
}

// String returns "namespace/name", or the name alone where there is no namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// ParseKey is the inverse of Key.String.
func ParseKey(s string) Key {
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return Key{Namespace: ns, Name: name}
	}
	return Key{Name: s}
}

// KeyOf returns the key of an object.
func KeyOf(o Object) Key {
	return Key{Namespace: o.GetMetadata().GetNamespace(), Name: o.GetMetadata().GetName()}
}

// TypeOf returns how the kind of a message is addressed, from the option on its message; nil if it is no resource.
func TypeOf(d protoreflect.MessageDescriptor) *metav1.ResourceType {
	t, _ := proto.GetExtension(d.Options(), metav1.E_Resource).(*metav1.ResourceType)
	return t
}

// APIVersion returns group and version of a kind as documents write them: "machine.openshift.io/v1beta1", or "v1".
func APIVersion(t *metav1.ResourceType) string {
	if t.GetGroup() == "" {
		return t.GetVersion()
	}
	return t.GetGroup() + "/" + t.GetVersion()
}

// Reference returns a reference to an object with its uid, as owners and events use it.
func Reference(o Object) *metav1.ObjectReference {
	m := o.GetMetadata()
	t := TypeOf(o.ProtoReflect().Descriptor())
	return &metav1.ObjectReference{
		ApiVersion: APIVersion(t), Kind: t.GetKind(),
		Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
	}
}

// ControllerOf returns the reference of the owner that manages an object, or nil.
func ControllerOf(o Object) *metav1.OwnerReference {
	for _, r := range o.GetMetadata().GetOwnerReferences() {
		if r.GetController() {
			return r
		}
	}
	return nil
}

// OwnedBy returns an owner reference that makes owner the manager of whoever carries it.
func OwnedBy(owner Object) *metav1.OwnerReference {
	t := TypeOf(owner.ProtoReflect().Descriptor())
	return &metav1.OwnerReference{
		ApiVersion: APIVersion(t), Kind: t.GetKind(), Name: owner.GetMetadata().GetName(), Uid: owner.GetMetadata().GetUid(),
		Controller: proto.Bool(true), BlockOwnerDeletion: proto.Bool(true),
	}
}

// OrphanFinalizer holds an object that is being deleted until what belongs to it no longer does.
const OrphanFinalizer = "orphan"

// Deleting reports whether the deletion of an object was requested.
func Deleting(o Object) bool { return o.GetMetadata().GetDeletionTimestamp() != nil }

// Clone returns a copy that may be modified.
func Clone[T Object](o T) T { return proto.Clone(o).(T) }
