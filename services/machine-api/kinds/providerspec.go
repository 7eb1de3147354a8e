package kinds

import (
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// checkSpec refuses a provider spec that a user creates or changes and its provider refuses. path is that of the spec.
// The service's own writes are not checked: their specs come from templates that were.
func checkSpec[T object.Object](t *Tables, w *resource.Write[T], path string,
	of func(T) *machinev1.ProviderSpec,
) error {
	if t.CheckSpec == nil || w.Own || w.Deletes() || object.Deleting(w.New) {
		return nil
	}
	var was *structpb.Struct
	if !w.Creates() {
		was = of(w.Old).GetValue()
	}
	spec := of(w.New).GetValue()
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
	return checkSpec(t, w, "spec.template.spec.providerSpec.value",
		func(s *machinev1.MachineSet) *machinev1.ProviderSpec {
			return s.GetSpec().GetTemplate().GetSpec().GetProviderSpec()
		})
}

func (t *Tables) checkControlPlaneSpec(w *resource.Write[*machinev1.ControlPlaneMachineSet]) error {
	return checkSpec(t, w, templatePath+".spec.providerSpec.value",
		func(s *machinev1.ControlPlaneMachineSet) *machinev1.ProviderSpec {
			return s.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo().GetSpec().GetProviderSpec()
		})
}
