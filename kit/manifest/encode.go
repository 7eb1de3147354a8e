package manifest

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var errUTF8 = errors.New("not valid UTF-8")

// Encode returns m as compact JSON: the same bytes for the same message, fields in the order of the proto file, map
// keys sorted, nothing that is empty; optional scalars that are set are kept, zeros too. It fails on what JSON cannot
// say: an empty google.protobuf.Value, a time out of range, text that is not UTF-8. A nil m is "{}".
func Encode(m proto.Message) ([]byte, error) {
	if m == nil {
		return []byte("{}"), nil
	}
	e := encoder{out: make([]byte, 0, 4096)}
	if err := e.message(m.ProtoReflect()); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return e.out, nil
}

// encoder appends JSON to out.
type encoder struct{ out []byte }

func (e *encoder) message(m protoreflect.Message) error {
	if done, err := e.wellKnown(m); done {
		return err
	}
	e.out = append(e.out, '{')
	fields := m.Descriptor().Fields()
	first := true
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		if isInline(fd) {
			content := m.Get(fd).Message()
			entries := content.Descriptor().Fields().ByNumber(1)
			var err error
			if first, err = e.entries(entries, content.Get(entries).Map(), first); err != nil {
				return err
			}
			continue
		}
		if list := markedList(fd); list != nil {
			if m.Has(list) { // the mark says nothing of a list that is not empty
				continue
			}
			fd = list
		}
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		e.out = append(e.out, '"')
		e.out = append(e.out, fd.JSONName()...)
		e.out = append(e.out, `":`...)
		if err := e.field(fd, m.Get(fd)); err != nil {
			return fmt.Errorf("%s: %w", fd.JSONName(), err)
		}
	}
	e.out = append(e.out, '}')
	return nil
}

func (e *encoder) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch {
	case fd.IsMap():
		return e.mapping(fd, v.Map())
	case fd.IsList():
		return e.list(fd, v.List())
	default:
		return e.single(fd, v)
	}
}

func (e *encoder) list(fd protoreflect.FieldDescriptor, list protoreflect.List) error {
	e.out = append(e.out, '[')
	for i := range list.Len() {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		if err := e.single(fd, list.Get(i)); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	e.out = append(e.out, ']')
	return nil
}

func (e *encoder) mapping(fd protoreflect.FieldDescriptor, entries protoreflect.Map) error {
	e.out = append(e.out, '{')
	if _, err := e.entries(fd, entries, true); err != nil {
		return err
	}
	e.out = append(e.out, '}')
	return nil
}

// entries appends the members of a map. first says whether the next member is the first of its JSON object, and is
// returned for the one after them.
func (e *encoder) entries(fd protoreflect.FieldDescriptor, entries protoreflect.Map, first bool) (bool, error) {
	keys := make([]protoreflect.MapKey, 0, entries.Len())
	entries.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	sortKeys(fd.MapKey().Kind(), keys)
	for _, k := range keys {
		if !first {
			e.out = append(e.out, ',')
		}
		first = false
		var err error
		if e.out, err = appendString(e.out, k.String()); err != nil {
			return first, fmt.Errorf("key %q: %w", k.String(), err)
		}
		e.out = append(e.out, ':')
		if err := e.single(fd.MapValue(), entries.Get(k)); err != nil {
			return first, fmt.Errorf("[%q]: %w", k.String(), err)
		}
	}
	return first, nil
}

// sortKeys orders map keys as values of their type: numbers by size, false before true.
func sortKeys(kind protoreflect.Kind, keys []protoreflect.MapKey) {
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int {
		switch kind {
		case protoreflect.StringKind, protoreflect.BoolKind: // the alphabet has false before true
			return strings.Compare(a.String(), b.String())
		case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
			return cmp.Compare(a.Uint(), b.Uint())
		default:
			return cmp.Compare(a.Int(), b.Int())
		}
	})
}

func (e *encoder) single(fd protoreflect.FieldDescriptor, v protoreflect.Value) error {
	var err error
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return e.message(v.Message())
	case protoreflect.StringKind:
		e.out, err = appendString(e.out, v.String())
	case protoreflect.BoolKind:
		e.out = strconv.AppendBool(e.out, v.Bool())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		e.out = strconv.AppendInt(e.out, v.Int(), 10)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		e.out = strconv.AppendUint(e.out, v.Uint(), 10)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		e.out = append(strconv.AppendInt(append(e.out, '"'), v.Int(), 10), '"')
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		e.out = append(strconv.AppendUint(append(e.out, '"'), v.Uint(), 10), '"')
	case protoreflect.FloatKind:
		e.out = appendFloat(e.out, v.Float(), 32)
	case protoreflect.DoubleKind:
		e.out = appendFloat(e.out, v.Float(), 64)
	case protoreflect.BytesKind:
		e.out = append(base64.StdEncoding.AppendEncode(append(e.out, '"'), v.Bytes()), '"')
	case protoreflect.EnumKind:
		e.enum(fd.Enum(), v.Enum())
	}
	return err
}

func (e *encoder) enum(ed protoreflect.EnumDescriptor, n protoreflect.EnumNumber) {
	switch vd := ed.Values().ByNumber(n); {
	case ed.FullName() == wellKnownPrefix+"NullValue":
		e.out = append(e.out, "null"...)
	case vd == nil:
		e.out = strconv.AppendInt(e.out, int64(n), 10)
	default:
		e.out = append(append(append(e.out, '"'), vd.Name()...), '"')
	}
}

// appendString escapes what JSON requires and nothing else.
func appendString(out []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return out, errUTF8
	}
	const hex = "0123456789abcdef"
	out = append(out, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\b':
			out = append(out, `\b`...)
		case '\f':
			out = append(out, `\f`...)
		case '\n':
			out = append(out, `\n`...)
		case '\r':
			out = append(out, `\r`...)
		case '\t':
			out = append(out, `\t`...)
		default:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(out, s[start:]...), '"'), nil
}

// appendFloat writes the shortest decimal that reads back as f, the way JavaScript does.
func appendFloat(out []byte, f float64, size int) []byte {
	switch {
	case math.IsNaN(f):
		return append(out, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(out, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(out, `"-Infinity"`...)
	}
	small, large := 1e-6, 1e21
	if size == 32 {
		small, large = float64(float32(small)), float64(float32(large))
	}
	if abs := math.Abs(f); abs == 0 || abs >= small && abs < large {
		return strconv.AppendFloat(out, f, 'f', -1, size)
	}
	out = strconv.AppendFloat(out, f, 'e', -1, size)
	if n := len(out); n >= 4 && string(out[n-4:n-1]) == "e-0" { // JavaScript has no zero in e-07
		out[n-2] = out[n-1]
		out = out[:n-1]
	}
	return out
}
