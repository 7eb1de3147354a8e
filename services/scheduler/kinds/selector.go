package kinds

import (
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-dev/windlass/kit/rpcerr"
	"k8s.io/apimachinery/pkg/util/validation"
)

func labelFaults(path, name string) []rpcerr.Field {
	if name == "" {
		return []rpcerr.Field{{Path: path, Description: "must be given"}}
	}
	var bad []rpcerr.Field
	for _, msg := range validation.IsDNS1123Label(name) {
		bad = append(bad, rpcerr.Field{Path: path, Description: fmt.Sprintf("invalid value %q: %s", name, msg)})
	}
	return bad
}

// labelPairFaults returns what is wrong with labels that are looked for.
func labelPairFaults(path string, pairs map[string]string) []rpcerr.Field {
	var bad []rpcerr.Field
	for _, k := range slices.Sorted(maps.Keys(pairs)) {
		v := pairs[k]
		at := fmt.Sprintf("%s['%s']", path, k)
		for _, msg := range validation.IsQualifiedName(k) {
			bad = append(bad, rpcerr.Field{Path: at, Description: "invalid key: " + msg})
		}
		for _, msg := range validation.IsValidLabelValue(v) {
			bad = append(bad, rpcerr.Field{Path: at, Description: fmt.Sprintf("invalid value %q: %s", v, msg)})
		}
	}
	return bad
}
