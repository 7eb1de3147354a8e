package manifest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Lookup returns the value at a path of JSON names in m, and whether there is one: a field without presence that is
// zero counts as absent. Paths look like status.phase, metadata.labels['a/b'], spec.taints[0].key, and
// status.conditions[Ready].status, which picks the element whose type or name is Ready; a leading dot is allowed.
// The value is a string (also for an enum: its name), bool, int32, int64, uint32, uint64, float32, float64 or []byte,
// a proto.Message, or a []any or map[string]any of such. Wrappers and free form are given as what they hold.
// A malformed path finds nothing. To look up one path in many messages, parse it once with ParsePath.
func Lookup(m proto.Message, path string) (any, bool) {
	p, err := ParsePath(path)
	if err != nil || m == nil {
		return nil, false
	}
	return p.Lookup(m)
}

// Lookup is the function Lookup for a path that is parsed already.
func (p Path) Lookup(m proto.Message) (any, bool) { return lookup(m.ProtoReflect(), p.steps) }

func lookup(m protoreflect.Message, steps []step) (any, bool) {
	if len(steps) == 0 {
		return fromMessage(m), true
	}
	if free, ok := freeForm(m); ok {
		return lookupFree(free, steps)
	}
	s := steps[0]
	if s.name == "" || s.pick {
		return nil, false
	}
	fd := m.Descriptor().Fields().ByJSONName(s.name)
	if fd == nil || isInline(fd) {
		if fd = InlineField(m.Descriptor()); fd == nil {
			return nil, false
		}
		content, _ := freeForm(m.Get(fd).Message())
		return lookupFree(content, steps)
	}
	if !m.Has(fd) {
		return nil, false
	}
	v, rest := m.Get(fd), steps[1:]
	switch {
	case fd.IsMap():
		return lookupMap(fd, v.Map(), rest)
	case fd.IsList():
		return lookupList(fd, v.List(), rest)
	default:
		return lookupSingle(fd, v, rest)
	}
}

func lookupSingle(fd protoreflect.FieldDescriptor, v protoreflect.Value, steps []step) (any, bool) {
	if fd.Message() != nil {
		return lookup(v.Message(), steps)
	}
	return fromSingle(fd, v), len(steps) == 0
}

func lookupMap(fd protoreflect.FieldDescriptor, entries protoreflect.Map, steps []step) (any, bool) {
	if len(steps) == 0 {
		all := make(map[string]any, entries.Len())
		entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			all[k.String()] = fromSingle(fd.MapValue(), v)
			return true
		})
		return all, true
	}
	name := steps[0].name
	if name == "" {
		name = strconv.Itoa(steps[0].index)
	}
	key, ok := mapKey(fd.MapKey().Kind(), name)
	if !ok || !entries.Has(key) {
		return nil, false
	}
	return lookupSingle(fd.MapValue(), entries.Get(key), steps[1:])
}

func lookupList(fd protoreflect.FieldDescriptor, list protoreflect.List, steps []step) (any, bool) {
	if len(steps) == 0 {
		all := make([]any, list.Len())
		for i := range all {
			all[i] = fromSingle(fd, list.Get(i))
		}
		return all, true
	}
	s := steps[0]
	if !s.pick {
		if s.name != "" || s.index >= list.Len() {
			return nil, false
		}
		return lookupSingle(fd, list.Get(s.index), steps[1:])
	}
	if fd.Message() == nil {
		return nil, false
	}
	for i := range list.Len() {
		element := list.Get(i).Message()
		for _, key := range [...]string{"type", "name"} {
			if v, ok := lookup(element, []step{{name: key}}); ok && v == s.name {
				return lookup(element, steps[1:])
			}
		}
	}
	return nil, false
}

func lookupFree(v any, steps []step) (any, bool) {
	for _, s := range steps {
		switch in := v.(type) {
		case map[string]any:
			name := s.name
			if name == "" {
				name = strconv.Itoa(s.index)
			}
			child, ok := in[name]
			if !ok {
				return nil, false
			}
			v = child
		case []any:
			i := s.index
			if s.pick {
				i = slices.IndexFunc(in, func(e any) bool { return isNamed(e, s.name) })
			}
			if i < 0 || i >= len(in) || s.name != "" && !s.pick {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func isNamed(element any, name string) bool {
	object, ok := element.(map[string]any)
	return ok && (object["type"] == name || object["name"] == name)
}

// freeForm returns what a Struct, Value or ListValue holds.
func freeForm(m protoreflect.Message) (any, bool) {
	fields := m.Descriptor().Fields()
	switch wellKnownName(m) {
	case "Struct":
		fd := fields.ByNumber(1)
		all, _ := lookupMap(fd, m.Get(fd).Map(), nil)
		return all, true
	case "ListValue":
		fd := fields.ByNumber(1)
		all, _ := lookupList(fd, m.Get(fd).List(), nil)
		return all, true
	case "Value":
		fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
		if fd == nil || fd.Number() == valueNull {
			return nil, true
		}
		return fromSingle(fd, m.Get(fd)), true
	}
	return nil, false
}

func fromMessage(m protoreflect.Message) any {
	if free, ok := freeForm(m); ok {
		return free
	}
	switch wellKnownName(m) {
	case "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "StringValue", "UInt32Value",
		"UInt64Value":
		return m.Get(m.Descriptor().Fields().ByNumber(1)).Interface()
	}
	return m.Interface()
}

func fromSingle(fd protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case fd.Message() != nil:
		return fromMessage(v.Message())
	case fd.Enum() != nil:
		if vd := fd.Enum().Values().ByNumber(v.Enum()); vd != nil {
			return string(vd.Name())
		}
		return int32(v.Enum())
	default:
		return v.Interface()
	}
}

// Format returns a value of Lookup as one line of text for a table: nothing for nil, times as RFC 3339, lists with
// commas, maps as sorted key=value pairs, other messages and free form as JSON.
func Format(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return base64.StdEncoding.EncodeToString(v)
	case float32:
		return string(appendFloat(nil, float64(v), 32))
	case float64:
		return string(appendFloat(nil, v, 64))
	case []any:
		texts := make([]string, len(v))
		for i, e := range v {
			texts[i] = formatInner(e)
		}
		return strings.Join(texts, ",")
	case map[string]any:
		texts := make([]string, 0, len(v))
		for k, e := range v {
			texts = append(texts, k+"="+formatInner(e))
		}
		slices.Sort(texts)
		return strings.Join(texts, ",")
	case proto.Message:
		text, err := Encode(v)
		if err != nil {
			return "<" + err.Error() + ">"
		}
		return strings.Trim(string(text), `"`) // only times and lengths of time are quoted as a whole
	default:
		return fmt.Sprint(v)
	}
}

// formatInner is Format for elements of a list or map, where further lists and maps are written as JSON.
func formatInner(value any) string {
	switch value.(type) {
	case []any, map[string]any:
		if text, err := json.Marshal(value); err == nil {
			return string(text)
		}
	}
	return Format(value)
}
