package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Ranges of the well-known types, from their definitions.
const (
	minSeconds  = -62135596800 // 0001-01-01T00:00:00Z
	maxSeconds  = 253402300799 // 9999-12-31T23:59:59Z
	maxDuration = 315576000000 // seconds, about 10,000 years
	maxWhole    = 1 << 53      // from here on a double cannot represent every integer
)

// Numbers of the fields of google.protobuf.Value.
const (
	valueNull   = 1
	valueNumber = 2
	valueString = 3
	valueBool   = 4
	valueStruct = 5
	valueList   = 6
)

const wellKnownPrefix = "google.protobuf."

// wellKnownName returns the name of a type of package google.protobuf, else "".
func wellKnownName(m protoreflect.Message) string {
	name := string(m.Descriptor().FullName())
	if !strings.HasPrefix(name, wellKnownPrefix) {
		return ""
	}
	return name[len(wellKnownPrefix):]
}

// wellKnown reads a value into m if m is of a type that has a JSON form of its own.
func (d decoder) wellKnown(m protoreflect.Message) bool {
	switch wellKnownName(m) {
	case "Timestamp":
		d.timestamp(m)
	case "Duration":
		d.duration(m)
	case "Struct":
		d.structure(m)
	case "ListValue":
		d.listValue(m)
	case "Value":
		d.free(m)
	case "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "StringValue", "UInt32Value",
		"UInt64Value":
		fd := m.Descriptor().Fields().ByNumber(1)
		if v, ok := d.value(fd); ok {
			m.Set(fd, v)
		}
	case "Any", "FieldMask":
		d.foreign(m)
	default:
		return false
	}
	return true
}

// foreign leaves a type that no resource uses to protojson.
func (d decoder) foreign(m protoreflect.Message) {
	d.next()
	start := d.pos
	d.skip()
	if d.failed {
		return
	}
	options := protojson.UnmarshalOptions{RecursionLimit: 3 * maxNesting}
	if err := options.Unmarshal([]byte(d.s[start:d.pos]), m.Interface()); err != nil {
		d.note("must be a " + string(m.Descriptor().FullName()) + ": " + protojsonText(err))
	}
}

// protojsonText takes the changing blank and the name of the library off an error.
func protojsonText(err error) string {
	return strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0", " "))
}

func setSecondsNanos(m protoreflect.Message, seconds int64, nanos int32) {
	fields := m.Descriptor().Fields()
	m.Set(fields.ByNumber(1), protoreflect.ValueOfInt64(seconds))
	m.Set(fields.ByNumber(2), protoreflect.ValueOfInt32(nanos))
}

func secondsNanos(m protoreflect.Message) (int64, int64) {
	fields := m.Descriptor().Fields()
	return m.Get(fields.ByNumber(1)).Int(), m.Get(fields.ByNumber(2)).Int()
}

func (d decoder) timestamp(m protoreflect.Message) {
	start := d.pos
	if d.next() == '"' {
		if t, ok := parseTime(d.text()); ok {
			setSecondsNanos(m, t.Unix(), int32(t.Nanosecond()))
			return
		}
	}
	d.again(start, `a time such as "2006-01-02T15:04:05Z"`)
}

func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || strings.Contains(s, ",") || t.Unix() < minSeconds || t.Unix() > maxSeconds {
		return time.Time{}, false
	}
	if _, fraction, ok := strings.Cut(s, "."); ok && strings.IndexAny(fraction, "Z+-") > 9 {
		return time.Time{}, false
	}
	return t, true
}

func (d decoder) duration(m protoreflect.Message) {
	start := d.pos
	if d.next() == '"' {
		if seconds, nanos, ok := parseDuration(d.text()); ok {
			setSecondsNanos(m, seconds, nanos)
			return
		}
	}
	d.again(start, `a length of time in seconds such as "1.5s"`)
}

func parseDuration(s string) (int64, int32, bool) {
	s, ok := strings.CutSuffix(s, "s")
	if n := numberLength(s); !ok || n == 0 || n != len(s) || strings.ContainsAny(s, "eE") {
		return 0, 0, false
	}
	sign := int64(1)
	if s[0] == '-' {
		sign, s = -1, s[1:]
	}
	before, after, _ := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(before, 10, 64)
	if err != nil || seconds > maxDuration || len(after) > 9 {
		return 0, 0, false
	}
	nanos, err := strconv.ParseInt((after + "000000000")[:9], 10, 32)
	return sign * seconds, int32(sign * nanos), err == nil
}

// structure reads a google.protobuf.Struct.
func (d decoder) structure(m protoreflect.Message) {
	if d.next() != '{' {
		d.mismatch("an object")
		return
	}
	if !d.enter() {
		return
	}
	entries := m.Mutable(m.Descriptor().Fields().ByNumber(1)).Map()
	for first := true; ; first = false {
		name, more := d.member(first)
		if !more {
			return
		}
		outer := len(d.path)
		d.path = appendKey(d.path, name)
		d.entryOfStruct(entries, name)
		d.path = d.path[:outer]
	}
}

// entryOfStruct reads the value of a field of a google.protobuf.Struct.
func (d decoder) entryOfStruct(entries protoreflect.Map, name string) {
	key := protoreflect.ValueOfString(strings.Clone(name)).MapKey()
	if entries.Has(key) {
		d.note("is given twice")
		d.skip()
		return
	}
	d.free(entries.Mutable(key).Message())
}

