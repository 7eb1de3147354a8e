package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/lifecycle"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"github.com/windlass-dev/windlass/kit/podconfig"
)

// SpecNotInForce returns the fields of a pod's spec, or of a template's, below path that are not in force: fields
// without which the pod would mean something else are faults, others are warned of. A field that is empty or has its
// default value is always in force.
func SpecNotInForce(path string, spec *schedulingv1.PodSpec) (fields []object.Fault, warnings []string) {
	f := &unforced{}
	f.runAs(path+".securityContext", spec.GetSecurityContext())
	f.warnIf(spec.GetRuntimeClassName() != "", path+".runtimeClassName")
	f.warnIf(len(spec.GetHostAliases()) > 0, path+".hostAliases")
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
	return slices.Concat(f.fields, podconfig.Check(path, spec), lifecycle.Check(path, spec)), f.warnings
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
	f.runAs(at+".securityContext", c.GetSecurityContext())
}

// runAs refuses the users and groups that a container asks to run as, and warns of everything else of a security
// context.
func (f *unforced) runAs(path string, context *structpb.Struct) {
	for _, name := range slices.Sorted(maps.Keys(context.GetFields())) {
		switch v := context.GetFields()[name]; {
		case unset(v):
		case strings.HasPrefix(name, "runAs"):
			f.refuse(path+"."+name, "a pod has a user that the node's agent chooses")
		case name == "fsGroup" || name == "supplementalGroups":
			f.refuse(path+"."+name, "a pod has no supplementary groups")
		case name == "allowPrivilegeEscalation": // false is always in force
			f.warnIf(v.GetBoolValue(), path+"."+name)
		default:
			f.warn(path + "." + name)
		}
	}
}

// unset reports whether a value is empty or false, also in all parts.
func unset(v *structpb.Value) bool {
	switch k := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return !k.BoolValue
	case *structpb.Value_StringValue:
		return k.StringValue == ""
	case *structpb.Value_ListValue:
		return len(k.ListValue.GetValues()) == 0
	case *structpb.Value_StructValue:
		for _, part := range k.StructValue.GetFields() {
			if !unset(part) {
				return false
			}
		}
		return true
	case *structpb.Value_NumberValue:
		return false // user 0 is one
	}
	return true
}
