package rest

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/gateway/catalog"
)

// checkQuery refuses query parameters that the method does not have, cannot read, or takes from elsewhere. The
// generated handlers would ignore the first, word the second for programmers, and let the third pass.
func checkQuery(route *catalog.Route, raw string) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return rpcerr.Invalid(object.Fault{Description: "the query of the address cannot be read: " + err.Error()})
	}
	var problems []object.Fault
	for _, key := range sorted(values) {
		if text := checkParameter(route, key, values[key]); text != "" {
			problems = append(problems, object.Fault{Path: key, Description: text})
		}
	}
	if len(problems) > 0 {
		return rpcerr.Invalid(problems...)
	}
	return nil
}

func sorted(values url.Values) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func checkParameter(route *catalog.Route, key string, values []string) string {
	message := route.Method.Desc.Input()
	var field protoreflect.FieldDescriptor
	for i, name := range strings.Split(key, ".") {
		if message == nil {
			return "unknown query parameter"
		}
		field = message.Fields().ByJSONName(name)
		if field == nil {
			return "unknown query parameter"
		}
		if i == 0 && slices.Contains(route.Fields, string(field.Name())) {
			return "is given by the address already"
		}
		if i == 0 && (route.Body == "*" || route.Body == string(field.Name())) {
			return "belongs in the body"
		}
		message = nil
		if field.Message() != nil && !field.IsList() && !field.IsMap() {
			message = field.Message()
		}
	}
	return checkValues(field, values)
}

func checkValues(field protoreflect.FieldDescriptor, values []string) string {
	switch {
	case field.IsMap():
		return "unknown query parameter"
	case len(values) > 1 && !field.IsList():
		return "is given more than once"
	}
	for _, v := range values {
		if text := checkValue(field, v); text != "" {
			return text
		}
	}
	return ""
}

func checkValue(field protoreflect.FieldDescriptor, v string) string {
	var err error
	switch field.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
	case protoreflect.BoolKind:
		if v != "true" && v != "false" {
			return fmt.Sprintf("%q is neither true nor false", v)
		}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		if _, err = strconv.ParseInt(v, 10, 32); err != nil {
			return fmt.Sprintf("%q is no whole number from %d to %d", v, math.MinInt32, math.MaxInt32)
		}
	case protoreflect.MessageKind:
		// The runtime reads the few messages that have a text: lengths of time, field masks, wrapped numbers.
		switch field.Message().ParentFile().Package() {
		case "google.protobuf":
		default:
			return "unknown query parameter"
		}
	}
	return ""
}
