package controller

import (
	"context"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answering is a scheduler that answers everything with one code.
type answering struct {
	schedulingv1.PodServiceClient
	code codes.Code
}

func (a answering) DeletePod(context.Context, *schedulingv1.DeletePodRequest, ...grpc.CallOption) (*schedulingv1.Pod,
	error,
) {
	return nil, status.Error(a.code, "")
}

func (a answering) EvictPod(context.Context, *schedulingv1.EvictPodRequest, ...grpc.CallOption) (
	*schedulingv1.EvictPodResponse, error,
) {
	return nil, status.Error(a.code, "")
}

// TestWhatCountsAsGone distinguishes a pod that is gone from one that changed all the time while its eviction was
// decided: that one is still there.
func TestWhatCountsAsGone(t *testing.T) {
	for _, tc := range []struct {
		code            codes.Code
		deleted, evicts codes.Code
	}{
		{codes.OK, codes.OK, codes.OK},
		{codes.NotFound, codes.OK, codes.OK},
		{codes.Aborted, codes.OK, codes.Aborted},
		{codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted},
		{codes.Unavailable, codes.Unavailable, codes.Unavailable},
	} {
		s := Scheduler{client: answering{code: tc.code}}
		if got := status.Code(s.Delete(t.Context(), &schedulingv1.Pod{})); got != tc.deleted {
			t.Errorf("Delete that is answered by %v: %v, want %v", tc.code, got, tc.deleted)
		}
		if got := status.Code(s.Evict(t.Context(), &schedulingv1.Pod{}, nil)); got != tc.evicts {
			t.Errorf("Evict that is answered by %v: %v, want %v", tc.code, got, tc.evicts)
		}
	}
}
