package kinds

import (
	"context"
	"fmt"
	"slices"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
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

// validateSet refuses a selector that does not match the template. What is missing altogether is no error here: the documents show sets
// without a selector or a template, and the set's status says what is missing.
func validateSet(s *machinev1.MachineSet) []rpcerr.Field {
	bad := selectorFaults(s.GetSpec().GetSelector(), s.GetSpec().GetTemplate() != nil, s.GetSpec().GetTemplate().GetMetadata().GetLabels(), "spec.template.metadata.labels")
	template := s.GetSpec().GetTemplate()
	role := plan.Role(&machinev1.Machine{Metadata: &metav1.ObjectMeta{Labels: template.GetMetadata().GetLabels()}})
	bad = append(bad, fields(plan.NodeRoleFaults(role, template.GetSpec().GetMetadata().GetLabels(), "spec.template.spec.metadata.labels"))...)
	return append(bad, fields(plan.DuplicateHooks(template.GetSpec().GetLifecycleHooks(), "spec.template."))...)
}

func selectorFaults(raw *metav1.LabelSelector, hasTemplate bool, template map[string]string, path string) []rpcerr.Field {
	sel, bad := resource.LabelSelector(raw, "spec.selector")
	if len(bad) > 0 || !hasTemplate || raw == nil || sel.String() == labels.Nothing().String() {
		return bad
	}
	if !sel.Matches(labels.Set(template)) {
		return []rpcerr.Field{{Path: path, Description: fmt.Sprintf("must match spec.selector (%s)", sel)}}
	}
	return nil
}

func validateSetUpdate(old, s *machinev1.MachineSet) []rpcerr.Field {
	return immutableSelector(old.GetSpec().GetSelector(), s.GetSpec().GetSelector())
}

func immutableSelector(old, now *metav1.LabelSelector) []rpcerr.Field {
	if old == nil || proto.Equal(old, now) {
		return nil // one that was never given may be given later
	}
	return []rpcerr.Field{{Path: "spec.selector", Description: "cannot be changed"}}
}

type dryRunKey struct{}

// WithDryRun marks the context of a deletion that shall store nothing.
func WithDryRun(ctx context.Context) context.Context {
	return context.WithValue(ctx, dryRunKey{}, true)
}

// admitSet notes on a set that is about to be deleted whether its machines shall stay: a finalizer holds the set until its
// controller has let them go. Its write makes the deletion look at the set once more.
func (t *Tables) admitSet(ctx context.Context, old, changed *machinev1.MachineSet) error {
	if old == nil || changed != nil || resource.Deleting(old) || ctx.Value(dryRunKey{}) != nil {
		return nil
	}
	orphan := resource.Propagation(ctx) == "Orphan"
	if orphan == slices.Contains(old.GetMetadata().GetFinalizers(), plan.FinalizerOrphan) {
		return nil
	}
	_, err := t.Sets.Modify(ctx, resource.KeyOf(old), func(s *machinev1.MachineSet) error {
		m := s.GetMetadata()
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == plan.FinalizerOrphan })
		if orphan {
			m.Finalizers = append(m.Finalizers, plan.FinalizerOrphan)
		}
		return nil
	})
	return err
}
