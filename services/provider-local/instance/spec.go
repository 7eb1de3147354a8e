package instance

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/windlass-dev/windlass/kit/placement"
)

// What a provider spec of this provider says it is.
const (
	SpecAPIVersion = "windlass.dev/v1"
	SpecKind       = "LocalMachineProviderSpec"
)

// Spec is what a machine's provider spec asks for.
type Spec struct {
	InstanceType string            `json:"instanceType,omitempty"`
	Region       string            `json:"region,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	Capacity     map[string]string `json:"capacity,omitempty"` // cpu, memory, pods as quantities
	Runtime      string            `json:"runtime,omitempty"`  // process, cri, or empty: that of the provider
	Latency      Latency           `json:"latency"`
	Failure      Failure           `json:"failure"`
}

// ProcessRuntime is the runtime of a machine whose containers are processes.
const ProcessRuntime = "process"

// criRuntime is that of a machine whose containers a container runtime has.
const criRuntime = "cri"

// Latency makes a provider as slow as a real one.
type Latency struct {
	Create time.Duration `json:"create,omitempty"` // from the call to the instance
	Boot   time.Duration `json:"boot,omitempty"`   // from the instance to its agent
	Delete time.Duration `json:"delete,omitempty"` // from the call until the instance is gone
}

// Failure makes a provider as unreliable as a real one.
type Failure struct {
	// "", Transient (the first call fails), Quota (every call fails), Invalid (every call fails for good)
	Create string `json:"create,omitempty"`
	Boot   string `json:"boot,omitempty"` // "", Never (the agent is not started), Crash (it ends as soon as it starts)
}

// FieldError is a wrong field of a provider spec.
type FieldError struct{ Path, Description string }

// Error implements error.
func (e FieldError) Error() string { return e.Path + ": " + e.Description }

// ParseSpec reads a provider spec; runtimes are what it may say that a machine runs containers with. The error joins
// one FieldError for each wrong field, with its path below providerSpec.value.
func ParseSpec(s *structpb.Struct, runtimes []string) (Spec, error) {
	r := reader{}
	r.object("", s, map[string]func(string, *structpb.Value){
		"apiVersion":        r.oneOf(nil, SpecAPIVersion),
		"kind":              r.oneOf(nil, SpecKind),
		"metadata":          func(string, *structpb.Value) {},
		"instanceType":      r.text(&r.spec.InstanceType),
		"region":            r.text(&r.spec.Region),
		"zone":              r.text(&r.spec.Zone),
		"capacity":          r.quantities,
		"runtime":           r.oneOf(&r.spec.Runtime, runtimes...),
		"latency":           r.latency,
		"failure":           r.failure,
		"userDataSecret":    func(string, *structpb.Value) {}, // what documents of other platforms carry along
		"credentialsSecret": func(string, *structpb.Value) {},
	})
	for _, required := range []string{"apiVersion", "kind"} {
		if s.GetFields()[required] == nil {
			r.bad(required, "must be given: "+SpecAPIVersion+" "+SpecKind)
		}
	}
	return r.spec, errors.Join(r.errs...)
}

// reader collects a spec and everything that is wrong with it.
type reader struct {
	spec Spec
	errs []error
}

func (r *reader) bad(path, format string, args ...any) {
	r.errs = append(r.errs, FieldError{path, fmt.Sprintf(format, args...)})
}

func (r *reader) nested(path string, v *structpb.Value, known map[string]func(string, *structpb.Value)) {
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		r.bad(path, "must be an object")
		return
	}
	r.object(path, s.StructValue, known)
}

func (r *reader) object(path string, s *structpb.Struct, known map[string]func(string, *structpb.Value)) {
	for name, v := range s.GetFields() {
		p := name
		if path != "" {
			p = path + "." + name
		}
		read, ok := known[name]
		if !ok {
			r.bad(p, "unknown field")
			continue
		}
		read(p, v)
	}
}

func (r *reader) text(dst *string) func(string, *structpb.Value) {
	return func(path string, v *structpb.Value) {
		s, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			r.bad(path, "must be a string")
			return
		}
		*dst = s.StringValue
	}
}

func (r *reader) oneOf(dst *string, allowed ...string) func(string, *structpb.Value) {
	return func(path string, v *structpb.Value) {
		for _, a := range allowed {
			if s, ok := v.GetKind().(*structpb.Value_StringValue); ok && s.StringValue == a {
				if dst != nil {
					*dst = a
				}
				return
			}
		}
		r.bad(path, "must be one of %q", allowed)
	}
}

func (r *reader) duration(dst *time.Duration) func(string, *structpb.Value) {
	return func(path string, v *structpb.Value) {
		d, err := time.ParseDuration(v.GetStringValue())
		if err != nil || d < 0 {
			r.bad(path, "must be a length of time such as 500ms or 10s")
			return
		}
		*dst = d
	}
}

func (r *reader) latency(path string, v *structpb.Value) {
	r.nested(path, v, map[string]func(string, *structpb.Value){
		"create": r.duration(&r.spec.Latency.Create),
		"boot":   r.duration(&r.spec.Latency.Boot),
		"delete": r.duration(&r.spec.Latency.Delete),
	})
}

func (r *reader) failure(path string, v *structpb.Value) {
	r.nested(path, v, map[string]func(string, *structpb.Value){
		"create": r.oneOf(&r.spec.Failure.Create, "", "Transient", "Quota", "Invalid"),
		"boot":   r.oneOf(&r.spec.Failure.Boot, "", "Never", "Crash"),
	})
}

func (r *reader) quantities(path string, v *structpb.Value) {
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		r.bad(path, "must be an object of quantities")
		return
	}
	r.spec.Capacity = map[string]string{}
	for name, q := range s.StructValue.GetFields() {
		text := ""
		switch q := q.GetKind().(type) {
		case *structpb.Value_StringValue:
			text = q.StringValue
		case *structpb.Value_NumberValue:
			text = strconv.FormatFloat(q.NumberValue, 'f', -1, 64)
		}
		if n, err := placement.ParseQuantity(text); err != nil || n.Sign() < 0 {
			r.bad(path+"."+name, "must be a quantity of zero or more: a number or a string such as 500m or 2Gi")
			continue
		}
		r.spec.Capacity[name] = text
	}
}
