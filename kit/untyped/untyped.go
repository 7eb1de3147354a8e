// Package untyped reads the fields of messages that are kept as google.protobuf.Struct, and notes what is wrong with
// them by the path of the field. A field that is null is absent, as in Kubernetes. It does no I/O.
package untyped

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/object"
)

// Reader reads fields. The zero Reader has found no fault.
type Reader struct{ Faults []object.Fault }

// Fault notes what is wrong with the field at a path.
func (r *Reader) Fault(at, format string, args ...any) {
	r.Faults = append(r.Faults, object.Faultf(at, format, args...))
}

// Join returns the path of a field below another; that one may be empty.
func Join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// Only refuses the fields of s that are not among names.
func (r *Reader) Only(at string, s *structpb.Struct, names ...string) {
	for _, k := range slices.Sorted(maps.Keys(s.GetFields())) {
		if !slices.Contains(names, k) {
			r.Fault(Join(at, k), "is not in force yet, or unknown")
		}
	}
}

// field returns a field that is there.
func field(s *structpb.Struct, name string) (*structpb.Value, bool) {
	v, ok := s.GetFields()[name]
	if _, null := v.GetKind().(*structpb.Value_NullValue); null {
		return nil, false
	}
	return v, ok
}

// Text returns a string; empty if there is none.
func (r *Reader) Text(at string, s *structpb.Struct, name string) string {
	v, ok := field(s, name)
	if !ok {
		return ""
	}
	if _, ok := v.GetKind().(*structpb.Value_StringValue); !ok {
		r.Fault(Join(at, name), "must be a string")
	}
	return v.GetStringValue()
}

// Flag returns a boolean; false if there is none.
func (r *Reader) Flag(at string, s *structpb.Struct, name string) bool {
	v, ok := field(s, name)
	if !ok {
		return false
	}
	if _, ok := v.GetKind().(*structpb.Value_BoolValue); !ok {
		r.Fault(Join(at, name), "must be true or false")
	}
	return v.GetBoolValue()
}

// Number returns a whole number of at least least and at most 2^31-1; false if there is none, or a wrong one.
func (r *Reader) Number(at string, s *structpb.Struct, name string, least int) (int, bool) {
	v, ok := field(s, name)
	if !ok {
		return 0, false
	}
	n := v.GetNumberValue()
	if _, ok := v.GetKind().(*structpb.Value_NumberValue); !ok || n != math.Trunc(n) || n > math.MaxInt32 {
		r.Fault(Join(at, name), "must be a whole number of at most %d", math.MaxInt32)
		return 0, false
	}
	if n < float64(least) {
		r.Fault(Join(at, name), "must be greater than or equal to %d", least)
		return 0, false
	}
	return int(n), true
}

// Object returns an object; nil if there is none.
func (r *Reader) Object(at string, s *structpb.Struct, name string) *structpb.Struct {
	v, ok := field(s, name)
	if ok && v.GetStructValue() == nil {
		r.Fault(Join(at, name), "must be an object")
	}
	return v.GetStructValue()
}

// Objects yields the objects of a list by their index. Elements that are none are noted and passed over.
func (r *Reader) Objects(at string, s *structpb.Struct, name string) iter.Seq2[int, *structpb.Struct] {
	return func(yield func(int, *structpb.Struct) bool) {
		for i, e := range r.list(at, s, name) {
			if e.GetStructValue() == nil {
				r.Fault(fmt.Sprintf("%s[%d]", Join(at, name), i), "must be an object")
			} else if !yield(i, e.GetStructValue()) {
				return
			}
		}
	}
}

// Texts returns a list of strings, which no system call would cut off.
func (r *Reader) Texts(at string, s *structpb.Struct, name string) (out []string) {
	for i, e := range r.list(at, s, name) {
		at := fmt.Sprintf("%s[%d]", Join(at, name), i)
		if _, ok := e.GetKind().(*structpb.Value_StringValue); !ok {
			r.Fault(at, "must be a string")
		}
		if strings.ContainsRune(e.GetStringValue(), 0) {
			r.Fault(at, "must not contain a zero byte")
		}
		out = append(out, e.GetStringValue())
	}
	return out
}

func (r *Reader) list(at string, s *structpb.Struct, name string) []*structpb.Value {
	v, ok := field(s, name)
	if ok && v.GetListValue() == nil {
		r.Fault(Join(at, name), "must be a list")
	}
	return v.GetListValue().GetValues()
}
