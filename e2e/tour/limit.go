package main

import (
	"context"
	"fmt"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// limit runs a pod that needs more memory than it may have. Where limits cannot be in force, the pod is refused.
func (t *tour) limit(ctx context.Context) error {
	if err := t.apply(ctx, "limit.yaml"); err != nil {
		return err
	}
	pod, err := t.podWhen(ctx, "tour-limit", "the pod tour-limit over", func(p *schedulingv1.Pod) bool {
		return p.GetStatus().GetPhase() == "Failed"
	})
	if err != nil {
		return err
	}
	if why := pod.GetStatus(); why.GetReason() == "LimitsNotEnforceable" {
		t.saw("%s", why.GetMessage())
		t.paragraph(`The host does not let the node limit memory, so the pod was refused: it did not run without its limit.`)
		return t.remove(ctx, "limit.yaml")
	}
	out, err := t.windlass(ctx, "get", "pod", "tour-limit")
	if err != nil {
		return err
	}
	t.saw("%s", strings.TrimSpace(out))
	end := pod.GetStatus().GetContainerStatuses()[0].GetState().GetTerminated()
	if err := t.check(mentions("windlass get pod tour-limit", out, "OOMKilled"),
		expect(end.GetReason() == "OOMKilled" && end.GetExitCode() == 137, "exit code 137, OOMKilled", "%v",
			end)); err != nil {
		return err
	}
	t.paragraph(
		`The container's control group may use 32 MiB. The kernel killed the process that needed more, and no other.`)
	return t.remove(ctx, "limit.yaml")
}

// podWhen waits until a pod is as wanted, and returns it.
func (t *tour) podWhen(ctx context.Context, name, expected string, wanted func(*schedulingv1.Pod) bool) (
	pod *schedulingv1.Pod, err error,
) {
	err = within(ctx, placed, expected, func(ctx context.Context) (bool, string, error) {
		pod, err = t.cluster.pods.GetPod(ctx, &schedulingv1.GetPodRequest{Namespace: podNamespace, Name: name}, patient)
		return err == nil && wanted(pod), fmt.Sprint(pod.GetStatus()), err
	})
	return pod, err
}
