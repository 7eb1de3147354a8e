package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/machine-api/metrics"
)

func TestMachines(t *testing.T) {
	c := resource.NewCache[*machinev1.Machine]()
	c.Replace([]*machinev1.Machine{
		{Metadata: &metav1.ObjectMeta{Namespace: "windlass", Name: "new"}},
		{
			Metadata: &metav1.ObjectMeta{Namespace: "windlass", Name: "old"},
			Status: &machinev1.MachineStatus{
				Phase:        proto.String("Deleting"),
				StepFailures: []*machinev1.StepFailure{{Step: "DeleteInstance", Since: &timestamppb.Timestamp{Seconds: 100}}},
			},
		},
	}, 1)
	want := `
# HELP windlass_machine_phase 1 for the present phase of each machine; Pending before the first.
# TYPE windlass_machine_phase gauge
windlass_machine_phase{machine="new",namespace="windlass",phase="Pending"} 1
windlass_machine_phase{machine="old",namespace="windlass",phase="Deleting"} 1
# HELP windlass_machine_step_failing_since_timestamp_seconds Since when a step of a machine's life fails, in seconds since 1970; absent unless it fails.
# TYPE windlass_machine_step_failing_since_timestamp_seconds gauge
windlass_machine_step_failing_since_timestamp_seconds{machine="old",namespace="windlass",step="DeleteInstance"} 100
`
	if err := testutil.CollectAndCompare(metrics.New(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
