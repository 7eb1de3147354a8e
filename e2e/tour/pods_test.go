package main

import (
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func shopPod(uid, ready string, leaves int64) *schedulingv1.Pod {
	m := &metav1.ObjectMeta{Name: uid, Uid: uid, Labels: map[string]string{"app": "shop"}}
	if leaves > 0 {
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &timestamppb.Timestamp{Seconds: leaves}, proto.Int32(2)
	}
	return &schedulingv1.Pod{Metadata: m, Status: &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{
		{Type: "Ready", Status: ready},
	}}}
}

func TestPodsAreCountedAfterAllThatCameAtOneMoment(t *testing.T) {
	w := &podWatch{
		pods: map[string]*schedulingv1.Pod{}, asked: map[string]time.Time{}, gone: map[string]bool{},
		fewest: map[string]int{"shop": 2},
	}
	w.add(shopPod("a", "True", 0), false)
	w.add(shopPod("b", "True", 0), false)
	type event = schedulingv1.WatchPodsResponse_Event
	w.handle(&schedulingv1.WatchPodsResponse{Events: []*event{
		{Type: "MODIFIED", Object: shopPod("a", "True", 100)},
		{Type: "ADDED", Object: shopPod("c", "True", 0)},
	}})
	if f := w.never("shop", 2); !f.holds {
		t.Errorf("one left and one came at once: %s", f.seen)
	}
	w.handle(&schedulingv1.WatchPodsResponse{Events: []*event{
		{Type: "DELETED", Object: shopPod("a", "False", 99)},
		{Type: "MODIFIED", Object: shopPod("b", "False", 0)},
	}})
	if w.never("shop", 2).holds {
		t.Error("only one was ready, which is not found")
	}
	if at, gone := w.leaving(shopPod("a", "", 0)); at.Unix() != 98 || !gone {
		t.Errorf("a deletion was requested at %d s, gone: %v; want 98 s, when it was requested first, and true", at.Unix(),
			gone)
	}
}
