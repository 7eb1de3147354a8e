package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/windlass-dev/windlass/services/scheduler/workload/plan"
)

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	again = now.Add(5 * time.Second)
)

func endedPod(name string, created time.Time) *schedulingv1.Pod {
	return &schedulingv1.Pod{Metadata: &metav1.ObjectMeta{Name: name, CreationTimestamp: timestamppb.New(created)}}
}

func TestNamespace(t *testing.T) {
	namespace := func(phase string, deleting bool, finalizers ...string) *schedulingv1.Namespace {
		ns := &schedulingv1.Namespace{
			Metadata: &metav1.ObjectMeta{Name: "a", Finalizers: finalizers},
			Status:   &schedulingv1.NamespaceStatus{Phase: proto.String(phase)},
		}
		if deleting {
			ns.Metadata.DeletionTimestamp = timestamppb.New(now)
		}
		return ns
	}
	stays, ending := endedPod("stays", now), endedPod("ending", now)
	ending.Metadata.DeletionTimestamp = timestamppb.New(now)
	contents := []object.Object{stays, ending}
	const gone, deleting = "its namespace is gone", "its namespace is being deleted"
	for name, c := range map[string]struct {
		namespace *schedulingv1.Namespace
		contents  []object.Object
		want      plan.NamespacePlan
	}{
		"one that is in use keeps its contents": {
			namespace("Active", false, plan.NamespaceFinalizer), contents,
			plan.NamespacePlan{},
		},
		"one that is being deleted is emptied": {
			namespace("Active", true, plan.NamespaceFinalizer), contents,
			plan.NamespacePlan{Terminate: true, Delete: contents[:1], Reason: deleting, Wake: again},
		},
		"it waits for what is being deleted": {
			namespace("Terminating", true, plan.NamespaceFinalizer), contents[1:],
			plan.NamespacePlan{Reason: deleting, Wake: again},
		},
		"it goes once it is empty": {
			namespace("Terminating", true, plan.NamespaceFinalizer), nil,
			plan.NamespacePlan{Reason: deleting, Release: true},
		},
		"one that others hold is left to them": {namespace("Terminating", true, "other"), contents, plan.NamespacePlan{}},
		"what is in none goes": {
			nil, contents,
			plan.NamespacePlan{Delete: contents[:1], Reason: gone, Wake: again},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := plan.Namespace(plan.NamespaceView{Now: now, Namespace: c.namespace, Contents: c.contents})
			if diff := cmp.Diff(c.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheOldestEndedPodsGo(t *testing.T) {
	var pods []*schedulingv1.Pod
	for i := range 1000 {
		pods = append(pods, endedPod(fmt.Sprint("p", i), now))
	}
	if got := plan.Ended(pods); len(got) != 0 {
		t.Errorf("%d of 1000 go", len(got))
	}
	pods = append(pods, endedPod("older", now.Add(-time.Minute)), endedPod("oldest", now.Add(-time.Hour)))
	var names []string
	for _, p := range plan.Ended(pods) {
		names = append(names, p.GetMetadata().GetName())
	}
	if diff := cmp.Diff([]string{"oldest", "older"}, names); diff != "" {
		t.Errorf("go (-want +got):\n%s", diff)
	}
	if pods[0].GetMetadata().GetName() != "p0" {
		t.Error("the view was changed")
	}
}
