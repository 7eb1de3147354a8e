package server

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/provider-inventory/plan"
)

// What a machine's provider spec of this provider says it is.
const (
	specAPIVersion = "windlass.dev/v1"
	specKind       = "InventoryMachineProviderSpec"
)

// parse returns what a machine with a provider spec and a role asks for, and what is wrong with the spec. path is that
// of the spec, "" or ending in a dot.
func parse(spec *structpb.Struct, role, path string) (plan.Ask, []object.Fault) {
	ask := plan.Ask{Role: plan.RoleOf(role)}
	var out []object.Fault
	for field, want := range map[string]string{"apiVersion": specAPIVersion, "kind": specKind} {
		if got := spec.GetFields()[field].GetStringValue(); got != want {
			out = append(out, object.Fault{Path: path + field, Description: "must be " + want})
		}
	}
	for field, v := range spec.GetFields() {
		switch field {
		case "apiVersion", "kind", "metadata":
		case "zone":
			if _, ok := v.GetKind().(*structpb.Value_StringValue); !ok {
				out = append(out, object.Fault{Path: path + field, Description: "must be a string"})
			}
			ask.Zone = v.GetStringValue()
		case "hostSelector":
			s, faults := selector(v, path+field)
			out = append(out, faults...)
			if len(faults) > 0 {
				continue
			}
			parsed, faults := object.LabelSelector(s, path+field)
			ask.Selector = parsed
			out = append(out, faults...)
		default:
			out = append(out, object.Fault{Path: path + field, Description: "unknown field"})
		}
	}
	slices.SortFunc(out, func(a, b object.Fault) int { return cmp.Compare(a.Path, b.Path) })
	return ask, out
}

// selector reads a label selector. One that is empty matches every host.
func selector(v *structpb.Value, path string) (*metav1.LabelSelector, []object.Fault) {
	s := &metav1.LabelSelector{}
	raw, err := v.GetStructValue().MarshalJSON()
	if v.GetStructValue() == nil {
		return nil, []object.Fault{{Path: path, Description: "must be an object with matchLabels or matchExpressions"}}
	}
	if err == nil {
		err = protojson.Unmarshal(raw, s)
	}
	if err != nil {
		return nil, []object.Fault{{Path: path, Description: "must have matchLabels and matchExpressions: " + err.Error()}}
	}
	return s, nil
}
