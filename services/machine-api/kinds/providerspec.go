package kinds

import (
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"github.com/windlass-dev/windlass/services/machine-api/platform"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// checkSpec refuses a provider spec that a user creates or changes and its provider refuses. path is that of the spec.
// The service's own writes are not checked: their specs come from templates that were.
func checkSpec[T object.Object](t *Tables, w *resource.Write[T], path string, of func(T) *structpb.Struct) error {
	if t.CheckSpec == nil || w.Own || w.Deletes() || object.Deleting(w.New) {
		return nil
	}
	var was *structpb.Struct
	if !w.Creates() {
		was = of(w.Old)
	}
	spec := of(w.New)
	if spec == nil || proto.Equal(was, spec) {
		return nil
	}
	bad, warnings := t.CheckSpec(spec)
	for i, f := range bad {
		bad[i].Path = path
		if f.Path != "" {
			bad[i].Path += "." + f.Path
		}
	}
	if len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	for _, text := range warnings {
		w.Warn(path + ": " + text)
	}
	return nil
}

func (t *Tables) admitSet(w *resource.Write[*machinev1.MachineSet]) error {
	if err := pauseSet(w); err != nil {
		return err
	}
	if err := mayOwn(t, w, "machinesets"); err != nil {
		return err
	}
	if bad := newSetFaults(w); len(bad) > 0 {
		return rpcerr.Invalid(bad...)
	}
	return checkSpec(t, w, "spec.template.spec.providerSpec.value", func(s *machinev1.MachineSet) *structpb.Struct {
		return s.GetSpec().GetTemplate().GetSpec().GetProviderSpec().GetValue()
	})
}

// newSetFaults returns what no machine of a set could have. Sets that were stored before a rule existed keep their
// status up to date: only what a user writes is checked.
func newSetFaults(w *resource.Write[*machinev1.MachineSet]) []object.Fault {
	if w.Own || w.Deletes() {
		return nil
	}
	var bad []object.Fault
	if w.Creates() {
		bad = plan.LongSetNameFaults(w.New.GetMetadata().GetName())
	}
	now := w.New.GetSpec().GetTemplate()
	if !w.Creates() && proto.Equal(w.Old.GetSpec().GetTemplate(), now) {
		return bad
	}
	return append(bad, plan.TemplateFaults(now.GetMetadata(), now.GetSpec(), "spec.template")...)
}

// checkControlPlaneSpec has the provider spec checked as machines get it: what the failure domains add need not be in
// the template.
func (t *Tables) checkControlPlaneSpec(w *resource.Write[*machinev1.ControlPlaneMachineSet]) error {
	return checkSpec(t, w, templatePath+".spec.providerSpec.value",
		func(s *machinev1.ControlPlaneMachineSet) *structpb.Struct {
			template := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
			var fields map[string]string
			if t.DomainFields != nil {
				fields, _ = t.DomainFields(template.GetSpec().GetProviderSpec().GetValue())
			}
			return plan.WithFirstDomain(template, fields)
		})
}

// GivenSpecFaults returns the values in a provider spec of a plan request that its platform refuses, if it is one of
// OpenShift's documents. Fields that must be given to create a machine may be missing. path is that of the spec.
func GivenSpecFaults(spec *machinev1.ProviderSpec, path string) []object.Fault {
	bad := platform.Check(spec.GetValue()).Faults
	for i := range bad {
		bad[i].Path = path + "." + bad[i].Path
	}
	return bad
}

// GivenControlPlaneFaults returns what is wrong with the provider spec and the failure domains of a set in a plan
// request. path is that of the set.
func GivenControlPlaneFaults(s *machinev1.ControlPlaneMachineSet, path string) []object.Fault {
	template := s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo()
	domains := path + "." + templatePath + ".failureDomains"
	bad := GivenSpecFaults(template.GetSpec().GetProviderSpec(), path+"."+templatePath+".spec.providerSpec.value")
	bad = append(bad, plan.DomainFaults(template.GetFailureDomains(), domains)...)
	if len(bad) == 0 {
		bad = plan.SpecDomainFaults(template, domains)
	}
	return bad
}
