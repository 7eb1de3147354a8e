package manifest

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Decode fills m, which it empties first, with a JSON document: proto3 JSON, read strictly. Any failure is an *Errors
// that lists all problems; m is then of no use. Refused are, beside wrong types: fields that m does not have (names as
// in the proto file included), keys given twice, null in lists and in maps, more than 30 levels of nesting,
// whole numbers of 2^53 and more in free form, invalid UTF-8, and anything behind the document. Null means absent.
func Decode(json []byte, m proto.Message) error { return DecodeUpTo(json, m, maxDocument) }

// DecodeUpTo is Decode for a document of up to most bytes.
func DecodeUpTo(json []byte, m proto.Message, most int) error {
	proto.Reset(m)
	if len(json) > most {
		return &Errors{
			Problems: []Problem{{Message: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(json), most)}},
		}
	}
	d := decoder{newReader(json)}
	d.message(m.ProtoReflect())
	d.end()
	return d.err()
}

// decoder fills messages from what its reader reads. Each method reads exactly one value.
type decoder struct{ *reader }

func (d decoder) message(m protoreflect.Message) {
	if d.wellKnown(m) {
		return
	}
	if d.next() != '{' {
		d.mismatch("an object")
		return
	}
	if !d.enter() {
		return
	}
	fields := m.Descriptor().Fields()
	var seen fieldSet
	for first := true; ; first = false {
		key, more := d.member(first)
		if !more {
			return
		}
		outer := len(d.path)
		d.path = appendKey(d.path, key)
		fd := fields.ByJSONName(key)
		switch {
		case fd == nil || isInline(fd):
			d.undeclared(m, key)
		case !seen.add(fd.Index()):
			d.note("is given twice")
			d.skip()
		case d.null():
		case d.excluded(m, fd):
			d.skip()
		default:
			d.field(m, fd)
		}
		d.path = d.path[:outer]
	}
}

// undeclared reads a field that the message does not declare: it belongs to the inline field of the message, if that
// has one.
func (d decoder) undeclared(m protoreflect.Message, key string) {
	fd := InlineField(m.Descriptor())
	if fd == nil {
		d.note(unknownField)
		d.skip()
		return
	}
	content := m.Mutable(fd).Message()
	d.entryOfStruct(content.Mutable(content.Descriptor().Fields().ByNumber(1)).Map(), key)
}

// excluded reports, and notes, that another field of fd's union is set.
func (d decoder) excluded(m protoreflect.Message, fd protoreflect.FieldDescriptor) bool {
	od := fd.ContainingOneof()
	if od == nil || od.IsSynthetic() {
		return false
	}
	other := m.WhichOneof(od)
	if other == nil {
		return false
	}
	d.note("cannot be set together with " + other.JSONName())
	return true
}

func (d decoder) field(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsMap():
		d.mapping(m, fd)
	case fd.IsList():
		d.list(m, fd)
	case fd.Message() != nil:
		d.message(m.Mutable(fd).Message())
	default:
		if v, ok := d.value(fd); ok {
			m.Set(fd, v)
		}
	}
}

func (d decoder) list(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	if d.next() != '[' {
		d.mismatch("a list")
		return
	}
	if !d.enter() {
		return
	}
	list := m.Mutable(fd).List()
	outer := len(d.path)
	for i := 0; d.another(i == 0, ']'); i++ {
		d.path = appendIndex(d.path, i)
		if d.null() {
			d.note("must not be null")
		} else if fd.Message() != nil {
			d.message(list.AppendMutable().Message())
		} else if v, ok := d.value(fd); ok {
			list.Append(v)
		}
		d.path = d.path[:outer]
	}
	if !list.IsValid() || list.Len() == 0 {
		if mark := emptyMark(fd); mark != nil {
			m.Set(mark, protoreflect.ValueOfBool(true))
		}
	}
}

// emptyMark returns the field of a message that says that one of its lists was given and is empty; nil if it has none.
func emptyMark(list protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	fields := list.ContainingMessage().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); markedList(fd) == list {
			return fd
		}
	}
	return nil
}

