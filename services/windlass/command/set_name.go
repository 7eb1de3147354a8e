package command

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// setName gives an empty object a namespace and a name.
func setName(o object.Object, namespace, name string) {
	m := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	r := o.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName("metadata"), protoreflect.ValueOfMessage(m.ProtoReflect()))
}
