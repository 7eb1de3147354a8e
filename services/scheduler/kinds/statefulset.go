package kinds

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	workload "github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

// longestSet is the longest name of a stateful set, in characters. The names of its pods and revisions are label
// values, and add at most 11 characters.
const longestSet = 52

const rollingUpdate = "RollingUpdate"

func defaultStatefulSet(s *schedulingv1.StatefulSet) {
	if s.Spec == nil {
		s.Spec = &schedulingv1.StatefulSetSpec{}
	}
	numberOr(&s.Spec.Replicas, 1)
	numberOr(&s.Spec.RevisionHistoryLimit, 10)
	orElse(&s.Spec.PodManagementPolicy, "OrderedReady")
	defaultTemplate(s.Spec.GetTemplate())
	for _, t := range s.Spec.GetVolumeClaimTemplates() {
		defaultClaim(t)
		t.Status = nil
	}
	strategy := fieldsOf(&s.Spec.UpdateStrategy)
	if typ := strategy["type"]; typ == nil || proto.Equal(typ, structpb.NewStringValue("")) {
		strategy["type"] = structpb.NewStringValue(rollingUpdate)
	}
	if strategy["type"].GetStringValue() != rollingUpdate {
		return
	}
	if strategy["rollingUpdate"] == nil {
		strategy["rollingUpdate"] = structpb.NewStructValue(&structpb.Struct{})
	}
	if rolling := strategy["rollingUpdate"].GetStructValue(); rolling != nil && fieldsOf(&rolling)["partition"] == nil {
		rolling.Fields["partition"] = structpb.NewNumberValue(0)
	}
}

// fieldsOf returns the fields of a struct, which it makes if they are not there.
func fieldsOf(s **structpb.Struct) map[string]*structpb.Value {
	if *s == nil {
		*s = &structpb.Struct{}
	}
	if (*s).Fields == nil {
		(*s).Fields = map[string]*structpb.Value{}
	}
	return (*s).Fields
}

func validateStatefulSet(s *schedulingv1.StatefulSet) []object.Fault {
	spec := s.GetSpec()
	bad := append(selectorFaults(spec.GetSelector(), spec.GetTemplate()),
		templateFaults(mountable(spec), restartAlways)...)
	if err := workload.TemplateFault(spec.GetTemplate()); err != nil {
		bad = append(bad, object.Faultf("spec.template", "cannot be stored as a revision: %v", err))
	}
	if len(s.GetMetadata().GetName()) > longestSet {
		bad = append(bad, object.Faultf("metadata.name",
			"must be no more than %d characters, so that the names of its pods can be labels", longestSet))
	}
	if int(spec.GetOrdinals().GetStart())+int(spec.GetReplicas()) > math.MaxInt32 {
		bad = append(bad, object.Faultf("spec.ordinals.start", "must be at most %d less spec.replicas", math.MaxInt32))
	}
	bad = append(bad, claimTemplateFaults(spec.GetVolumeClaimTemplates())...)
	if spec.GetServiceName() != "" {
		bad = append(bad, labelFaults("spec.serviceName", spec.GetServiceName())...)
	}
	return append(bad, strategyFaults("spec.updateStrategy", spec.GetUpdateStrategy().GetFields())...)
}

// mountable returns the template of a set's pods with the volumes that they get, which its containers may mount.
func mountable(spec *schedulingv1.StatefulSetSpec) *schedulingv1.PodTemplateSpec {
	if len(spec.GetVolumeClaimTemplates()) == 0 || spec.GetTemplate().GetSpec() == nil {
		return spec.GetTemplate()
	}
	out := proto.CloneOf(spec.GetTemplate())
	for _, t := range spec.GetVolumeClaimTemplates() {
		name := t.GetMetadata().GetName()
		out.Spec.Volumes = slices.DeleteFunc(out.Spec.Volumes, func(v *schedulingv1.Volume) bool {
			return v.GetName() == name
		})
		out.Spec.Volumes = append(out.Spec.Volumes, &schedulingv1.Volume{
			Name: name, PersistentVolumeClaim: &schedulingv1.PersistentVolumeClaimVolumeSource{ClaimName: "of-the-pod"},
		})
	}
	return out
}

