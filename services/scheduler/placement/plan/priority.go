package plan

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
)

// reservedClass is how the names of priority classes begin that always exist and that users cannot create.
const reservedClass = "system-"

// Values of preemptionPolicy.
const (
	PreemptLowerPriority = "PreemptLowerPriority"
	preemptNever         = "Never"
)

// systemClasses are the priority classes that always exist. Source: Kubernetes' SystemPriorityClasses.
func systemClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{
		{Metadata: &metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2_000_000_000},
		{Metadata: &metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2_000_001_000},
	}
}

// SystemClass returns the priority class of the system that a pod's spec names; empty if it names none. Pods of these
// classes are placed before all others and evict them, so that users need a right to each.
func SystemClass(spec *schedulingv1.PodSpec) string {
	if name := spec.GetPriorityClassName(); strings.HasPrefix(name, reservedClass) {
		return name
	}
	return ""
}

// Reserved says why a user may not create pods with a spec that is below path; empty if the user may use the system's
// priority class that it names, or it names none.
func Reserved(path string, spec *schedulingv1.PodSpec, may bool) string {
	class := SystemClass(spec)
	if class == "" || may {
		return ""
	}
	return fmt.Sprintf(
		"%spriorityClassName: only who may use priorityclasses/%s of scheduling.k8s.io in the namespace may set it",
		path, class)
}

// Prioritize gives a pod the priority and the preemption policy of its class, and returns its wrong fields. A pod that
// names no class has the one for all, or priority 0.
func Prioritize(classes []*schedulingv1.PriorityClass, spec *schedulingv1.PodSpec) (fields []object.Fault) {
	var class *schedulingv1.PriorityClass
	for _, c := range append(systemClasses(), classes...) {
		switch {
		case spec.GetPriorityClassName() != "":
			if c.GetMetadata().GetName() == spec.GetPriorityClassName() {
				class = c
			}
		// Two replicas of this service may have admitted one each.
		case c.GetGlobalDefault() && (class == nil || c.GetValue() < class.GetValue()):
			class = c
		}
	}
	if class == nil && spec.GetPriorityClassName() != "" {
		return []object.Fault{{
			Path:        "spec.priorityClassName",
			Description: fmt.Sprintf("there is no PriorityClass %q", spec.GetPriorityClassName()),
		}}
	}
	name, value := class.GetMetadata().GetName(), class.GetValue()
	if spec.Priority != nil && spec.GetPriority() != value {
		fields = append(fields, object.Fault{Path: "spec.priority", Description: fmt.Sprintf(
			"must not be given: it is that of the pod's PriorityClass, which is %d", value)})
	}
	policy := PreemptLowerPriority
	if p := class.GetPreemptionPolicy(); p != "" {
		policy = p
	}
	if spec.PreemptionPolicy != nil && spec.GetPreemptionPolicy() != policy {
		fields = append(fields, object.Fault{Path: "spec.preemptionPolicy", Description: fmt.Sprintf(
			"must not be given: it is that of the pod's PriorityClass, which is %s", policy)})
	}
	spec.PriorityClassName, spec.Priority, spec.PreemptionPolicy = name, proto.Int32(value), proto.String(policy)
	return fields
}

// CheckPriorityClass returns why a class cannot be created beside others; empty if it can.
func CheckPriorityClass(c *schedulingv1.PriorityClass, others []*schedulingv1.PriorityClass) (fields []object.Fault) {
	name := c.GetMetadata().GetName()
	if strings.HasPrefix(name, reservedClass) {
		fields = append(fields, object.Fault{
			Path: "metadata.name", Description: `names that begin with "system-" are reserved`,
		})
	}
	for _, o := range others {
		if c.GetGlobalDefault() && o.GetGlobalDefault() && o.GetMetadata().GetName() != name {
			fields = append(fields, object.Fault{Path: "globalDefault", Description: fmt.Sprintf(
				"PriorityClass %q is the default already, and there can be one only", o.GetMetadata().GetName())})
		}
	}
	return fields
}
