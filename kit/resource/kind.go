// Package resource serves one kind of object: its records in etcd, one cache that is kept in step by one watch, the
// standard methods (get, list, create, update, patch, apply, delete, watch) over gRPC, and the same as Go methods for the
// service that owns the kind. It promises that every write compares the revision it was decided on, that a writer sees its
// own writes in the cache, and that a watch shows every change once and in order. What a kind means (defaults, rules beyond
// those in its proto, who may write what) comes from its owner in a Config.
package resource

import (
	"fmt"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
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

// Deleting reports whether the deletion of an object was requested.
func Deleting(o Object) bool { return o.GetMetadata().GetDeletionTimestamp() != nil }

// Clone returns a copy that may be modified.
func Clone[T Object](o T) T { return proto.Clone(o).(T) }

// Service returns the gRPC service that serves the kind of a message: by our rule it stands in the same package and is named
// after the kind.
func Service(d protoreflect.MessageDescriptor) (protoreflect.ServiceDescriptor, error) {
	name := d.FullName() + "Service"
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("service of %s: %w", d.FullName(), err)
	}
	svc, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("service of %s: %s is no service", d.FullName(), name)
	}
	return svc, nil
}

// Method names the standard methods of a kind.
type Method string

// The standard methods.
const (
	Get          Method = "Get"
	List         Method = "List"
	Create       Method = "Create"
	Update       Method = "Update"
	Patch        Method = "Patch"
	Apply        Method = "Apply"
	UpdateStatus Method = "UpdateStatus"
	Delete       Method = "Delete"
	Watch        Method = "Watch"
)

// Methods returns the standard methods that a kind's service has, by their meaning.
func Methods(d protoreflect.MessageDescriptor) (map[Method]protoreflect.MethodDescriptor, error) {
	svc, err := Service(d)
	if err != nil {
		return nil, err
	}
	kind := TypeOf(d).GetKind()
	out := map[Method]protoreflect.MethodDescriptor{}
	for i := range svc.Methods().Len() {
		m := svc.Methods().Get(i)
		name := string(m.Name())
		switch {
		case name == "Update"+kind+"Status":
			out[UpdateStatus] = m
		case strings.HasPrefix(name, "List") && m.Output().Name() == protoreflect.Name(kind+"List"):
			out[List] = m
		case strings.HasPrefix(name, "Watch") && m.IsStreamingServer():
			out[Watch] = m
		default:
			for _, verb := range []Method{Get, Create, Update, Patch, Apply, Delete} {
				if name == string(verb)+kind {
					out[verb] = m
				}
			}
		}
	}
	return out, nil
}

// NewMessage returns an empty message of the generated Go type.
func NewMessage(d protoreflect.MessageDescriptor) proto.Message {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(fmt.Sprintf("no Go type for %s: the program was linked without it", d.FullName()))
	}
	return mt.New().Interface()
}
