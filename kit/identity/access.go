package identity

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// accessOf returns the access option of a method, given as gRPC spells it
// ("/windlass.machine.v1.MachineService/GetMachine"). files is where methods are looked up; nil means all that are
// linked into the program. A method without the option, or with one that asks for nothing, is an error: no caller is
// allowed.
func accessOf(files protodesc.Resolver, method string) (*metav1.Access, error) {
	if files == nil {
		files = protoregistry.GlobalFiles
	}
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	descriptor, err := files.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("method %s is not known", method)
	}
	md, ok := descriptor.(protoreflect.MethodDescriptor)
	if !ok || !proto.HasExtension(md.Options(), metav1.E_Access) {
		return nil, fmt.Errorf("method %s does not say which right it needs", method)
	}
	access := proto.GetExtension(md.Options(), metav1.E_Access).(*metav1.Access)
	if access.GetVerb() == "" && !access.GetCheckedByMethod() && !access.GetUnauthenticated() {
		return nil, fmt.Errorf("method %s does not say which right it needs", method)
	}
	return access, nil
}

// rights remembers the access options of the methods that were called.
type rights struct {
	files protodesc.Resolver
	found sync.Map // method → *metav1.Access; bounded by the number of methods, since unknown ones are not kept
}

func (r *rights) of(method string) (*metav1.Access, error) {
	if known, ok := r.found.Load(method); ok {
		return known.(*metav1.Access), nil
	}
	access, err := accessOf(r.files, method)
	if err == nil {
		r.found.Store(method, access)
	}
	return access, err
}

// Methods of gRPC itself: every authenticated caller may call them.
func isHealth(method string) bool     { return strings.HasPrefix(method, "/grpc.health.v1.Health/") }
func isReflection(method string) bool { return strings.HasPrefix(method, "/grpc.reflection.") }

// target is the object that a request is about, as far as the request says.
type target struct{ namespace, name, resourceVersion string }

// targetOf reads the fields namespace, name and resource_version of a request; what they leave open comes from the
// metadata of an object in it, but only for the record: rights are checked against the request's own fields.
func targetOf(m proto.Message) (own, described target) {
	if m == nil {
		return target{}, target{}
	}
	r := m.ProtoReflect()
	own = target{text(r, "namespace"), text(r, "name"), text(r, "resource_version")}
	described = own
	r.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		switch nested := value.Message().Interface().(type) {
		case *metav1.Preconditions:
			described.fill(target{resourceVersion: nested.GetResourceVersion()})
		case withMetadata:
			described.fill(metadataOf(nested))
		}
		return true
	})
	return own, described
}

// carriedRight returns the right to the object of the method's kind that a request carries, if its metadata names
// another namespace or name than the request does: the request of a plan may, and the plan is then about that object.
// It is empty where the right to what the request names covers the object.
func carriedRight(m proto.Message, access *metav1.Access, wanted Attributes) (further []Attributes) {
	if m == nil {
		return nil
	}
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		kind := object.TypeOf(field.Message())
		if kind == nil || kind.GetGroup() != access.GetGroup() || kind.GetPlural() != access.GetResource() {
			return true
		}
		own, right := metadataOf(value.Message().Interface()), wanted
		if wanted.Namespace != "" {
			right.Namespace = cmp.Or(own.namespace, wanted.Namespace)
		}
		if wanted.Name != "" {
			right.Name = cmp.Or(own.name, wanted.Name)
		}
		if right != wanted {
			further = append(further, right)
		}
		return true
	})
	return further
}

// withMetadata is what every resource has.
type withMetadata interface{ GetMetadata() *metav1.ObjectMeta }

func metadataOf(m any) target {
	if object, ok := m.(withMetadata); ok && object.GetMetadata() != nil {
		meta := object.GetMetadata()
		return target{meta.GetNamespace(), meta.GetName(), meta.GetResourceVersion()}
	}
	return target{}
}

func (t *target) fill(o target) {
	for _, pair := range []struct{ to, from *string }{
		{&t.namespace, &o.namespace}, {&t.name, &o.name}, {&t.resourceVersion, &o.resourceVersion},
	} {
		if *pair.to == "" {
			*pair.to = *pair.from
		}
	}
}

func text(m protoreflect.Message, field protoreflect.Name) string {
	fd := m.Descriptor().Fields().ByName(field)
	if fd == nil || fd.Kind() != protoreflect.StringKind || fd.Cardinality() == protoreflect.Repeated {
		return ""
	}
	return m.Get(fd).String()
}