// listValue reads a google.protobuf.ListValue.
func (d decoder) listValue(m protoreflect.Message) {
	if d.next() != '[' {
		d.mismatch("a list")
		return
	}
	if !d.enter() {
		return
	}
	list := m.Mutable(m.Descriptor().Fields().ByNumber(1)).List()
	outer := len(d.path)
	for i := 0; d.another(i == 0, ']'); i++ {
		d.path = appendIndex(d.path, i)
		d.free(list.AppendMutable().Message())
		d.path = d.path[:outer]
	}
}

// free reads a google.protobuf.Value: anything that JSON can say, except numbers that a double cannot hold.
func (d decoder) free(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	switch c := d.next(); {
	case c == '{':
		d.structure(m.Mutable(fields.ByNumber(valueStruct)).Message())
	case c == '[':
		d.listValue(m.Mutable(fields.ByNumber(valueList)).Message())
	case c == '"':
		m.Set(fields.ByNumber(valueString), protoreflect.ValueOfString(strings.Clone(d.text())))
	case c == '-' || '0' <= c && c <= '9':
		literal := d.number()
		f, err := strconv.ParseFloat(literal, 64)
		if err != nil || math.Abs(f) >= maxWhole {
			d.note("must be a number below 2^53, not " + excerpt(literal) + "; quote it to keep its digits")
			return
		}
		m.Set(fields.ByNumber(valueNumber), protoreflect.ValueOfFloat64(f))
	default:
		d.freeWord(m, fields)
	}
}

func (d decoder) freeWord(m protoreflect.Message, fields protoreflect.FieldDescriptors) {
	if d.next() == 0 {
		d.fail("a value is missing")
		return
	}
	switch w := d.word(); w {
	case "true", "false":
		m.Set(fields.ByNumber(valueBool), protoreflect.ValueOfBool(w == "true"))
	case "null":
		m.Set(fields.ByNumber(valueNull), protoreflect.ValueOfEnum(0))
	}
}

// wellKnown writes m if it is of a type that has a JSON form of its own.
func (e *encoder) wellKnown(m protoreflect.Message) (bool, error) {
	switch wellKnownName(m) {
	case "Timestamp":
		return true, e.timestamp(m)
	case "Duration":
		return true, e.duration(m)
	case "Struct":
		fd := m.Descriptor().Fields().ByNumber(1)
		return true, e.mapping(fd, m.Get(fd).Map())
	case "ListValue":
		fd := m.Descriptor().Fields().ByNumber(1)
		return true, e.list(fd, m.Get(fd).List())
	case "Value":
		return true, e.free(m)
	case "BoolValue", "BytesValue", "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "StringValue", "UInt32Value",
		"UInt64Value":
		fd := m.Descriptor().Fields().ByNumber(1)
		return true, e.single(fd, m.Get(fd))
	case "Any", "FieldMask":
		return true, e.foreign(m)
	}
	return false, nil
}

func (e *encoder) foreign(m protoreflect.Message) error {
	text, err := protojson.Marshal(m.Interface())
	if err != nil {
		return fmt.Errorf("%s: %s", m.Descriptor().FullName(), protojsonText(err))
	}
	out := bytes.NewBuffer(e.out)
	if err := json.Compact(out, text); err != nil {
		return fmt.Errorf("%s: %w", m.Descriptor().FullName(), err)
	}
	e.out = out.Bytes()
	return nil
}

func (e *encoder) timestamp(m protoreflect.Message) error {
	seconds, nanos := secondsNanos(m)
	if seconds < minSeconds || seconds > maxSeconds || nanos < 0 || nanos > 999_999_999 {
		return fmt.Errorf("time of %d seconds and %d nanoseconds is out of range", seconds, nanos)
	}
	e.out = append(e.out, '"')
	e.out = time.Unix(seconds, 0).UTC().AppendFormat(e.out, "2006-01-02T15:04:05")
	e.fraction(nanos)
	e.out = append(e.out, `Z"`...)
	return nil
}

func (e *encoder) duration(m protoreflect.Message) error {
	seconds, nanos := secondsNanos(m)
	if seconds < -maxDuration || seconds > maxDuration || nanos < -999_999_999 || nanos > 999_999_999 ||
		seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return fmt.Errorf("length of time of %d seconds and %d nanoseconds is out of range", seconds, nanos)
	}
	e.out = append(e.out, '"')
	if seconds < 0 || nanos < 0 {
		e.out = append(e.out, '-')
		seconds, nanos = -seconds, -nanos
	}
	e.out = strconv.AppendInt(e.out, seconds, 10)
	e.fraction(nanos)
	e.out = append(e.out, `s"`...)
	return nil
}

// fraction writes nanoseconds as 0, 3, 6 or 9 digits behind a point.
func (e *encoder) fraction(nanos int64) {
	switch {
	case nanos == 0:
	case nanos%1_000_000 == 0:
		e.out = fmt.Appendf(e.out, ".%03d", nanos/1_000_000)
	case nanos%1_000 == 0:
		e.out = fmt.Appendf(e.out, ".%06d", nanos/1_000)
	default:
		e.out = fmt.Appendf(e.out, ".%09d", nanos)
	}
}

// free writes a google.protobuf.Value.
func (e *encoder) free(m protoreflect.Message) error {
	fd := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	if fd == nil {
		return fmt.Errorf("a google.protobuf.Value is empty")
	}
	v := m.Get(fd)
	if fd.Number() == valueNumber {
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("a google.protobuf.Value cannot be %v", f)
		}
	}
	return e.single(fd, v)
}
