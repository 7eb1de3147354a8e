package kinds

import (
	"context"
	"fmt"
	"slices"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/identity"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"
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

// DeleteAndShrink deletes a machine and lowers the replicas of its set by one, in one transaction. seen is the revision
// of the set that the decision was made for; empty means any.
func (t *Tables) DeleteAndShrink(ctx context.Context, machine object.Key, pre *metav1.Preconditions, seen string,
	opts resource.WriteOptions,
) (*machinev1.Machine, *machinev1.MachineSet, error) {
	return resource.DeleteAndModify(ctx, t.Machines, machine, pre, t.Sets,
		func(m *machinev1.Machine) (object.Key, error) {
			name, fault := plan.SetOf(m)
			if fault != "" {
				return object.Key{}, rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION,
					"machine/"+machine.Name, fault)
			}
			return object.Key{Namespace: machine.Namespace, Name: name}, t.mayShrink(ctx, machine.Namespace, name)
		},
		func(m *machinev1.Machine, s *machinev1.MachineSet) error {
			if seen != "" && seen != s.GetMetadata().GetResourceVersion() {
				return rpcerr.Conflict("MachineSet", s.GetMetadata().GetName(), "it changed since the decision")
			}
			if fault := plan.Shrink(m, s); fault != "" {
				return rpcerr.Precondition(metav1.ErrorReason_ERROR_REASON_FAILED_PRECONDITION,
					"machineset/"+s.GetMetadata().GetName(), fault)
			}
			return nil
		}, opts)
}

// mayShrink returns an error if the caller of a request may not update a set.
func (t *Tables) mayShrink(ctx context.Context, namespace, name string) error {
	caller, called := identity.CallerFrom(ctx)
	if !called {
		return nil
	}
	if ok, why := t.policy.Allowed(caller, identity.Attributes{
		Verb: "update", Group: "machine.openshift.io", Resource: "machinesets", Namespace: namespace, Name: name,
	}); !ok {
		return rpcerr.Forbidden(why)
	}
	return nil
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
