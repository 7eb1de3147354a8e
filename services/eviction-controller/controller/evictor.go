package controller

import (
	"context"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// schedulerPatience is the timeout of one request to the scheduler, which answers from memory or after one write.
const schedulerPatience = 3 * time.Second

// Evictor is the part of the scheduler, the owner of pods, that evictions need.
type Evictor interface {
	// Delete requests the deletion of a pod that does not tolerate a taint of its node. It is no error if the pod is
	// already gone. An error with code ABORTED means that the pod changed too often, or was replaced by one of the same
	// name.
	Delete(ctx context.Context, pod *schedulingv1.Pod) error
	// Evict does the same, for another reason, if the disruption budgets allow it. grace is in seconds; nil means the
	// pod's own grace period. force removes the object at once if grace is 0.
	Evict(ctx context.Context, pod *schedulingv1.Pod, grace *int32, force bool) error
	// On returns the current pods of a node. With a revision of the node, no pod is bound to it later by a decision that
	// was made with an earlier one.
	On(ctx context.Context, node, revision string) ([]*schedulingv1.Pod, error)
}

// Scheduler implements Evictor with the scheduler's API.
type Scheduler struct{ client schedulingv1.PodServiceClient }

// NewScheduler returns a client of the scheduler behind a connection.
func NewScheduler(conn grpc.ClientConnInterface) Scheduler {
	return Scheduler{client: schedulingv1.NewPodServiceClient(conn)}
}

// Delete implements Evictor.
func (s Scheduler) Delete(ctx context.Context, pod *schedulingv1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	_, err := s.client.EvictPod(ctx, &schedulingv1.EvictPodRequest{
		Namespace: pod.GetMetadata().GetNamespace(), Name: pod.GetMetadata().GetName(), Preconditions: this(pod),
		Cause: placement.EvictedByTaint,
	})
	return except(err, codes.NotFound)
}

// Evict implements Evictor.
func (s Scheduler) Evict(ctx context.Context, pod *schedulingv1.Pod, grace *int32, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	_, err := s.client.EvictPod(ctx, &schedulingv1.EvictPodRequest{
		Namespace: pod.GetMetadata().GetNamespace(), Name: pod.GetMetadata().GetName(), Preconditions: this(pod),
		GracePeriodSeconds: grace, Force: force,
	})
	return except(err, codes.NotFound)
}

// On implements Evictor.
func (s Scheduler) On(ctx context.Context, node, revision string) ([]*schedulingv1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	if revision != "" {
		if _, err := s.client.SettleBindings(ctx, &schedulingv1.SettleBindingsRequest{
			NodeName: node, ResourceVersion: revision,
		}); err != nil {
			return nil, err
		}
	}
	list, err := s.client.ListPods(ctx, &schedulingv1.ListPodsRequest{FieldSelector: "spec.nodeName=" + node})
	return list.GetItems(), err
}

func this(pod *schedulingv1.Pod) *metav1.Preconditions {
	return &metav1.Preconditions{Uid: pod.GetMetadata().GetUid()}
}

// except returns err unless it means that the pod is gone: then the watch reports the deletion, too, and the loop runs
// again.
func except(err error, gone ...codes.Code) error {
	if slices.Contains(gone, status.Code(err)) {
		return nil
	}
	return err
}
