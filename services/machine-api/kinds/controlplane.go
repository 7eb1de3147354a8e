package kinds

import (
	"fmt"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
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
	bad = append(bad, plan.TimeoutFaults(t.GetSpec(), templatePath+".spec.")...)
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

// admitControlPlane refuses what would stop a set or have it replace machines unasked. Changes
// of an active set that move machines are accepted with a warning: they are carried out one index at a time. Objects
// that were stored before a rule existed keep their status up to date: only a new spec is checked.
func (t *Tables) admitControlPlane(w *resource.Write[*machinev1.ControlPlaneMachineSet]) error {
	if w.Deletes() || !w.Creates() && proto.Equal(w.Old.GetSpec(), w.New.GetSpec()) {
		return nil
	}
	if err := t.checkControlPlaneSpec(w); err != nil {
		return err
	}
	bad := t.templateFaults(w.New)
	activated := w.New.GetSpec().GetState() == active && w.Old.GetSpec().GetState() != active
	if activated && object.Deleting(w.Old) {
		bad = append(bad, object.Fault{Path: "spec.state", Description: "cannot be Active: the object is being deleted"})
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	v, known := t.controlPlaneView(w.New)
	switch {
	case w.Creates() || activated:
		if !known && len(v.Machines) > 0 {
			return rpcerr.Unavailable("the provider has not reported yet how it writes failure domains")
		}
		if bad := plan.ActivationFaults(v); len(bad) > 0 {
			return rpcerr.Invalid(bad...)
		}
	case w.New.GetSpec().GetState() == active:
		warnOfChanges(w, v)
	}
	return nil
}

// templateFaults returns what is wrong with the template of a set that is created or changed.
func (t *Tables) templateFaults(s *machinev1.ControlPlaneMachineSet) []object.Fault {
	template := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	switch {
	case template == nil:
		return []object.Fault{{Path: templatePath, Description: "must be given"}}
	case template.GetSpec().GetProviderSpec().GetValue() == nil:
		return []object.Fault{{Path: templatePath + ".spec.providerSpec.value", Description: "must be given"}}
	}
	bad := plan.LongPrefixFaults(s.GetSpec().GetMachineNamePrefix())
	bad = append(bad, plan.TemplateFaults(template.GetMetadata(), template.GetSpec(), templatePath)...)
	bad = append(bad, plan.DuplicateDomains(template.GetFailureDomains(), templatePath+".failureDomains")...)
	i, _ := t.Infrastructure.Lookup("", ClusterName)
	bad = append(bad, plan.SpecDomainFaults(template, templatePath+".failureDomains")...)
	return append(bad, plan.PlatformFaults(template.GetFailureDomains(), i.GetStatus().GetPlatform(),
		templatePath+".failureDomains")...)
}

// controlPlaneView returns what is known of a set's machines; known is false while it is unknown how their provider
// writes failure domains.
func (t *Tables) controlPlaneView(s *machinev1.ControlPlaneMachineSet) (v plan.ControlPlaneView, known bool) {
	v = plan.ControlPlaneView{Now: time.Now(), Set: s}
	sel, _ := object.LabelSelector(s.GetSpec().GetSelector(), "")
	for m := range t.Machines.In(s.GetMetadata().GetNamespace()) {
		if sel.Matches(labels.Set(m.GetMetadata().GetLabels())) {
			v.Machines = append(v.Machines, m)
		}
	}
	if t.DomainFields == nil {
		return v, true
	}
	template := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	v.DomainFields, known = t.DomainFields(template.GetSpec().GetProviderSpec().GetValue())
	return v, known
}

// warnOfChanges says which machines an accepted change of an active set moves, and what it leaves as it is.
func warnOfChanges(w *resource.Write[*machinev1.ControlPlaneMachineSet], v plan.ControlPlaneView) {
	old := w.Old.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	now := w.New.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	if !proto.Equal(old.GetFailureDomains(), now.GetFailureDomains()) {
		var moves []string
		for _, m := range plan.Moves(v) {
			moves = append(moves, m.String())
		}
		if len(moves) > 0 {
			w.Warn(fmt.Sprintf("%s.failureDomains: %d machine(s) move to another failure domain, one index at a time: %s",
				templatePath, len(moves), strings.Join(moves, ", ")))
		}
	}
	requested := old.GetMetadata().GetAnnotations()[plan.AnnotationRestart] !=
		now.GetMetadata().GetAnnotations()[plan.AnnotationRestart]
	if parts := plan.TemplateChanges(old, now); len(parts) > 0 && !requested {
		w.Warn(fmt.Sprintf("%s: %s apply to new machines only; windlass rollout restart controlplanemachineset %s "+
			"replaces all, one at a time", templatePath, strings.Join(parts, ", "), ClusterName))
	}
}
