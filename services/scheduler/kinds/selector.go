package kinds

import (
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-dev/windlass/kit/object"
	"k8s.io/apimachinery/pkg/util/validation"
)

func labelFaults(path, name string) []object.Fault {
	if name == "" {
		return []object.Fault{{Path: path, Description: "must be given"}}
	}
	var bad []object.Fault
	for _, msg := range validation.IsDNS1123Label(name) {
		bad = append(bad, object.Fault{Path: path, Description: fmt.Sprintf("invalid value %q: %s", name, msg)})
	}
	return bad
}

// labelPairFaults returns what is wrong with labels that are looked for.
func labelPairFaults(path string, pairs map[string]string) []object.Fault {
	var bad []object.Fault
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		v := pairs[k]
		at := fmt.Sprintf("%s['%s']", path, k)
		for _, msg := range validation.IsQualifiedName(k) {
			bad = append(bad, object.Fault{Path: at, Description: "invalid key: " + msg})
		}
		for _, msg := range validation.IsValidLabelValue(v) {
			bad = append(bad, object.Fault{Path: at, Description: fmt.Sprintf("invalid value %q: %s", v, msg)})
		}
	}
	return bad
}
