package rpcerr

import (
	"strconv"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// path spells a violation's path in JSON names: fields by json_name, list items as [0], map values as ['key']. Without
// root only the last field's own descriptor is known; the names before it are then made by protobuf's default rule.
func path(v *protovalidate.Violation, root protoreflect.MessageDescriptor) string {
	elements := v.Proto.GetField().GetElements()
	var b strings.Builder
	at := root
	for i, e := range elements {
		var field protoreflect.FieldDescriptor
		if at != nil {
			field = at.Fields().ByNumber(protoreflect.FieldNumber(e.GetFieldNumber()))
		}
		if field == nil && i == len(elements)-1 && v.FieldDescriptor != nil &&
			string(v.FieldDescriptor.Name()) == e.GetFieldName() {
			field = v.FieldDescriptor
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(jsonName(e, field))
		b.WriteString(subscript(e))
		at = below(field)
	}
	return b.String()
}

func jsonName(e *validate.FieldPathElement, field protoreflect.FieldDescriptor) string {
	if field != nil {
		return field.JSONName()
	}
	return camel(e.GetFieldName())
}

// below is the message that the next element of the path is a field of; nil if that is not known.
func below(field protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	switch {
	case field == nil:
		return nil
	case field.IsMap():
		return field.MapValue().Message()
	}
	return field.Message()
}

func subscript(e *validate.FieldPathElement) string {
	switch {
	case e.HasIndex():
		return "[" + strconv.FormatUint(e.GetIndex(), 10) + "]"
	case e.HasStringKey():
		return "['" + strings.ReplaceAll(e.GetStringKey(), "'", `\'`) + "']"
	case e.HasBoolKey():
		return "['" + strconv.FormatBool(e.GetBoolKey()) + "']"
	case e.HasIntKey():
		return "['" + strconv.FormatInt(e.GetIntKey(), 10) + "']"
	case e.HasUintKey():
		return "['" + strconv.FormatUint(e.GetUintKey(), 10) + "']"
	}
	return ""
}

// camel is the JSON name that protoc gives to a field without json_name.
func camel(name string) string {
	var b strings.Builder
	upper := false
	for _, r := range name {
		if r == '_' {
			upper = true
			continue
		}
		if upper && 'a' <= r && r <= 'z' {
			r -= 'a' - 'A'
		}
		upper = false
		b.WriteRune(r)
	}
	return b.String()
}
