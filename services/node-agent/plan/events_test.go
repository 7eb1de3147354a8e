package plan_test

import (
	"fmt"
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"

	"github.com/windlass-dev/windlass/services/node-agent/plan"
)

func TestEventsSayHowAStatusChanged(t *testing.T) {
	state := func(id string, restarts int32, s *schedulingv1.ContainerState) *schedulingv1.PodStatus {
		return &schedulingv1.PodStatus{Phase: new("Running"), ContainerStatuses: []*schedulingv1.ContainerStatus{{
			Name: "main", Image: "team/web:v1", ContainerId: id, RestartCount: &restarts, State: s,
		}}}
	}
	waits := func(reason, message string) *schedulingv1.ContainerState {
		return &schedulingv1.ContainerState{Waiting: &schedulingv1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	runs := &schedulingv1.ContainerState{Running: &schedulingv1.ContainerStateRunning{}}
	ended := func(reason string) *schedulingv1.ContainerState {
		return &schedulingv1.ContainerState{
			Terminated: &schedulingv1.ContainerStateTerminated{Reason: reason, Message: "no such file"},
		}
	}
	const crash = "Warning BackOff Back-off restarting failed container main in pod web"
	for _, tc := range []struct {
		name          string
		before, after *schedulingv1.PodStatus
		want          string
	}{
		{"nothing", state("process://1", 0, runs), state("process://1", 0, runs), ""},
		{"a container that is made", nil, state("", 0, waits("ContainerCreating", "Pulling image")), ""},
		{"a start", nil, state("process://1", 0, runs), "Normal Started Started container main"},
		{
			"a container that began and ended in between", state("", 0, waits("ContainerCreating", "")),
			state("process://1", 0, ended("Completed")), "Normal Started Started container main",
		},
		{
			"another start", state("process://1", 0, runs), state("process://2", 1, runs),
			"Normal Started Started container main",
		},
		{
			"no image", nil, state("", 0, waits("ErrImagePull", "not found")),
			`Warning Failed Failed to pull image "team/web:v1": not found`,
		},
		{
			"no image again", state("", 0, waits("ErrImagePull", "not found")),
			state("", 0, waits("ImagePullBackOff", "Back-off pulling image")), "Warning BackOff Back-off pulling image",
		},
		{"a crash", state("process://1", 0, runs), state("process://1", 0, waits("CrashLoopBackOff", "10s")), crash},
		{
			"a crash whose start was not seen", state("process://1", 0, waits("CrashLoopBackOff", "5m0s")),
			state("process://1", 1, waits("CrashLoopBackOff", "5m0s")), crash,
		},
		{
			"a crash that was reported", state("process://1", 1, waits("CrashLoopBackOff", "5m0s")),
			state("process://1", 1, waits("CrashLoopBackOff", "5m0s")), "",
		},
		{
			"a missing secret", nil, state("", 0, waits("CreateContainerConfigError", `secret "a" not found`)),
			`Warning Failed Error: CreateContainerConfigError: secret "a" not found`,
		},
		{
			"a program that is missing", state("", 0, waits("ContainerCreating", "")), state("", 0, ended("StartError")),
			"Warning Failed Error: StartError: no such file",
		},
		{
			"an eviction", state("process://1", 0, runs), &schedulingv1.PodStatus{
				Phase: new("Failed"), Reason: new("Evicted"), Message: new("The node was low on resource: memory."),
			}, "Warning Evicted The node was low on resource: memory.",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, separator := "", ""
			for _, e := range plan.StatusEvents("web", tc.before, tc.after) {
				got += fmt.Sprint(separator, e.GetType(), " ", e.GetReason(), " ", e.GetMessage())
				separator = "; "
			}
			if got != tc.want {
				t.Errorf("events %q, want %q", got, tc.want)
			}
		})
	}
}
