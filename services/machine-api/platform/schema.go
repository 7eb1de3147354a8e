package platform

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/object"
)

// form is what a value has to be.
type form int

const (
	text form = iota
	integer
	boolean
	list
	structure
	anything // not checked
)

// schema describes one value. The zero schema is an optional text.
type schema struct {
	form     form
	required bool              // given and, if it is a text, not empty
	oneOf    []string          // of a text; the empty text is as good as none
	pattern  *regexp.Regexp    // of a text that is not empty
	says     string            // pattern in words
	low      float64           // of a whole number
	high     float64           // of a whole number
	longest  int               // of a text in bytes, of a list in items; 0 means no limit
	item     *schema           // of a list
	fields   map[string]schema // of a structure; nil means any texts
	rule     func(*report, at) // what fields demand of each other
}

// at is a place in a spec.
type at struct {
	path string
	v    *structpb.Value
}

// in returns the place of a field.
func (a at) in(name string) at {
	return at{join(a.path, name), a.v.GetStructValue().GetFields()[name]}
}

// given reports whether the place has a value; null and an empty text are none.
func (a at) given() bool {
	switch k := a.v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return false
	case *structpb.Value_StringValue:
		return k.StringValue != ""
	}
	return true
}

func (a at) text() string { return a.v.GetStringValue() }

func (a at) items() []at {
	var out []at
	for i, v := range a.v.GetListValue().GetValues() {
		out = append(out, at{fmt.Sprintf("%s[%d]", a.path, i), v})
	}
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// report collects a verdict.
type report struct{ Verdict }

func (r *report) fault(a at, format string, args ...any) {
	r.Faults = append(r.Faults, object.Faultf(a.path, format, args...))
}

func (r *report) missing(a at, format string, args ...any) {
	r.Missing = append(r.Missing, object.Faultf(a.path, format, args...))
}

func (r *report) warn(a at, format string, args ...any) {
	r.Warnings = append(r.Warnings, a.path+": "+fmt.Sprintf(format, args...))
}

// check reports what is wrong with the value of a place.
func (r *report) check(a at, s schema) {
	if s.required && !a.given() {
		r.missing(a, "must be given")
		return
	}
	if _, null := a.v.GetKind().(*structpb.Value_NullValue); null || a.v.GetKind() == nil {
		return
	}
	switch s.form {
	case text:
		r.text(a, s)
	case integer:
		r.integer(a, s)
	case boolean:
		if _, ok := a.v.GetKind().(*structpb.Value_BoolValue); !ok {
			r.fault(a, "must be true or false, not %s", formOf(a.v))
		}
	case list:
		r.list(a, s)
	case structure:
		r.structure(a, s)
	}
}

func (r *report) text(a at, s schema) {
	k, ok := a.v.GetKind().(*structpb.Value_StringValue)
	switch {
	case !ok:
		r.fault(a, "must be a string, not %s", formOf(a.v))
	case k.StringValue == "":
	case len(s.oneOf) > 0 && !slices.Contains(s.oneOf, k.StringValue):
		r.fault(a, "is %q, must be one of %s", k.StringValue, strings.Join(s.oneOf, ", "))
	case s.pattern != nil && !s.pattern.MatchString(k.StringValue):
		r.fault(a, "is %q, must be %s", k.StringValue, s.says)
	case s.longest > 0 && len(k.StringValue) > s.longest:
		r.fault(a, "has %d characters, at most %d are allowed", len(k.StringValue), s.longest)
	}
}

func (r *report) integer(a at, s schema) {
	k, ok := a.v.GetKind().(*structpb.Value_NumberValue)
	switch {
	case !ok:
		r.fault(a, "must be an integer, not %s", formOf(a.v))
	case k.NumberValue != math.Trunc(k.NumberValue):
		r.fault(a, "is %v, must be an integer", k.NumberValue)
	case k.NumberValue < s.low || k.NumberValue > s.high:
		r.fault(a, "is %.0f, must be from %.0f to %.0f", k.NumberValue, s.low, s.high)
	}
}

func (r *report) list(a at, s schema) {
	k, ok := a.v.GetKind().(*structpb.Value_ListValue)
	if !ok {
		r.fault(a, "must be a list, not %s", formOf(a.v))
		return
	}
	if n := len(k.ListValue.GetValues()); s.longest > 0 && n > s.longest {
		r.fault(a, "has %d items, at most %d are allowed", n, s.longest)
	}
	for _, item := range a.items() {
		r.check(item, *s.item)
	}
	if s.rule != nil {
		s.rule(r, a)
	}
}

// structure reports unknown fields as warnings, as the machine API does: it ignores them.
func (r *report) structure(a at, s schema) {
	k, ok := a.v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		r.fault(a, "must be an object, not %s", formOf(a.v))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(k.StructValue.GetFields())) {
		switch f, known := s.fields[name]; {
		case s.fields == nil:
			r.check(a.in(name), schema{})
		case known:
			r.check(a.in(name), f)
		default:
			r.warn(a.in(name), "unknown field, which is ignored%s", meant(name, s.fields))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.fields)) {
		if _, ok := k.StructValue.GetFields()[name]; !ok {
			r.check(a.in(name), s.fields[name])
		}
	}
	if s.rule != nil {
		s.rule(r, a)
	}
}

// meant returns which known field differs from an unknown one only by capital letters.
func meant(name string, known map[string]schema) string {
	for k := range known {
		if strings.EqualFold(k, name) {
			return fmt.Sprintf("; the field is %q", k)
		}
	}
	return ""
}

func formOf(v *structpb.Value) string {
	switch v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return "a string"
	case *structpb.Value_NumberValue:
		return "a number"
	case *structpb.Value_BoolValue:
		return "true or false"
	case *structpb.Value_ListValue:
		return "a list"
	case *structpb.Value_StructValue:
		return "an object"
	}
	return "null"
}

// number returns the schema of an integer from low to high.
func number(low, high float64) schema { return schema{form: integer, low: low, high: high} }

// int64s is as large as JSON readers keep integers exact.
func int64s() schema { return number(-(1 << 53), 1<<53) }

func yesNo() schema { return schema{form: boolean} }

func oneOf(values ...string) schema { return schema{oneOf: values} }

func listOf(item schema) schema { return schema{form: list, item: &item} }

func fieldsOf(fields map[string]schema) schema { return schema{form: structure, fields: fields} }

func (s schema) must() schema {
	s.required = true
	return s
}

func (s schema) with(rule func(*report, at)) schema {
	s.rule = rule
	return s
}

func (s schema) atMost(n int) schema {
	s.longest = n
	return s
}

func matching(pattern, says string) schema {
	return schema{pattern: regexp.MustCompile(pattern), says: says}
}
