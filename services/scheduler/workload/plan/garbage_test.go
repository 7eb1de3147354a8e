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

func TestPodsThatEndedFirstGo(t *testing.T) {
	none := func(*schedulingv1.Pod) *schedulingv1.Job { return nil }
	endedAt := func(name string, start, end time.Time) *schedulingv1.Pod {
		p := endedPod(name, start)
		p.Status = &schedulingv1.PodStatus{ContainerStatuses: []*schedulingv1.ContainerStatus{{
			State: &schedulingv1.ContainerState{
				Terminated: &schedulingv1.ContainerStateTerminated{FinishedAt: timestamppb.New(end)},
			},
		}}}
		return p
	}
	var pods []*schedulingv1.Pod
	for i := range 1000 {
		pods = append(pods, endedAt(fmt.Sprint("p", i), now, now))
	}
	if got := plan.Ended(plan.EndedView{Now: now, Pods: pods, JobOf: none}); len(got.Delete) != 0 {
		t.Errorf("%d of 1000 go", len(got.Delete))
	}
	pods = append(pods, endedAt("ran long", now.Add(-time.Hour), now.Add(time.Second)),
		endedAt("second", now.Add(-time.Minute), now.Add(-time.Second)),
		endedAt("first", now.Add(-time.Second), now.Add(-time.Minute)), endedAt("last", now, now.Add(time.Second)))
	var names []string
	for _, p := range plan.Ended(plan.EndedView{Now: now, Pods: pods, JobOf: none}).Delete[:2] {
		names = append(names, p.GetMetadata().GetName())
	}
	if diff := cmp.Diff([]string{"first", "second"}, names); diff != "" {
		t.Errorf("go (-want +got):\n%s", diff)
	}
	if pods[0].GetMetadata().GetName() != "p0" {
		t.Error("the view was changed")
	}
}

func TestAnEndedPodStaysUntilItsJobHasCountedIt(t *testing.T) {
	job := &schedulingv1.Job{Metadata: &metav1.ObjectMeta{Name: "j"}}
	var pods []*schedulingv1.Pod
	for i := range 1001 {
		pods = append(pods, endedPod(fmt.Sprint("p", i), now))
	}
	pods[0].Metadata.Uid, pods[0].Metadata.CreationTimestamp = "uid-0", timestamppb.New(now.Add(-time.Hour))
	v := plan.EndedView{Now: now, Pods: pods, JobOf: func(p *schedulingv1.Pod) *schedulingv1.Job {
		if p == pods[0] {
			return job
		}
		return nil
	}}
	if p := plan.Ended(v); len(p.Delete) != 0 || !p.Wake.After(now) {
		t.Errorf("%d go, decided again at %v", len(p.Delete), p.Wake)
	}
	job.Metadata.Annotations = map[string]string{"windlass.dev/counted-pods": "uid-0,uid-9"}
	if p := plan.Ended(v); len(p.Delete) != 1 || p.Delete[0] != pods[0] || !p.Wake.IsZero() {
		t.Errorf("%d go once it is counted, decided again at %v", len(p.Delete), p.Wake)
	}
}

func TestAPodNamedForANodeThatDoesNotExistWaitsForIt(t *testing.T) {
	early := &schedulingv1.Pod{
		Metadata: &metav1.ObjectMeta{Name: "p", CreationTimestamp: timestamppb.New(now)},
		Spec:     &schedulingv1.PodSpec{NodeName: "n"},
	}
	bound := proto.CloneOf(early)
	bound.Status = &schedulingv1.PodStatus{Conditions: []*schedulingv1.PodCondition{
		{Type: "PodScheduled", Status: "True"},
	}}
	ran := proto.CloneOf(early)
	ran.Status = &schedulingv1.PodStatus{StartTime: timestamppb.New(now)}
	for what, c := range map[string]struct {
		pod   *schedulingv1.Pod
		after time.Duration
		want  bool
	}{
		"created for it":                {early, 39 * time.Second, false},
		"created for it and 40 s later": {early, 40 * time.Second, true},
		"bound to it":                   {bound, time.Second, true},
		"ran there":                     {ran, time.Second, true},
	} {
		p := plan.Stranded(c.pod, now.Add(c.after))
		wake := now.Add(40 * time.Second)
		if p.Delete != c.want || p.Tell.Reason != plan.NoNode || !c.want && !p.Wake.Equal(wake) {
			t.Errorf("%s: %+v", what, p)
		}
	}
}
