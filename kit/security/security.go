// Package security reads the security contexts of pods and containers: what a container's processes run as. The
// scheduler checks them; the agent of the node acts on them. It does no I/O. Names, defaults and rules are those of
// Kubernetes, core/v1.
package security

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/untyped"
)

// Context is what a container asks for; what it does not say is as the pod says.
type Context struct {
	User, Group  *uint32 // nil: those of the pod
	NonRoot      bool    // it must not be user 0
	ReadOnlyRoot bool
	// Seccomp is the type of the profile: RuntimeDefault, Unconfined, or empty where nothing is said.
	Seccomp string
}

// Types of profiles of system calls.
const (
	RuntimeDefault = "RuntimeDefault"
	Unconfined     = "Unconfined"
)

// Of returns what a container of a pod asks for. Values that Check refuses count as not given.
func Of(spec *schedulingv1.PodSpec, c *schedulingv1.Container) Context {
	var out Context
	r := &untyped.Reader{}
	for _, from := range []*structpb.Struct{spec.GetSecurityContext(), c.GetSecurityContext()} {
		if n, ok := r.Number("", from, "runAsUser", 0); ok {
			out.User = new(uint32(n))
		}
		if n, ok := r.Number("", from, "runAsGroup", 0); ok {
			out.Group = new(uint32(n))
		}
		if v := from.GetFields()["runAsNonRoot"]; !absent(v) {
			out.NonRoot = v.GetBoolValue()
		}
		if t := r.Text("", r.Object("", from, "seccompProfile"), "type"); t != "" {
			out.Seccomp = t
		}
	}
	out.ReadOnlyRoot = r.Flag("", c.GetSecurityContext(), "readOnlyRootFilesystem")
	return out
}

// Check returns the fields of the security contexts of a pod's spec, below path, that have wrong values or that no node
// acts on although the pod would mean something else without them, and warnings about the others that no node acts on.
func Check(path string, spec *schedulingv1.PodSpec) (faults []object.Fault, warnings []string) {
	r := &reader{}
	r.context(path+".securityContext", spec.GetSecurityContext(), "readOnlyRootFilesystem", "privileged", "capabilities",
		"procMount", "allowPrivilegeEscalation")
	for _, list := range []struct {
		name string
		of   []*schedulingv1.Container
	}{{"initContainers", spec.GetInitContainers()}, {"containers", spec.GetContainers()}} {
		for i, c := range list.of {
			r.context(fmt.Sprintf("%s.%s[%d].securityContext", path, list.name, i), c.GetSecurityContext(), "fsGroup",
				"fsGroupChangePolicy", "supplementalGroups", "sysctls")
		}
	}
	return r.Faults, r.warnings
}

type reader struct {
	untyped.Reader
	warnings []string
}

// context checks a security context of a pod or a container, which does not have the fields of the other one.
func (r *reader) context(path string, context *structpb.Struct, others ...string) {
	for _, name := range others {
		if v := context.GetFields()[name]; !absent(v) {
			r.Fault(untyped.Join(path, name), "is not a field of it")
			return
		}
	}
	for _, name := range []string{"runAsUser", "runAsGroup", "fsGroup"} {
		if _, ok := r.Number(path, context, name, 0); ok && name == "fsGroup" {
			r.warnings = append(r.warnings, path+".fsGroup: not in force as a group; "+
				"each container of a pod can write its volumes without it")
		}
	}
	r.Flag(path, context, "runAsNonRoot")
	r.Flag(path, context, "readOnlyRootFilesystem")
	profile := r.Object(path, context, "seccompProfile")
	switch t := r.Text(path+".seccompProfile", profile, "type"); t {
	case RuntimeDefault, Unconfined:
	case "":
		if profile != nil {
			r.Fault(path+".seccompProfile.type", "must be set")
		}
	case "Localhost":
		r.Fault(path+".seccompProfile.type", "Localhost is not in force yet: nodes have no profiles of their own")
	default:
		r.Fault(path+".seccompProfile.type", "supported values: %q, %q", RuntimeDefault, Unconfined)
	}
	r.notInForce(path, context)
}

// notInForce refuses what no node acts on although the pod would mean something else without it, and warns of the rest.
func (r *reader) notInForce(path string, context *structpb.Struct) {
	for _, name := range slices.Sorted(maps.Keys(context.GetFields())) {
		v, at := context.GetFields()[name], untyped.Join(path, name)
		switch name {
		case "runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "seccompProfile":
		case "fsGroupChangePolicy": // a volume is the pod's in any case
		case "supplementalGroups":
			if !unset(v) {
				r.Fault(at, "is not in force yet: a pod has no supplementary groups")
			}
		case "capabilities": // what is to be dropped is dropped, or is of no use outside the pod
			if !unset(r.Object(path, context, name).GetFields()["add"]) {
				r.Fault(at+".add", "is not in force: a container has no capabilities outside its pod")
			}
		case "privileged":
			if r.Flag(path, context, name) {
				r.Fault(at, "is not in force: a container has no rights outside its pod")
			}
		case "sysctls":
			if !unset(v) {
				r.Fault(at, "is not in force: a pod has the kernel parameters of its host")
			}
		case "procMount":
			if t := r.Text(path, context, name); t != "" && t != "Default" {
				r.Fault(at, "is not in force: supported value: %q", "Default")
			}
		case "appArmorProfile":
			if t := r.Text(at, r.Object(path, context, name), "type"); t != "" && t != Unconfined {
				r.Fault(at+".type", "is not in force: supported value: %q", Unconfined)
			}
		default:
			r.warnUnless(unset(v), at)
		}
	}
}

func (r *reader) warnUnless(ok bool, at string) {
	if !ok {
		r.warnings = append(r.warnings, at+": stored and not in force yet")
	}
}

func absent(v *structpb.Value) bool {
	_, null := v.GetKind().(*structpb.Value_NullValue)
	return v == nil || null
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
	case *structpb.Value_NumberValue:
		return false
	}
	return true
}