// claimTemplateFaults returns what is wrong with the claim templates of a stateful set.
func claimTemplateFaults(templates []*schedulingv1.PersistentVolumeClaim) (bad []object.Fault) {
	seen := map[string]bool{}
	for i, t := range templates {
		path, name := fmt.Sprintf("spec.volumeClaimTemplates[%d]", i), t.GetMetadata().GetName()
		bad = append(bad, labelFaults(path+".metadata.name", name)...)
		if seen[name] {
			bad = append(bad, object.Faultf(path+".metadata.name", "%q is the name of another one", name))
		}
		seen[name] = true
		for _, f := range validateClaim(t) {
			bad = append(bad, object.Fault{Path: path + "." + f.Path, Description: f.Description})
		}
	}
	return bad
}

// strategyFaults returns what is wrong with the update strategy of a stateful set.
func strategyFaults(path string, strategy map[string]*structpb.Value) []object.Fault {
	bad := unknownFields(path, strategy, "type", "rollingUpdate")
	typ, _ := strategy["type"].GetKind().(*structpb.Value_StringValue)
	if typ == nil || typ.StringValue != rollingUpdate && typ.StringValue != "OnDelete" {
		return append(bad, object.Faultf(path+".type", "must be RollingUpdate or OnDelete"))
	}
	rolling := strategy["rollingUpdate"]
	if rolling == nil {
		return bad
	}
	path += ".rollingUpdate"
	switch of := rolling.GetStructValue(); {
	case of == nil:
		return append(bad, object.Faultf(path, "must be an object"))
	case typ.StringValue != rollingUpdate:
		return append(bad, object.Faultf(path, "must be left out unless spec.updateStrategy.type is RollingUpdate"))
	}
	fields := rolling.GetStructValue().GetFields()
	bad = append(bad, unknownFields(path, fields, "partition", "maxUnavailable")...)
	if v := fields["partition"]; v != nil && !wholeNumber(v) {
		bad = append(bad, object.Faultf(path+".partition", "must be a whole number, from 0 to %d", math.MaxInt32))
	}
	v := fields["maxUnavailable"]
	percent := strings.HasSuffix(v.GetStringValue(), "%") &&
		strings.Trim(strings.TrimSuffix(v.GetStringValue(), "%"), "0123456789") == ""
	switch {
	case v == nil:
	case !wholeNumber(v) && !percent, isZero(v):
		bad = append(bad,
			object.Faultf(path+".maxUnavailable", "must be a whole number above 0, or a percentage such as 25%%"))
	default:
		bad = append(bad, limitFaults(path+".maxUnavailable", v, allPercent)...)
	}
	return bad
}

// wholeNumber reports whether a value is a number that can count pods.
func wholeNumber(v *structpb.Value) bool {
	n, ok := v.GetKind().(*structpb.Value_NumberValue)
	return ok && n.NumberValue >= 0 && n.NumberValue <= math.MaxInt32 && n.NumberValue == math.Trunc(n.NumberValue)
}

// unknownFields returns a fault for each field that is not one of known.
func unknownFields(path string, fields map[string]*structpb.Value, known ...string) []object.Fault {
	var bad []object.Fault
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(known, name) {
			bad = append(bad, object.Fault{Path: path + "." + name, Description: fmt.Sprintf("unknown field; known are: %s",
				strings.Join(known, ", "))})
		}
	}
	return bad
}

func validateStatefulSetUpdate(old, s *schedulingv1.StatefulSet) []object.Fault {
	was, is := old.GetSpec(), s.GetSpec()
	bad := unchanged("spec.selector", was.GetSelector(), is.GetSelector())
	if was.GetServiceName() != is.GetServiceName() {
		bad = append(bad, object.Fault{Path: "spec.serviceName", Description: "cannot be changed"})
	}
	if was.GetPodManagementPolicy() != is.GetPodManagementPolicy() {
		bad = append(bad, object.Fault{Path: "spec.podManagementPolicy", Description: "cannot be changed"})
	}
	if !proto.Equal(
		&schedulingv1.StatefulSetSpec{VolumeClaimTemplates: was.GetVolumeClaimTemplates()},
		&schedulingv1.StatefulSetSpec{VolumeClaimTemplates: is.GetVolumeClaimTemplates()},
	) {
		bad = append(bad, object.Fault{Path: "spec.volumeClaimTemplates", Description: "cannot be changed"})
	}
	return bad
}
