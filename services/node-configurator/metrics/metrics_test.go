package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/windlass-dev/windlass/gen/windlass/config/v1"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/node-configurator/metrics"
)

func TestPools(t *testing.T) {
	c := resource.NewCache[*configv1.MachineConfigPool]()
	c.Replace([]*configv1.MachineConfigPool{{
		Metadata: &metav1.ObjectMeta{Name: "worker"},
		Spec:     &configv1.MachineConfigPoolSpec{Paused: proto.Bool(true)},
		Status: &configv1.MachineConfigPoolStatus{
			MachineCount: proto.Int32(5), UpdatedMachineCount: proto.Int32(4), ReadyMachineCount: proto.Int32(3),
			UnavailableMachineCount: proto.Int32(2), DegradedMachineCount: proto.Int32(1),
			Conditions: []*metav1.Condition{{Type: "Degraded", Status: "True"}, {Type: "Updated", Status: "Unknown"}},
		},
	}, {
		Metadata: &metav1.ObjectMeta{Name: "infra"},
		Status:   &configv1.MachineConfigPoolStatus{Conditions: []*metav1.Condition{{Type: "Paused", Status: "True"}}},
	}}, 1)
	want := `
# HELP windlass_pool_condition Conditions of pools: 1 for True, 0 for anything else.
# TYPE windlass_pool_condition gauge
windlass_pool_condition{condition="Degraded",pool="worker"} 1
windlass_pool_condition{condition="Paused",pool="infra"} 1
windlass_pool_condition{condition="Updated",pool="worker"} 0
# HELP windlass_pool_machines Number of nodes of a pool, by state: total, updated (they have its configuration), ready (and are ready), unavailable, degraded (their configuration failed).
# TYPE windlass_pool_machines gauge
windlass_pool_machines{pool="infra",state="degraded"} 0
windlass_pool_machines{pool="infra",state="ready"} 0
windlass_pool_machines{pool="infra",state="total"} 0
windlass_pool_machines{pool="infra",state="unavailable"} 0
windlass_pool_machines{pool="infra",state="updated"} 0
windlass_pool_machines{pool="worker",state="degraded"} 1
windlass_pool_machines{pool="worker",state="ready"} 3
windlass_pool_machines{pool="worker",state="total"} 5
windlass_pool_machines{pool="worker",state="unavailable"} 2
windlass_pool_machines{pool="worker",state="updated"} 4
# HELP windlass_pool_paused 1 if a pool is paused, so that it starts no further node.
# TYPE windlass_pool_paused gauge
windlass_pool_paused{pool="infra"} 1
windlass_pool_paused{pool="worker"} 1
`
	if err := testutil.CollectAndCompare(metrics.New(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
