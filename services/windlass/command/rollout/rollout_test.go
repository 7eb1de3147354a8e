package rollout

import (
	"encoding/json"
	"testing"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/manifest"
	"github.com/windlass-dev/windlass/kit/object"
)

// A restart marks the template of a kind at the path that its controller compares.
func TestARestartMarksTheTemplate(t *testing.T) {
	deployment, set := &schedulingv1.Deployment{}, &machinev1.ControlPlaneMachineSet{}
	for kind, obj := range map[string]object.Object{"Deployment": deployment, controlPlane: set} {
		doc, err := json.Marshal(restartPatch(kind, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)))
		if err != nil {
			t.Fatal(err)
		}
		if err := manifest.Decode(doc, obj); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	for kind, annotations := range map[string]map[string]string{
		"Deployment": deployment.GetSpec().GetTemplate().GetMetadata().GetAnnotations(),
		controlPlane: set.GetSpec().GetTemplate().GetMachinesV1Beta1MachineOpenshiftIo().GetMetadata().GetAnnotations(),
	} {
		if got := annotations["kubectl.kubernetes.io/restartedAt"]; got != "2026-01-01T12:00:00Z" {
			t.Errorf("%s: annotations %v", kind, annotations)
		}
	}
}
