package manifest_test

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"
)

// messages generates messages that a document can say, with empty and nested ones among them.
func messages(fresh func() proto.Message) *rapid.Generator[proto.Message] {
	return rapid.Custom(func(t *rapid.T) proto.Message {
		m := fresh()
		fill(t, m.ProtoReflect(), 3)
		return m
	})
}

// fill sets some fields of m; depth is how many messages may still be inside each other.
func fill(t *rapid.T, m protoreflect.Message, depth int) {
	if fillWellKnown(t, m, depth) || depth <= 0 || m.Descriptor().Fields().Len() == 0 {
		return
	}
	fields := m.Descriptor().Fields()
	for range rapid.IntRange(0, 6).Draw(t, "fields") {
		fd := fields.Get(rapid.IntRange(0, fields.Len()-1).Draw(t, "field"))
		if m.Has(fd) || fd.Message() != nil && (fd.Message().Name() == "Any" || fd.Message().Name() == "FieldMask") {
			continue
		}
		switch {
		case fd.IsMap():
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				key := scalar(t, fd.MapKey()).MapKey()
				entries := m.Mutable(fd).Map()
				if fd.MapValue().Message() == nil {
					entries.Set(key, scalar(t, fd.MapValue()))
				} else if !entries.Has(key) {
					fillElement(t, entries.Mutable(key).Message(), depth-1)
				}
			}
		case fd.IsList():
			for range rapid.IntRange(0, 3).Draw(t, "elements") {
				list := m.Mutable(fd).List()
				if fd.Message() == nil {
					list.Append(scalar(t, fd))
				} else {
					fillElement(t, list.AppendMutable().Message(), depth-1)
				}
			}
		case fd.Message() != nil:
			inner := m.Mutable(fd).Message()
			fill(t, inner, depth-1)
			if isNull(inner) { // null is absent there
				m.Clear(fd)
			}
		default:
			m.Set(fd, scalar(t, fd))
		}
	}
}

// fillElement is fill for the elements of a typed list or map, where null is refused.
func fillElement(t *rapid.T, m protoreflect.Message, depth int) {
	fill(t, m, depth)
	if isNull(m) {
		m.Set(m.Descriptor().Fields().ByName("bool_value"), protoreflect.ValueOfBool(true))
	}
}

func isNull(m protoreflect.Message) bool {
	return m.Descriptor().FullName() == "google.protobuf.Value" && m.Has(m.Descriptor().Fields().ByName("null_value"))
}

func fillWellKnown(t *rapid.T, m protoreflect.Message, depth int) bool {
	fields := m.Descriptor().Fields()
	switch m.Descriptor().FullName() {
	case "google.protobuf.Timestamp":
		m.Set(fields.ByName("seconds"),
			protoreflect.ValueOfInt64(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "seconds")))
		m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(nanos().Draw(t, "nanos")))
	case "google.protobuf.Duration":
		sign := rapid.SampledFrom([]int64{1, -1}).Draw(t, "sign")
		m.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(sign*rapid.Int64Range(0, 315576000000).Draw(t, "seconds")))
		m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(int32(sign)*nanos().Draw(t, "nanos")))
	case "google.protobuf.Value":
		fillValue(t, m, fields, depth)
	case "google.protobuf.Struct":
		entries := m.Mutable(fields.ByName("fields")).Map()
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			fill(t, entries.Mutable(protoreflect.ValueOfString(rapid.String().Draw(t, "key")).MapKey()).Message(), depth-1)
		}
	case "google.protobuf.ListValue":
		list := m.Mutable(fields.ByName("values")).List()
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			fill(t, list.AppendMutable().Message(), depth-1)
		}
	case "google.protobuf.BoolValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue",
		"google.protobuf.FloatValue", "google.protobuf.Int32Value",
		"google.protobuf.Int64Value", "google.protobuf.StringValue", "google.protobuf.UInt32Value",
		"google.protobuf.UInt64Value":
		m.Set(fields.ByName("value"), scalar(t, fields.ByName("value")))
	default:
		return false
	}
	return true
}

func nanos() *rapid.Generator[int32] {
	return rapid.Custom(func(t *rapid.T) int32 {
		unit := rapid.SampledFrom([]int32{0, 1, 1_000, 1_000_000}).Draw(t, "unit")
		return unit * rapid.Int32Range(0, 999).Draw(t, "count")
	})
}

func fillValue(t *rapid.T, m protoreflect.Message, fields protoreflect.FieldDescriptors, depth int) {
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth <= 0 {
		kind %= 4
	}
	fd := fields.Get(kind)
	m.Clear(fd)
	switch fd.Name() {
	case "null_value":
		m.Set(fd, protoreflect.ValueOfEnum(0))
	case "number_value":
		whole := float64(rapid.Int64Range(-1<<53+1, 1<<53-1).Draw(t, "whole"))
		small := rapid.Float64Range(-1e9, 1e9).Draw(t, "small")
		m.Set(fd, protoreflect.ValueOfFloat64(rapid.SampledFrom([]float64{whole, small, small * 1e-15}).Draw(t, "number")))
	case "struct_value", "list_value":
		fill(t, m.Mutable(fd).Message(), depth-1)
	default:
		m.Set(fd, scalar(t, fd))
	}
}

func scalar(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32Range(-3, 3).Draw(t, "enum")))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint32"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "uint64"))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(rapid.Float32().Draw(t, "float"))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.Float64().Draw(t, "double"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	default:
		words := rapid.SampledFrom([]string{
			"", "yes", "n", "on", "4.10", "0x1F", "1_000", "~", "null", "<<", "=", ".inf",
			"12:30:45", "2026-01-02", "a: b", "- a", "#", "---", "...", "a\n---\nb", " a ", "\u0085", "\u2028", "\ufeff", "\x7f",
			"\t", "😀",
		})
		return protoreflect.ValueOfString(rapid.OneOf(words, rapid.String()).Draw(t, "text"))
	}
}
