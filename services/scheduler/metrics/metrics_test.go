package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/services/scheduler/metrics"
)

func pod(name string, created int64, change func(*schedulingv1.Pod)) *schedulingv1.Pod {
	p := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: &timestamppb.Timestamp{Seconds: created},
		},
		Spec: &schedulingv1.PodSpec{}, Status: &schedulingv1.PodStatus{Phase: proto.String("Pending")},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestPods(t *testing.T) {
	gates := []*structpb.Struct{{}}
	c := resource.NewCache[*schedulingv1.Pod]()
	c.Replace([]*schedulingv1.Pod{
		pod("placed", 1, func(p *schedulingv1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", proto.String("Running") }),
		pod("gated", 2, func(p *schedulingv1.Pod) { p.Spec.SchedulingGates = gates }),
		pod("ended", 3, func(p *schedulingv1.Pod) { p.Status.Phase = proto.String("Failed") }),
		pod("deleted", 4, func(p *schedulingv1.Pod) { p.Metadata.DeletionTimestamp = timestamppb.Now() }),
		pod("late", 9, func(p *schedulingv1.Pod) { p.Status = nil }),
		pod("early", 8, nil),
	}, 1)
	want := `
# HELP windlass_oldest_unscheduled_pod_timestamp_seconds When the oldest of the unscheduled pods was created, in seconds since 1970; absent if there are none.
# TYPE windlass_oldest_unscheduled_pod_timestamp_seconds gauge
windlass_oldest_unscheduled_pod_timestamp_seconds{namespace="shop"} 8
# HELP windlass_pods Number of pods, by phase.
# TYPE windlass_pods gauge
windlass_pods{namespace="shop",phase="Failed"} 1
windlass_pods{namespace="shop",phase="Pending"} 4
windlass_pods{namespace="shop",phase="Running"} 1
# HELP windlass_unscheduled_pods Number of pods that need a node and have none; those with scheduling gates are left out.
# TYPE windlass_unscheduled_pods gauge
windlass_unscheduled_pods{namespace="shop"} 2
`
	if err := testutil.CollectAndCompare(metrics.New(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