// markedList returns the list that a bool marks as empty; nil if the field is no such mark.
func markedList(fd protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if fd.Kind() != protoreflect.BoolKind || !proto.HasExtension(fd.Options(), metav1.E_EmptyList) {
		return nil
	}
	name, _ := proto.GetExtension(fd.Options(), metav1.E_EmptyList).(string)
	return fd.ContainingMessage().Fields().ByJSONName(name)
}

func (d decoder) mapping(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	if d.next() != '{' {
		d.mismatch("an object")
		return
	}
	if !d.enter() {
		return
	}
	entries := m.Mutable(fd).Map()
	for first := true; ; first = false {
		name, more := d.member(first)
		if !more {
			return
		}
		outer := len(d.path)
		d.path = appendKey(d.path, name)
		d.entry(entries, fd, name)
		d.path = d.path[:outer]
	}
}

func (d decoder) entry(entries protoreflect.Map, fd protoreflect.FieldDescriptor, name string) {
	key, ok := mapKey(fd.MapKey().Kind(), name)
	switch {
	case !ok:
		d.note("the key must be a " + fd.MapKey().Kind().String())
		d.skip()
	case entries.Has(key):
		d.note("is given twice")
		d.skip()
	case d.null():
		d.note("must not be null")
	case fd.MapValue().Message() != nil:
		d.message(entries.Mutable(key).Message())
	default:
		if v, ok := d.value(fd.MapValue()); ok {
			entries.Set(key, v)
		}
	}
}

func mapKey(kind protoreflect.Kind, name string) (protoreflect.MapKey, bool) {
	switch kind {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Clone(name)).MapKey(), true
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(name == "true").MapKey(), name == "true" || name == "false"
	default:
		v, ok := whole(kind, name)
		if !ok {
			return protoreflect.MapKey{}, false
		}
		return v.MapKey(), true
	}
}

// value reads a scalar of fd's type; it is false if that was not there, which is then noted.
func (d decoder) value(fd protoreflect.FieldDescriptor) (protoreflect.Value, bool) {
	switch kind := fd.Kind(); kind {
	case protoreflect.StringKind:
		if d.next() == '"' {
			return protoreflect.ValueOfString(strings.Clone(d.text())), true
		}
		d.mismatch("text")
		return protoreflect.Value{}, false
	case protoreflect.BoolKind:
		if c := d.next(); c == 't' || c == 'f' {
			return protoreflect.ValueOfBool(d.word() == "true"), true
		}
		d.mismatch("true or false")
		return protoreflect.Value{}, false
	case protoreflect.EnumKind:
		return d.enum(fd.Enum())
	case protoreflect.BytesKind:
		return d.bytes()
	default:
		return d.numeric(kind)
	}
}

func (d decoder) enum(ed protoreflect.EnumDescriptor) (protoreflect.Value, bool) {
	start := d.pos
	switch c := d.next(); {
	case c == '"':
		if vd := ed.Values().ByName(protoreflect.Name(d.text())); vd != nil {
			return protoreflect.ValueOfEnum(vd.Number()), true
		}
	case c == '-' || '0' <= c && c <= '9':
		if v, ok := whole(protoreflect.Int32Kind, d.number()); ok {
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(v.Int())), true
		}
	}
	d.again(start, "the name of a value of "+string(ed.FullName()))
	return protoreflect.Value{}, false
}

func (d decoder) bytes() (protoreflect.Value, bool) {
	start := d.pos
	if d.next() == '"' {
		s := d.text()
		encoding := base64.RawStdEncoding
		if strings.ContainsAny(s, "-_") {
			encoding = base64.RawURLEncoding
		}
		if len(s)%4 == 0 {
			encoding = encoding.WithPadding(base64.StdPadding)
		}
		if b, err := encoding.DecodeString(s); err == nil {
			return protoreflect.ValueOfBytes(b), true
		}
	}
	d.again(start, "text in base64")
	return protoreflect.Value{}, false
}

// numeric reads a number or a number in quotes.
func (d decoder) numeric(kind protoreflect.Kind) (protoreflect.Value, bool) {
	start := d.pos
	literal, quoted := "", false
	switch c := d.next(); {
	case c == '"':
		literal, quoted = d.text(), true
	case c == '-' || '0' <= c && c <= '9':
		literal = d.number()
	}
	var v protoreflect.Value
	ok := false
	switch kind {
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		v, ok = float(kind, literal, quoted)
	default:
		v, ok = whole(kind, literal)
	}
	if !ok {
		d.again(start, numberWanted(kind))
	}
	return v, ok
}

