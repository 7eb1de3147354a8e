package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	"github.com/windlass-dev/windlass/kit/machineconfig"
	"google.golang.org/protobuf/types/known/structpb"
)

// obstacles returns one line for each item of a rendered configuration that cannot be put in force on a node that has
// one of the present configurations, or on a new node if there are none.
func obstacles(rendered *configv1.MachineConfig, sources, present []*configv1.MachineConfig) []string {
	if len(present) == 0 {
		present = []*configv1.MachineConfig{nil}
	}
	var out []string
	for _, before := range present {
		_, bad := machineconfig.Read(before, rendered)
		if len(bad) == 0 {
			continue
		}
		origins := map[string]string{} // of the same fault the last one counts, as in the merged configuration
		for _, c := range sources {
			_, own := machineconfig.Read(before, c)
			for _, f := range own {
				origins[named(c, f.Path)+f.Description] = fmt.Sprintf("machine config %q: %s", c.GetMetadata().GetName(), f)
			}
		}
		for _, f := range bad {
			// Two configurations can make a fault together.
			line := cmp.Or(origins[named(rendered, f.Path)+f.Description], "merged: "+f.String())
			if !slices.Contains(out, line) {
				out = append(out, line)
			}
		}
	}
	return out
}

// named returns a path inside a machine configuration with the names of list items instead of their indices, which
// change when lists are merged.
func named(c *configv1.MachineConfig, path string) string {
	inside, ok := strings.CutPrefix(path, "spec.config.")
	if !ok {
		return path
	}
	at := structpb.NewStructValue(c.GetSpec().GetConfig())
	var out []string
	for _, step := range strings.Split(inside, ".") {
		field, rest, indexed := strings.Cut(step, "[")
		at = at.GetStructValue().GetFields()[field]
		if i, err := strconv.Atoi(strings.TrimSuffix(rest, "]")); indexed && err == nil {
			if items := at.GetListValue().GetValues(); i < len(items) {
				at = items[i]
			}
			item := at.GetStructValue().GetFields()
			step = field + "[" + cmp.Or(item["name"].GetStringValue(), item["path"].GetStringValue(), rest)
		}
		out = append(out, step)
	}
	return strings.Join(out, ".")
}
