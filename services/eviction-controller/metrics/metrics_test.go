package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	nodev1 "github.com/windlass-dev/windlass/gen/windlass/node/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/eviction-controller/metrics"
)

func node(name, ready string, more ...*nodev1.NodeCondition) *nodev1.Node {
	return &nodev1.Node{
		Metadata: &metav1.ObjectMeta{Name: name}, Spec: &nodev1.NodeSpec{},
		Status: &nodev1.NodeStatus{Conditions: append(more, &nodev1.NodeCondition{Type: "Ready", Status: ready})},
	}
}

func TestNodesAndDrains(t *testing.T) {
	full := node("full", "True", &nodev1.NodeCondition{Type: "DiskPressure", Status: "True"},
		&nodev1.NodeCondition{Type: "MemoryPressure", Status: "False"})
	full.Spec.Unschedulable = proto.Bool(true)
	lost, held := node("lost", "Unknown"), node("held", "Unknown")
	lost.Status.Evictions = &nodev1.NodeEvictions{Zone: "east/a", ZoneState: "Normal", NodesPerSecond: 0.1}
	held.Status.Evictions = &nodev1.NodeEvictions{Zone: "east/b", ZoneState: "PartialDisruption"}
	nodes, drains := resource.NewCache[*nodev1.Node](), resource.NewCache[*nodev1.Drain]()
	nodes.Replace([]*nodev1.Node{full, lost, held}, 1)
	drains.Replace([]*nodev1.Drain{
		{Metadata: &metav1.ObjectMeta{Name: "d1"}, Spec: &nodev1.DrainSpec{NodeName: "full"}},
		{
			Metadata: &metav1.ObjectMeta{Name: "d2"}, Spec: &nodev1.DrainSpec{NodeName: "lost"},
			Status: &nodev1.DrainStatus{Phase: proto.String("Draining")},
		},
	}, 1)
	want := `
# HELP windlass_drain_phase 1 for the present phase of each drain.
# TYPE windlass_drain_phase gauge
windlass_drain_phase{drain="d1",node="full",phase="Pending"} 1
windlass_drain_phase{drain="d2",node="lost",phase="Draining"} 1
# HELP windlass_node_evictions_stopped 1 if no pod is evicted because a node is not ready, since too many nodes of its zone are lost; absent for a ready node.
# TYPE windlass_node_evictions_stopped gauge
windlass_node_evictions_stopped{node="held",zone="east/b"} 1
windlass_node_evictions_stopped{node="lost",zone="east/a"} 0
# HELP windlass_node_pressure 1 while a node runs short, by condition: MemoryPressure, DiskPressure, PIDPressure or NetworkUnavailable.
# TYPE windlass_node_pressure gauge
windlass_node_pressure{condition="DiskPressure",node="full"} 1
# HELP windlass_node_ready 1 if a node is ready, 0 if it is not or its agent is silent.
# TYPE windlass_node_ready gauge
windlass_node_ready{node="full"} 1
windlass_node_ready{node="held"} 0
windlass_node_ready{node="lost"} 0
# HELP windlass_node_unschedulable 1 if no new pod is placed on a node, as during a drain.
# TYPE windlass_node_unschedulable gauge
windlass_node_unschedulable{node="full"} 1
windlass_node_unschedulable{node="held"} 0
windlass_node_unschedulable{node="lost"} 0
`
	if err := testutil.CollectAndCompare(metrics.New(nodes, drains), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
