package client

import (
	"fmt"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"

	_ "github.com/windlass-dev/windlass/gen/rest" // links every kind
)

// Kind is a kind of object that the cluster serves.
type Kind struct {
	*metav1.ResourceType
	Message protoreflect.MessageDescriptor
	Methods map[resource.Method]protoreflect.MethodDescriptor
}

// APIVersion returns group and version as documents write them.
func (k Kind) APIVersion() string { return object.APIVersion(k.ResourceType) }

// New returns an empty object of the kind.
func (k Kind) New() object.Object { return resource.NewMessage(k.Message).(object.Object) }

// FullName returns the plural with the group: "machines.machine.openshift.io".
func (k Kind) FullName() string {
	if k.GetGroup() == "" {
		return k.GetPlural()
	}
	return k.GetPlural() + "." + k.GetGroup()
}

// Kinds returns all kinds, by their plural names.
func Kinds() []Kind {
	var out []Kind
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			t := object.TypeOf(m)
			if t == nil {
				continue
			}
			methods, err := resource.Methods(m)
			if err != nil {
				continue // a kind without a service
			}
			out = append(out, Kind{ResourceType: t, Message: m, Methods: methods})
		}
		return true
	})
	sort.Slice(out, func(i, j int) bool { return out[i].GetPlural() < out[j].GetPlural() })
	return out
}

// FindKind returns the kind that a word of the command line means: plural, singular, short name or kind, with or
// without ".group" or ".version.group".
func FindKind(word string) (Kind, error) {
	if k, ok := FindAmong(Kinds(), word); ok {
		return k, nil
	}
	return Kind{}, fmt.Errorf("the server doesn't have a resource type %q", word)
}

// KindOf returns the kind that a document names.
func KindOf(apiVersion, kind string) (Kind, error) {
	var others []string
	for _, k := range Kinds() {
		if k.GetKind() != kind {
			continue
		}
		if apiVersion == k.APIVersion() {
			return k, nil
		}
		others = append(others, k.APIVersion())
	}
	if apiVersion == "v1" && kind == bindingKind {
		return binding(), nil
	}
	if len(others) > 0 {
		return Kind{}, fmt.Errorf("no kind %q in apiVersion %q: it is in %s", kind, apiVersion, strings.Join(others, ", "))
	}
	return Kind{}, fmt.Errorf("no kind %q in apiVersion %q", kind, apiVersion)
}

// cloneAs returns a typed copy of a message that a request holds.
func cloneAs(m proto.Message) object.Object { return proto.Clone(m).(object.Object) }
