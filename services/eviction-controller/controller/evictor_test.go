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

func (a answering) EvictPod(context.Context, *schedulingv1.EvictPodRequest, ...grpc.CallOption) (
	*schedulingv1.EvictPodResponse, error,
) {
	return nil, status.Error(a.code, "")
}

// TestWhatCountsAsGone distinguishes a pod that is gone from one that changed all the time while its eviction was
// decided: that one is still there.
func TestWhatCountsAsGone(t *testing.T) {
	for _, tc := range []struct {
		code, want codes.Code
	}{
		{codes.OK, codes.OK},
		{codes.NotFound, codes.OK},
		{codes.Aborted, codes.Aborted},
		{codes.ResourceExhausted, codes.ResourceExhausted},
		{codes.Unavailable, codes.Unavailable},
	} {
		s := Scheduler{client: answering{code: tc.code}}
		if got := status.Code(s.Delete(t.Context(), &schedulingv1.Pod{})); got != tc.want {
			t.Errorf("Delete that is answered by %v: %v, want %v", tc.code, got, tc.want)
		}
		if got := status.Code(s.Evict(t.Context(), &schedulingv1.Pod{}, nil, false)); got != tc.want {
			t.Errorf("Evict that is answered by %v: %v, want %v", tc.code, got, tc.want)
		}
	}
}
