package plan

import (
	"fmt"
	"slices"
	"strings"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// KeepAnnotation of an object that a release brought, set to "true", keeps the object when a later release lacks it.
const KeepAnnotation = "release.windlass.dev/keep"

// Identity is what makes two references ones to the same object, whatever the version of its kind.
func Identity(o *metav1.ObjectReference) string {
	group, _, core := strings.Cut(o.GetApiVersion(), "/")
	if !core {
		group = ""
	}
	return strings.Join([]string{group, o.GetKind(), o.GetNamespace(), o.GetName()}, "/")
}

// Inventory returns the objects that releases have brought since the last update was completed: those of before, and
// those that the next release brings.
func Inventory(before, brings []*metav1.ObjectReference) []*metav1.ObjectReference {
	return append(Leftovers(before, brings), brings...)
}

// Leftovers returns the objects of an inventory that a release does not want to be there. They are removed at the end
// of the update to it.
func Leftovers(inventory, wants []*metav1.ObjectReference) []*metav1.ObjectReference {
	wanted := map[string]bool{}
	for _, o := range wants {
		wanted[Identity(o)] = true
	}
	var out []*metav1.ObjectReference
	for _, o := range inventory {
		if !wanted[Identity(o)] {
			out = append(out, o)
		}
	}
	return out
}

// UnservedMessage says which manifests of a release nothing acts on; empty if there are none.
func UnservedMessage(version string, unserved []*updatev1.ReleaseKind) string {
	const most = 10
	var kinds []string
	total := int32(0)
	for _, k := range unserved {
		kinds = append(kinds, fmt.Sprintf("%s (%d)", k.GetKind(), k.GetCount()))
		total += k.GetCount()
	}
	if len(kinds) == 0 {
		return ""
	}
	if n := len(kinds) - most; n > 0 {
		kinds = append(kinds[:most], fmt.Sprintf("and %d other kinds", n))
	}
	return fmt.Sprintf(
		"%d manifests of release %s are kept and nothing acts on them, since no service owns their kinds: %s",
		total, version, strings.Join(kinds, ", "))
}

// held are kinds whose objects hold more than a release brought: what each would take along.
var held = map[string]string{
	"Namespace":              "everything in it",
	"PersistentVolumeClaim":  "the data of its volume",
	"PersistentVolume":       "its data",
	"Machine":                "the machine",
	"MachineSet":             "its machines",
	"ControlPlaneMachineSet": "the machines of the control plane",
	"MachineConfigPool":      "the configuration of its nodes",

	"CustomResourceDefinition": "all objects of its kind",
}

// Stays returns why an object that a release lacks is left to administrators; empty if it is removed. live is the
// object as its owner has it, which the releases applied as by says; services are the names of cluster operators that
// Windlass itself reports.
func Stays(o *metav1.ObjectReference, live object.Object, by string, overrides []*updatev1.ComponentOverride,
	services []string,
) string {
	group, _, core := strings.Cut(o.GetApiVersion(), "/")
	if !core {
		group = ""
	}
	notes := live.GetMetadata().GetAnnotations()
	_, applied := notes[by]
	switch {
	case notes[KeepAnnotation] == "true":
		return "its annotation " + KeepAnnotation + " keeps it"
	case Unmanaged(overrides, group, o.GetKind(), o.GetNamespace(), o.GetName()):
		return "spec.overrides leaves it alone"
	case held[o.GetKind()] != "":
		return "its removal would take along " + held[o.GetKind()]
	case o.GetKind() == "ClusterOperator" && slices.Contains(services, o.GetName()):
		return "it is the report of a service of this cluster"
	case by != "" && !applied:
		return "it is not the object that a release applied"
	}
	return ""
}
