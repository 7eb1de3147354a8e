package plan

import (
	"fmt"
	"slices"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
)

// Types of events.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

// Reasons of events that are not reasons of a state.
const (
	started = "Started"
	backOff = "BackOff"
	wrong   = "Failed"
)

// StatusEvents returns the events that say how the status of a pod changed, in the order of its containers. before is
// the status that was reported last. Source of reasons and texts: kubelet.
func StatusEvents(name string, before, after *schedulingv1.PodStatus) (out []*schedulingv1.PodEvent) {
	say := func(typ, reason, format string, args ...any) {
		out = append(out, &schedulingv1.PodEvent{Type: typ, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	known := map[string]*schedulingv1.ContainerStatus{}
	for _, c := range slices.Concat(before.GetInitContainerStatuses(), before.GetContainerStatuses()) {
		known[c.GetName()] = c
	}
	for _, c := range slices.Concat(after.GetInitContainerStatuses(), after.GetContainerStatuses()) {
		was := known[c.GetName()]
		if id := c.GetContainerId(); id != "" && id != was.GetContainerId() {
			say(Normal, started, "Started container %s", c.GetName())
		}
		waiting, waited := c.GetState().GetWaiting(), was.GetState().GetWaiting()
		changed := waiting.GetReason() != waited.GetReason() || waiting.GetMessage() != waited.GetMessage()
		switch reason := waiting.GetReason(); {
		case reason == CrashLoopBackOff && (changed || c.GetRestartCount() != was.GetRestartCount()):
			say(Warning, backOff, "Back-off restarting failed container %s in pod %s", c.GetName(), name)
		case !changed:
		case reason == ErrImagePull:
			say(Warning, wrong, "Failed to pull image %q: %s", c.GetImage(), waiting.GetMessage())
		case reason == ImagePullBackOff:
			say(Warning, backOff, "%s", waiting.GetMessage())
		case reason != "" && reason != ContainerCreating && reason != PodInitializing && reason != CrashLoopBackOff:
			say(Warning, wrong, "Error: %s: %s", reason, waiting.GetMessage())
		}
		if t := c.GetState().GetTerminated(); t.GetReason() == StartError &&
			was.GetState().GetTerminated().GetReason() != StartError {
			say(Warning, wrong, "Error: %s: %s", t.GetReason(), t.GetMessage())
		}
	}
	if after.GetPhase() == failed && before.GetPhase() != failed && after.GetReason() != "" {
		say(Warning, after.GetReason(), "%s", after.GetMessage())
	}
	return out
}
