// Package object contains what all kinds have in common as plain data: keys, references, owners, selectors, conditions
// and faults. Everything here is a pure function of its arguments, safe for concurrent use, so that packages that
// decide (plan, placement, disruption) may import it.
package object

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// Object is a message of a kind, with api_version, kind, metadata and usually spec and status.
type Object interface {
	proto.Message
	GetApiVersion() string
	GetKind() string
	GetMetadata() *metav1.ObjectMeta
}

// Key identifies an object of a known kind.
type Key struct {
	Namespace string // empty for kinds without namespaces
	Name      string
}

// String returns "namespace/name", or only the name if there is no namespace.
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

// TypeOf returns the names of the kind of a message in the API, from the option of the message; nil if it is not a
// resource.
func TypeOf(d protoreflect.MessageDescriptor) *metav1.ResourceType {
	t, _ := proto.GetExtension(d.Options(), metav1.E_Resource).(*metav1.ResourceType)
	return t
}

// DefaultName returns the name of an object whose document has none; empty if the kind requires one.
func DefaultName(t *metav1.ResourceType) string { return cmp.Or(t.GetSingleton(), t.GetDefaultName()) }

// APIVersion returns group and version of a kind in the format of documents: "machine.openshift.io/v1beta1", or "v1".
func APIVersion(t *metav1.ResourceType) string {
	if t.GetGroup() == "" {
		return t.GetVersion()
	}
	return t.GetGroup() + "/" + t.GetVersion()
}

// Reference returns a reference to an object, with its uid.
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

// OwnedBy returns an owner reference that makes owner the controller of the object that has it.
func OwnedBy(owner Object) *metav1.OwnerReference {
	t := TypeOf(owner.ProtoReflect().Descriptor())
	return &metav1.OwnerReference{
		ApiVersion: APIVersion(t), Kind: t.GetKind(), Name: owner.GetMetadata().GetName(), Uid: owner.GetMetadata().GetUid(),
		Controller: proto.Bool(true), BlockOwnerDeletion: proto.Bool(true),
	}
}

// AppliedPrefix begins the annotations that hold the fields of the document that was applied to an object last, so that
// the next one removes what it lacks of them.
const AppliedPrefix = "applied.windlass.dev/"

// OrphanFinalizer keeps an object that is being deleted until its dependents are released.
const OrphanFinalizer = "orphan"

// Deleting reports whether the deletion of an object was requested.
func Deleting(o Object) bool { return o.GetMetadata().GetDeletionTimestamp() != nil }

// Clone returns a copy that may be modified.
func Clone[T Object](o T) T { return proto.Clone(o).(T) }

// lastTime is the latest time that JSON can say. Source: google.protobuf.Timestamp.
var lastTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// Timestamp returns a time as messages have it: nil for the zero time. Later times than the year 9999 are its end.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	if t.After(lastTime) {
		t = lastTime
	}
	return timestamppb.New(t)
}
