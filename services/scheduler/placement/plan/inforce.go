package plan

import (
	"fmt"
	"maps"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/podconfig"
	"github.com/windlass-dev/windlass/kit/security"
)

// SpecNotInForce returns the fields of a pod's spec, or of a template's, below path that are not in force: fields
// without which the pod would mean something else are faults, others are warned of. A field that is empty or has its
// default value is always in force.
func SpecNotInForce(path string, spec *schedulingv1.PodSpec) (faults []object.Fault, warnings []string) {
	if spec.GetRuntimeClassName() != "" {
		faults = append(faults, notInForce(path+".runtimeClassName", "there are no runtime classes"))
	}
	for i, c := range spec.GetInitContainers() {
		faults = append(faults, limitsNotInForce(fmt.Sprintf("%s.initContainers[%d]", path, i), c)...)
	}
	for i, c := range spec.GetContainers() {
		faults = append(faults, limitsNotInForce(fmt.Sprintf("%s.containers[%d]", path, i), c)...)
	}
	asked, warnings := security.Check(path, spec)
	_, aliases := podconfig.Aliases(path, spec)
	return slices.Concat(faults, asked, aliases, podconfig.Check(path, spec), lifecycle.Check(path, spec)), warnings
}

func notInForce(path, why string) object.Fault {
	return object.Fault{Path: path, Description: "is not in force yet: " + why}
}

func limitsNotInForce(path string, c *schedulingv1.Container) (faults []object.Fault) {
	for _, name := range slices.Sorted(maps.Keys(c.GetResources().GetLimits())) {
		if name != placement.CPU && name != placement.Memory && name != placement.EphemeralStorage {
			faults = append(faults, notInForce(path+".resources.limits['"+name+"']", "the container could use more"))
		}
	}
	return faults
}
