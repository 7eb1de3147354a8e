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
func SpecNotInForce(path string, spec *schedulingv1.PodSpec) (fields []object.Fault, warnings []string) {
	f := &unforced{}
	f.warnIf(spec.GetRuntimeClassName() != "", path+".runtimeClassName")
	for i, v := range spec.GetVolumes() {
		f.warnIf(v.GetPersistentVolumeClaim().GetReadOnly(),
			fmt.Sprintf("%s.volumes[%d].persistentVolumeClaim.readOnly", path, i))
	}
	for i, c := range spec.GetInitContainers() {
		at := fmt.Sprintf("%s.initContainers[%d]", path, i)
		f.container(at, c)
	}
	for i, c := range spec.GetContainers() {
		f.container(fmt.Sprintf("%s.containers[%d]", path, i), c)
	}
	asked, warnings := security.Check(path, spec)
	_, aliases := podconfig.Aliases(path, spec)
	return slices.Concat(f.fields, asked, aliases, podconfig.Check(path, spec), lifecycle.Check(path, spec)),
		append(f.warnings, warnings...)
}

// unforced collects what is not in force.
type unforced struct {
	fields   []object.Fault
	warnings []string
}

func (f *unforced) refuse(at, why string) {
	f.fields = append(f.fields, object.Fault{Path: at, Description: "is not in force yet: " + why})
}

func (f *unforced) warn(at string) {
	f.warnings = append(f.warnings, at+": stored and not in force yet")
}

func (f *unforced) warnIf(is bool, at string) {
	if is {
		f.warn(at)
	}
}

func (f *unforced) container(at string, c *schedulingv1.Container) {
	for _, name := range slices.Sorted(maps.Keys(c.GetResources().GetLimits())) {
		if name != placement.CPU && name != placement.Memory && name != placement.EphemeralStorage {
			f.refuse(at+".resources.limits['"+name+"']", "the container could use more")
		}
	}
}
