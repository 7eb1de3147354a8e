package fleet

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/services/provider-docker/engine"
)

// What a machine's provider spec of this provider says it is.
const (
	SpecAPIVersion = "windlass.dev/v1"
	SpecKind       = "DockerMachineProviderSpec"
)

// Spec is what a machine's provider spec asks for.
type Spec struct {
	Type, Region, Zone string
	Image              string // at the engine; empty means the image of the provider's own executable
	Network            string // engine.HostNetwork or a user-defined network
	Capacity           map[string]string
}

// networkName is what the engine accepts as the name of a network.
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// noFixedAddress are networks in which the engine gives no container an address that was chosen before.
var noFixedAddress = []string{"none", "bridge", "default"}

// ParseSpec reads a provider spec and returns its invalid fields, ordered by path.
func ParseSpec(s *structpb.Struct) (Spec, []object.Fault) {
	out := Spec{Network: engine.HostNetwork}
	var faults []object.Fault
	text := func(field string, v *structpb.Value, to *string) {
		if _, ok := v.GetKind().(*structpb.Value_StringValue); !ok {
			faults = append(faults, object.Faultf(field, "must be a string"))
		}
		*to = v.GetStringValue()
	}
	for field, want := range map[string]string{"apiVersion": SpecAPIVersion, "kind": SpecKind} {
		if s.GetFields()[field].GetStringValue() != want {
			faults = append(faults, object.Faultf(field, "must be %s", want))
		}
	}
	for field, v := range s.GetFields() {
		switch field {
		case "apiVersion", "kind", "metadata":
		case "instanceType":
			text(field, v, &out.Type)
		case "region":
			text(field, v, &out.Region)
		case "zone":
			text(field, v, &out.Zone)
		case "image":
			if text(field, v, &out.Image); out.Image == "" {
				faults = append(faults, object.Faultf(field, "must be the name of an image; omit it for the provider's own"))
			}
		case "network":
			text(field, v, &out.Network)
			if !networkName.MatchString(out.Network) || slices.Contains(noFixedAddress, out.Network) {
				faults = append(faults, object.Faultf(field,
					"must be host or the name of a user-defined network: containers of others have no fixed address"))
			}
		case "capacity":
			var wrong []object.Fault
			out.Capacity, wrong = quantities(field, v)
			faults = append(faults, wrong...)
		default:
			faults = append(faults, object.Faultf(field, "unknown field"))
		}
	}
	slices.SortFunc(faults, func(a, b object.Fault) int { return cmp.Compare(a.Path, b.Path) })
	return out, faults
}

// quantities reads an object of quantities. cpu and memory limit the container, so they are more than zero.
func quantities(path string, v *structpb.Value) (map[string]string, []object.Fault) {
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		return nil, []object.Fault{object.Faultf(path, "must be an object of quantities")}
	}
	out := map[string]string{}
	var faults []object.Fault
	for name, v := range s.StructValue.GetFields() {
		text := v.GetStringValue()
		if n, ok := v.GetKind().(*structpb.Value_NumberValue); ok {
			text = strconv.FormatFloat(n.NumberValue, 'f', -1, 64)
		}
		q, err := placement.ParseQuantity(text)
		switch limits := name == "cpu" || name == "memory"; {
		case err != nil || q.Sign() < 0:
			faults = append(faults, object.Faultf(path+"."+name, "must be a quantity such as 500m or 2Gi, zero or more"))
		case limits && q.Sign() == 0:
			faults = append(faults, object.Faultf(path+"."+name, "must be more than zero: it is the limit of the container"))
		}
		out[name] = text
	}
	return out, faults
}

// limit returns a quantity of the capacity in units of 10^scale; 0 if it is not given.
func (s Spec) limit(name string, scale resource.Scale) int64 {
	q, err := placement.ParseQuantity(s.Capacity[name])
	if err != nil {
		return 0
	}
	return q.ScaledValue(scale)
}
