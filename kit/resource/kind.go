// Package resource serves one kind of object: its records in etcd, one cache that is kept in sync by one watch, the
// standard methods (get, list, create, update, patch, apply, delete, watch) over gRPC, and the same as Go methods for
// the service that owns the kind. It promises that every write compares the revision it was decided on, that a writer
// sees its own writes in the cache, and that a watch returns every change once and in order. What is specific to a kind
// (defaults, rules beyond those in its proto, who may write what) is in the Config of its owner.
package resource

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// service returns the gRPC service that serves the kind of a message: by convention it is in the same package and named
// after the kind.
func service(d protoreflect.MessageDescriptor) (protoreflect.ServiceDescriptor, error) {
	name := d.FullName() + "Service"
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("service of %s: %w", d.FullName(), err)
	}
	svc, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("service of %s: %s is not a service", d.FullName(), name)
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

// Methods returns the standard methods of a kind's service.
func Methods(d protoreflect.MessageDescriptor) (map[Method]protoreflect.MethodDescriptor, error) {
	svc, err := service(d)
	if err != nil {
		return nil, err
	}
	kind := cmp.Or(object.TypeOf(d).GetKind(), string(d.Name())) // a message of many kinds has no type of its own
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
