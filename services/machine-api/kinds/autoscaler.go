package kinds

import (
	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/plan"
)

// admitClusterAutoscaler warns about fields that are not in force.
func admitClusterAutoscaler(w *resource.Write[*machinev1.ClusterAutoscaler]) error {
	if w.Own || w.Deletes() {
		return nil
	}
	for _, text := range plan.ClusterAutoscalerWarnings(w.New) {
		w.Warn(text)
	}
	return nil
}
