package kinds

import (
	"fmt"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	active       = "Active"
	inactive     = "Inactive"
	rolling      = "RollingUpdate"
	machineType  = "machines_v1beta1_machine_openshift_io"
	templatePath = "spec.template." + machineType
)

func (t *Tables) defaultControlPlane(s *machinev1.ControlPlaneMachineSet) {
	if s.Spec == nil {
		s.Spec = &machinev1.ControlPlaneMachineSetSpec{}
	}
	if s.Spec.State == "" {
		s.Spec.State = inactive
	}
	if s.Spec.Replicas == nil {
		s.Spec.Replicas = proto.Int32(3)
	}
	if s.Spec.Strategy.GetType() == "" {
		s.Spec.Strategy = &machinev1.ControlPlaneMachineSetStrategy{Type: rolling}
	}
	template := s.Spec.GetTemplate()
	machines := template.GetMachinesV1Beta1MachineOpenshiftIo()
	if machines == nil {
		return
	}
	if template.MachineType == "" {
		template.MachineType = machineType
	}
	if name := t.InfrastructureName(); name != "" && machines.GetMetadata() != nil &&
		machines.Metadata.Labels[plan.LabelCluster] == "" {
		setLabel(&machines.Metadata.Labels, plan.LabelCluster, name)
	}
}

func validateControlPlane(s *machinev1.ControlPlaneMachineSet) []object.Fault {
	var bad []object.Fault
	if p := s.GetSpec().GetMachineNamePrefix(); p != "" {
		for _, msg := range validation.IsDNS1123Subdomain(p) {
			bad = append(bad, object.Fault{Path: "spec.machineNamePrefix", Description: fmt.Sprintf("invalid value %q: %s", p,
				msg)})
		}
	}
	t := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	bad = append(bad, selectorFaults(s.GetSpec().GetSelector(), t != nil, t.GetMetadata().GetLabels(),
		templatePath+".metadata.labels")...)
	if t == nil {
		return bad
	}
	for _, key := range []string{plan.LabelRole, plan.LabelType} {
		if v := t.GetMetadata().GetLabels()[key]; v != plan.RoleMaster {
			bad = append(bad, object.Fault{
				Path:        fmt.Sprintf("%s.metadata.labels['%s']", templatePath, key),
				Description: fmt.Sprintf("is %q, must be %q", v, plan.RoleMaster),
			})
		}
	}
	bad = append(bad, plan.DomainFaults(t.GetFailureDomains(), templatePath+".failureDomains")...)
	return append(bad, plan.DuplicateHooks(t.GetSpec().GetLifecycleHooks(), templatePath+".")...)
}

func validateControlPlaneUpdate(old, s *machinev1.ControlPlaneMachineSet) []object.Fault {
	bad := immutableSelector(old.GetSpec().GetSelector(), s.GetSpec().GetSelector())
	if a, b := old.GetSpec().GetReplicas(), s.GetSpec().GetReplicas(); a != b {
		bad = append(bad, object.Fault{Path: "spec.replicas", Description: fmt.Sprintf("cannot be changed from %d to %d", a,
			b)})
	}
	if old.GetSpec().GetState() == active && s.GetSpec().GetState() != active {
		bad = append(bad,
			object.Fault{
				Path: "spec.state", Description: "cannot go back from Active: delete the object instead, its machines stay",
			})
	}
	return bad
}
