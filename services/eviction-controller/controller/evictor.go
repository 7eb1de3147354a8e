package controller

import (
	"context"
	"slices"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// schedulerPatience bounds one question to the scheduler: it answers from memory or after one write.
const schedulerPatience = 3 * time.Second

// Evictor is the owner of pods.
type Evictor interface {
	// Delete asks for the deletion of a pod; one that is gone already, or is another one of the same name, is no error.
	Delete(ctx context.Context, pod *schedulingv1.Pod) error
	// Evict does the same if the disruption budgets allow it. An error with code ABORTED means that the pod changed too
	// fast, or is another one of the same name. grace is how many seconds the pod gets to end; nil means what it says
	// itself.
	Evict(ctx context.Context, pod *schedulingv1.Pod, grace *int32) error
	// On returns the pods of a node as they are now.
	On(ctx context.Context, node string) ([]*schedulingv1.Pod, error)
}

// Scheduler asks the scheduler, which owns the pods.
type Scheduler struct{ client schedulingv1.PodServiceClient }

// NewScheduler returns the scheduler behind a connection.
func NewScheduler(conn grpc.ClientConnInterface) Scheduler {
	return Scheduler{client: schedulingv1.NewPodServiceClient(conn)}
}

// Delete implements Evictor.
func (s Scheduler) Delete(ctx context.Context, pod *schedulingv1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	_, err := s.client.DeletePod(ctx, &schedulingv1.DeletePodRequest{
		Namespace: pod.GetMetadata().GetNamespace(), Name: pod.GetMetadata().GetName(), Preconditions: this(pod),
	})
	return except(err, codes.NotFound, codes.Aborted) // the uid alone was demanded: it is another pod's
}

// Evict implements Evictor.
func (s Scheduler) Evict(ctx context.Context, pod *schedulingv1.Pod, grace *int32) error {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	_, err := s.client.EvictPod(ctx, &schedulingv1.EvictPodRequest{
		Namespace: pod.GetMetadata().GetNamespace(), Name: pod.GetMetadata().GetName(), Preconditions: this(pod),
		GracePeriodSeconds: grace,
	})
	return except(err, codes.NotFound)
}

// On implements Evictor.
func (s Scheduler) On(ctx context.Context, node string) ([]*schedulingv1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	list, err := s.client.ListPods(ctx, &schedulingv1.ListPodsRequest{FieldSelector: "spec.nodeName=" + node})
	return list.GetItems(), err
}

func this(pod *schedulingv1.Pod) *metav1.Preconditions {
	return &metav1.Preconditions{Uid: pod.GetMetadata().GetUid()}
}

// except returns err unless it says that the pod is gone: the watch sees that, too, and brings the loop back.
func except(err error, gone ...codes.Code) error {
	if slices.Contains(gone, status.Code(err)) {
		return nil
	}
	return err
}
