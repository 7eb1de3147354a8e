package controller

import (
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
)

// TestThePodsOfAJobThatAreGoneAreCountedOnce has pods be counted before and after they are gone, in any order.
func TestThePodsOfAJobThatAreGoneAreCountedOnce(t *testing.T) {
	pod := func(uid, phase string) *schedulingv1.Pod {
		return &schedulingv1.Pod{
			Metadata: &metav1.ObjectMeta{Uid: uid, OwnerReferences: []*metav1.OwnerReference{
				{Kind: "Job", Uid: "job", Controller: proto.Bool(true)},
			}},
			Status: &schedulingv1.PodStatus{Phase: proto.String(phase)},
		}
	}
	var d departed
	counted := pod("counted", "Failed")
	d.gone(counted)
	if got := d.of("job"); len(got) > 0 {
		t.Errorf("while another process leads, %v is kept", got)
	}
	d.reset(true)
	d.count("job", []*schedulingv1.Pod{counted})
	d.gone(counted)
	d.gone(pod("runs", "Running"))
	if got := d.of("job"); len(got) > 0 {
		t.Errorf("of a pod that is counted and one that has not ended, %v is kept", got)
	}
	missed := pod("missed", "Succeeded")
	d.gone(missed)
	if got := d.of("job"); len(got) != 1 || got[0] != missed {
		t.Errorf("a pod that was gone too soon: %v", got)
	}
	d.count("job", d.of("job"))
	if got := d.of("job"); len(got) > 0 {
		t.Errorf("once it is counted: %v", got)
	}
	d.gone(missed)
	d.forget("job")
	if got := d.of("job"); len(got) > 0 || len(d.counted) > 0 {
		t.Errorf("once the job is gone: %v, %v", got, d.counted)
	}
}
