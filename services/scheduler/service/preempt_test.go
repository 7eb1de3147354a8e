package service

import (
	"fmt"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

func TestAPodOfHigherPriorityGetsTheRoomOfOthers(t *testing.T) {
	c := start(t)
	c.addNode("node-1", "1")
	pods, agent := c.pods(), c.agent("node-1")
	if _, err := schedulingv1.NewPriorityClassServiceClient(c.admin()).CreatePriorityClass(t.Context(),
		&schedulingv1.CreatePriorityClassRequest{PriorityClass: &schedulingv1.PriorityClass{
			Metadata: &metav1.ObjectMeta{Name: "important"}, Value: 1000,
		}}); err != nil {
		t.Fatal(err)
	}
	c.create(pods, newPod("usual", "800m"))
	victim := c.awaitPod(pods, "usual", bound)

	vital := newPod("vital", "800m")
	vital.Spec.PriorityClassName = "important"
	said, err := pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: vital})
	if err != nil || !strings.Contains(said.GetMessage(), "by the eviction of default/usual (priority 0)") {
		t.Errorf("explained before it is created: %q, %v", said.GetMessage(), err)
	}
	unknown := newPod("unknown", "800m")
	unknown.Spec.PriorityClassName = "none"
	if _, err := pods.ExplainPod(t.Context(), &schedulingv1.ExplainPodRequest{Pod: unknown}); !strings.Contains(
		fmt.Sprint(err), "pod.spec.priorityClassName") {
		t.Errorf("explained with a class that does not exist: %v", err)
	}
	c.create(pods, vital)
	c.awaitPod(pods, "usual", func(p *schedulingv1.Pod) bool { return p.GetMetadata().GetDeletionTimestamp() != nil })
	pod := c.awaitPod(pods, "vital", func(p *schedulingv1.Pod) bool { return p.GetStatus().GetNominatedNodeName() != "" })
	if text := placement.PodCondition(pod, "PodScheduled").GetMessage(); bound(pod) ||
		!strings.Contains(text, "default/usual (priority 0)") {
		t.Errorf("while the victim terminates: %s, bound: %v", text, bound(pod))
	}
	if text := c.awaitEvent("usual", "Preempted"); !strings.Contains(text,
		"default/vital (priority 1000) on node node-1") {
		t.Errorf("event of the victim: %s", text)
	}
	plan, err := pods.PlanPreemption(t.Context(), &schedulingv1.PlanPreemptionRequest{Namespace: "default", Name: "vital"})
	if err != nil || plan.GetNominatedNodeName() != "node-1" || len(plan.GetVictims()) != 0 {
		t.Errorf("plan while the victim terminates: %v, %v", plan, err)
	}

	if _, err := agent.ConfirmPodGone(t.Context(), &schedulingv1.ConfirmPodGoneRequest{
		NodeName: "node-1", Namespace: "default", Name: "usual", Uid: victim.GetMetadata().GetUid(),
	}); err != nil {
		t.Fatal(err)
	}
	if pod = c.awaitPod(pods, "vital", bound); pod.GetStatus().GetNominatedNodeName() != "" {
		t.Errorf("a bound pod is nominated for %s", pod.GetStatus().GetNominatedNodeName())
	}
	next := newPod("next", "800m")
	next.Spec.Priority = proto.Int32(2_000_001_000)
	plan, err = pods.PlanPreemption(t.Context(), &schedulingv1.PlanPreemptionRequest{Pod: next})
	if err != nil || len(plan.GetVictims()) != 1 || plan.GetVictims()[0].GetName() != "vital" {
		t.Errorf("plan of a given pod: %v, %v", plan, err)
	}
}
