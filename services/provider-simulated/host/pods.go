package host

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// runPods follows the pods of the node: each one is reported as running, and as gone once it is deleted.
func (h *host) runPods(ctx context.Context, pods schedulingv1.PodAgentServiceClient) error {
	stream, err := pods.WatchOwnPods(ctx, &schedulingv1.WatchOwnPodsRequest{NodeName: h.joined.GetNodeName()})
	if err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, e := range r.GetEvents() {
			if e.GetType() == "DELETED" {
				continue
			}
			if err := h.settle(ctx, pods, e.GetObject()); err != nil && !gone(err) {
				return err
			}
		}
	}
}

// settle reports what is due of one pod.
func (h *host) settle(ctx context.Context, pods schedulingv1.PodAgentServiceClient, p *schedulingv1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	m := p.GetMetadata()
	switch phase := p.GetStatus().GetPhase(); {
	case m.GetDeletionTimestamp() != nil:
		_, err := pods.ConfirmPodGone(ctx, &schedulingv1.ConfirmPodGoneRequest{
			NodeName: h.joined.GetNodeName(), Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		})
		return err
	case phase == "" || phase == "Pending":
		_, err := pods.ReportPod(ctx, &schedulingv1.ReportPodRequest{
			NodeName: h.joined.GetNodeName(), Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
			Status: h.running(p),
		})
		return err
	}
	return nil
}

// running returns the status of a pod that runs.
func (h *host) running(p *schedulingv1.Pod) *schedulingv1.PodStatus {
	now, phase, yes := timestamppb.Now(), "Running", true
	out := &schedulingv1.PodStatus{
		Phase: &phase, StartTime: now, HostIp: h.joined.GetAddress(), PodIp: h.joined.GetAddress(),
		QosClass: p.GetStatus().GetQosClass(),
	}
	for _, kind := range []string{"Initialized", "ContainersReady", "Ready"} {
		out.Conditions = append(out.Conditions, &schedulingv1.PodCondition{
			Type: kind, Status: "True",
			LastTransitionTime: now,
		})
	}
	for _, c := range p.GetSpec().GetContainers() {
		out.ContainerStatuses = append(out.ContainerStatuses, &schedulingv1.ContainerStatus{
			Name: c.GetName(), Image: c.GetImage(), Ready: &yes, Started: &yes,
			State: &schedulingv1.ContainerState{Running: &schedulingv1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return out
}

// gone reports whether an answer says that the cluster does not have the pod any more, or has another one of its name.
func gone(err error) bool {
	st := status.Convert(err)
	return st.Code() == codes.NotFound || st.Code() == codes.Aborted && strings.Contains(st.Message(), "uid")
}
