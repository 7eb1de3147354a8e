package kinds

import (
	"fmt"
	"slices"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
)

func (t *Tables) defaultSet(s *machinev1.MachineSet) {
	if s.Spec == nil {
		s.Spec = &machinev1.MachineSetSpec{}
	}
	if s.Spec.Replicas == nil {
		s.Spec.Replicas = proto.Int32(1)
	}
}

// validateSet refuses a selector that does not match the template. What is missing altogether is no error here: the
// documents show sets without a selector or a template, and the set's status says what is missing.
func validateSet(s *machinev1.MachineSet) []object.Fault {
	bad := selectorFaults(s.GetSpec().GetSelector(), s.GetSpec().GetTemplate() != nil,
		s.GetSpec().GetTemplate().GetMetadata().GetLabels(), "spec.template.metadata.labels")
	template := s.GetSpec().GetTemplate()
	role := plan.Role(&machinev1.Machine{Metadata: &metav1.ObjectMeta{Labels: template.GetMetadata().GetLabels()}})
	bad = append(bad, plan.NodeRoleFaults(role, template.GetSpec().GetMetadata().GetLabels(),
		"spec.template.spec.metadata.labels")...)
	bad = append(bad, plan.TimeoutFaults(template.GetSpec(), "spec.template.spec.")...)
	return append(bad, plan.DuplicateHooks(template.GetSpec().GetLifecycleHooks(), "spec.template.")...)
}

func selectorFaults(raw *metav1.LabelSelector, hasTemplate bool, template map[string]string,
	path string,
) []object.Fault {
	sel, bad := object.LabelSelector(raw, "spec.selector")
	if len(bad) > 0 || !hasTemplate || raw == nil || sel.String() == labels.Nothing().String() {
		return bad
	}
	if !sel.Matches(labels.Set(template)) {
		return []object.Fault{{Path: path, Description: fmt.Sprintf("must match spec.selector (%s)", sel)}}
	}
	return nil
}

func validateSetUpdate(old, s *machinev1.MachineSet) []object.Fault {
	return immutableSelector(old.GetSpec().GetSelector(), s.GetSpec().GetSelector())
}

func immutableSelector(old, now *metav1.LabelSelector) []object.Fault {
	if old == nil || proto.Equal(old, now) {
		return nil // one that was never given may be given later
	}
	return []object.Fault{{Path: "spec.selector", Description: "cannot be changed"}}
}

// pauseSet holds the deletion of a set for which another API is authoritative, until machine-api is again.
func pauseSet(w *resource.Write[*machinev1.MachineSet]) error {
	if w.Deletes() {
		return nil
	}
	m := w.New.GetMetadata()
	held := slices.Contains(m.GetFinalizers(), plan.FinalizerPaused)
	switch paused := plan.OtherAPI(w.New.GetSpec()); {
	case paused && !held && !object.Deleting(w.New):
		m.Finalizers = append(m.Finalizers, plan.FinalizerPaused)
	case !paused && held:
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == plan.FinalizerPaused })
	}
	return nil
}
