package kinds_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
)

// BenchmarkMemoryOfAPod reports the heap of a cache of 100,000 pods, per pod: running pods of 2,000 deployments with
// one container and the tolerations of the documents, found by their node. Ten pods start in a second.
func BenchmarkMemoryOfAPod(b *testing.B) {
	const pods, nodes = 100_000, 5_000
	for b.Loop() {
		before := heapInUse()
		cache := resource.NewCache[*schedulingv1.Pod]()
		cache.Index("spec.nodeName", func(p *schedulingv1.Pod) []string { return []string{p.GetSpec().GetNodeName()} })
		list := make([]*schedulingv1.Pod, pods)
		for i := range list {
			record, err := proto.Marshal(runningPod(i, i%nodes))
			if err != nil {
				b.Fatal(err)
			}
			list[i] = &schedulingv1.Pod{}
			if err := proto.Unmarshal(record, list[i]); err != nil { // as a table reads it: no two pods share strings
				b.Fatal(err)
			}
		}
		cache.Share(list...)
		cache.Replace(list, 1)
		list = nil
		b.ReportMetric(float64(heapInUse()-before)/pods, "B/pod")
		runtime.KeepAlive(cache)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func runningPod(i, node int) *schedulingv1.Pod {
	deployment := i / 50
	now := timestamppb.New(time.Unix(1_790_000_000+int64(i/10), 0))
	owner := &schedulingv1.ReplicaSet{Metadata: &metav1.ObjectMeta{
		Name: fmt.Sprintf("web-%d-6c9cddbc59", deployment), Uid: fmt.Sprintf("%036d", deployment),
	}}
	status := &schedulingv1.PodStatus{
		Phase: proto.String("Running"), HostIp: "10.0.0.1", PodIp: "10.0.0.1", StartTime: now, QosClass: "Burstable",
		ContainerStatuses: []*schedulingv1.ContainerStatus{{
			Name: "web", Ready: proto.Bool(true), RestartCount: proto.Int32(0), Started: proto.Bool(true), Image: "hello",
			ContainerId: fmt.Sprintf("process://%036d", i),
			State: &schedulingv1.ContainerState{
				Running: &schedulingv1.ContainerStateRunning{StartedAt: now},
			},
		}},
	}
	for _, typ := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		status.Conditions = append(status.Conditions, &schedulingv1.PodCondition{
			Type: typ, Status: "True", LastTransitionTime: now,
		})
	}
	return &schedulingv1.Pod{
		ApiVersion: "v1", Kind: "Pod",
		Metadata: &metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("web-6c9cddbc59-%06d", i), Uid: fmt.Sprintf("%036d", i),
			Labels:            map[string]string{"app": fmt.Sprintf("web-%d", deployment), "pod-template-hash": "6c9cddbc59"},
			CreationTimestamp: now, ResourceVersion: "123456", Generation: 1,
			OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(owner)},
		},
		Spec: &schedulingv1.PodSpec{
			NodeName: fmt.Sprintf("node-%04d", node), SchedulerName: "default-scheduler", RestartPolicy: "Always",
			Containers: []*schedulingv1.Container{{
				Name: "web", Image: "hello", Command: []string{"hello"},
				Resources: &schedulingv1.ResourceRequirements{Requests: map[string]*structpb.Value{
					"cpu": structpb.NewStringValue("10m"), "memory": structpb.NewStringValue("16Mi"),
				}},
			}},
			Tolerations: []*schedulingv1.Toleration{
				{
					Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute",
					TolerationSeconds: proto.Int32(300),
				},
				{
					Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute",
					TolerationSeconds: proto.Int32(300),
				},
			},
		},
		Status: status,
	}
}