// again goes back to start, where a value was read that is not what was wanted.
func (d decoder) again(start int, want string) {
	if d.failed {
		return
	}
	d.pos = start
	d.mismatch(want)
}

func numberWanted(kind protoreflect.Kind) string {
	switch kind {
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number in the range of a " + kind.String()
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return fmt.Sprintf("a whole number from %d to %d", math.MinInt32, math.MaxInt32)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return fmt.Sprintf("a whole number from 0 to %d", uint32(math.MaxUint32))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	default:
		return fmt.Sprintf("a whole number from %d to %d", math.MinInt64, math.MaxInt64)
	}
}

// float reads the decimal of a float or double; NaN and the infinities have names, in quotes.
func float(kind protoreflect.Kind, literal string, quoted bool) (protoreflect.Value, bool) {
	size := 64
	if kind == protoreflect.FloatKind {
		size = 32
	}
	var f float64
	switch {
	case quoted && literal == "NaN":
		f = math.NaN()
	case quoted && literal == "Infinity":
		f = math.Inf(1)
	case quoted && literal == "-Infinity":
		f = math.Inf(-1)
	default:
		n := numberLength(literal)
		if n == 0 || n != len(literal) {
			return protoreflect.Value{}, false
		}
		var err error
		if f, err = strconv.ParseFloat(literal, size); err != nil {
			return protoreflect.Value{}, false
		}
	}
	if size == 32 {
		return protoreflect.ValueOfFloat32(float32(f)), true
	}
	return protoreflect.ValueOfFloat64(f), true
}

// whole reads an integer of a kind, however it is written: 1, 1.0, 10e-1.
func whole(kind protoreflect.Kind, literal string) (protoreflect.Value, bool) {
	if n := numberLength(literal); n == 0 || n != len(literal) {
		return protoreflect.Value{}, false
	}
	if strings.ContainsAny(literal, ".eE") {
		var ok bool
		if literal, ok = expand(literal); !ok {
			return protoreflect.Value{}, false
		}
	}
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n, err := strconv.ParseInt(literal, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), err == nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := strconv.ParseUint(literal, 10, 32)
		return protoreflect.ValueOfUint32(uint32(n)), err == nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n, err := strconv.ParseUint(literal, 10, 64)
		return protoreflect.ValueOfUint64(n), err == nil
	default:
		n, err := strconv.ParseInt(literal, 10, 64)
		return protoreflect.ValueOfInt64(n), err == nil
	}
}

// expand writes a JSON number with a fraction or an exponent as a plain integer; it is false if it is not whole or
// has more digits than any integer type.
func expand(literal string) (string, bool) {
	const most = 20 // digits of the largest uint64
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	shift := 0
	if exponent != "" {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil {
			return "", false
		}
	}
	sign := ""
	if mantissa[0] == '-' {
		sign, mantissa = "-", mantissa[1:]
	}
	before, after, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimRight(strings.TrimLeft(before+after, "0"), "0")
	if digits == "" {
		return "0", true
	}
	zeros := len(strings.TrimLeft(before+after, "0")) - len(digits) - len(after) // those behind digits, before the shift
	if shift > math.MaxInt32 || shift < math.MinInt32 {
		return "", false
	}
	zeros += shift
	if zeros < 0 || len(digits)+zeros > most {
		return "", false
	}
	return sign + digits + strings.Repeat("0", zeros), true
}

// fieldSet remembers which fields of a message were given.
type fieldSet struct {
	low  uint64
	high map[int]bool // fields from the 65th; few messages have so many
}

// add reports whether field i is new.
func (s *fieldSet) add(i int) bool {
	if i < 64 {
		old := s.low
		s.low |= 1 << i
		return s.low != old
	}
	if s.high == nil {
		s.high = make(map[int]bool)
	}
	fresh := !s.high[i]
	s.high[i] = true
	return fresh
}
