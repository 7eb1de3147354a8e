package kinds

import (
	"cmp"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/rpcerr"

	"github.com/windlass-dev/windlass/services/scheduler/placement/plan"
)

func defaultPriorityClass(c *schedulingv1.PriorityClass) {
	c.PreemptionPolicy = cmp.Or(c.PreemptionPolicy, plan.PreemptLowerPriority)
}

// validatePriorityClassUpdate keeps what pods of the class have taken over.
func validatePriorityClassUpdate(old, c *schedulingv1.PriorityClass) (fields []object.Fault) {
	if old.GetValue() != c.GetValue() {
		fields = append(fields, object.Fault{Path: "value", Description: "cannot be changed"})
	}
	if old.GetPreemptionPolicy() != c.GetPreemptionPolicy() {
		fields = append(fields, object.Fault{Path: "preemptionPolicy", Description: "cannot be changed"})
	}
	return fields
}

// admitPriorityClass lets one class be the default.
func (t *Tables) admitPriorityClass(w *resource.Write[*schedulingv1.PriorityClass]) error {
	if w.Deletes() {
		return nil
	}
	if fields := plan.CheckPriorityClass(w.New, slices.Collect(t.PriorityClasses.Objects())); len(fields) > 0 {
		return rpcerr.Invalid(fields...)
	}
	return nil
}
