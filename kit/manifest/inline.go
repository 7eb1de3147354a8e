package manifest

import (
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// isInline reports whether a field is a Struct whose fields are written beside those of its message.
func isInline(fd protoreflect.FieldDescriptor) bool {
	if fd.Message() == nil || fd.IsMap() || fd.IsList() || fd.Message().FullName() != wellKnownPrefix+"Struct" {
		return false
	}
	inline, _ := proto.GetExtension(fd.Options(), metav1.E_Inline).(bool)
	return inline
}

// InlineField returns the field of a message whose fields are written beside those of the message; nil if it has none.
func InlineField(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	for i := range d.Fields().Len() {
		if fd := d.Fields().Get(i); isInline(fd) {
			return fd
		}
	}
	return nil
}
