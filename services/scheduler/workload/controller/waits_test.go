package controller_test

import (
	"testing"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
)

// TestWaitsEnd has the waits of each kind of owner begin while other decisions are made, and end.
func TestWaitsEnd(t *testing.T) {
	c := start(t)
	must[*schedulingv1.ReplicaSet](c)(c.ReplicaSets.Create(c.ctx, &schedulingv1.ReplicaSet{
		Metadata: meta(), Spec: &schedulingv1.ReplicaSetSpec{
			Replicas: proto.Int32(3), Selector: selector(), Template: template("v1"), MinReadySeconds: proto.Int32(1),
		},
	}))
	c.until("pods become available", func() bool {
		s, _ := c.ReplicaSets.Lookup("default", "web")
		return s.GetStatus().GetAvailableReplicas() == 3
	})
	tmpl := template("v1")
	tmpl.Spec.RestartPolicy = "Never"
	job := must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{Metadata: meta(), Spec: &schedulingv1.JobSpec{
		Template: tmpl, ActiveDeadlineSeconds: proto.Int32(1), TtlSecondsAfterFinished: proto.Int32(1),
	}}))
	c.until("the job fails for its deadline and is deleted", func() bool {
		_, there := c.Jobs.Lookup("default", job.GetMetadata().GetName())
		return !there && c.told("DeadlineExceeded") == 1
	})
	c.agent.setIdle(true)
	must[*schedulingv1.Deployment](c)(c.Deployments.Create(c.ctx, &schedulingv1.Deployment{
		Metadata: meta(), Spec: &schedulingv1.DeploymentSpec{
			Selector: selector(), Template: template("v2"), ProgressDeadlineSeconds: proto.Int32(1),
		},
	}))
	c.until("the deployment fails for its deadline", func() bool {
		cond := object.FindCondition(c.deployment().GetStatus().GetConditions(), "Progressing")
		return cond.GetReason() == "ProgressDeadlineExceeded"
	})
}

// TestAJobFailsOnceByItsPolicy has a pod end with an exit code that fails its job, and go at once: its end is counted
// although its record may be gone before the job is decided on.
func TestAJobFailsOnceByItsPolicy(t *testing.T) {
	c := start(t)
	tmpl := template("v1")
	tmpl.Spec.RestartPolicy = "Never"
	must[*schedulingv1.Job](c)(c.Jobs.Create(c.ctx, &schedulingv1.Job{Metadata: meta(), Spec: &schedulingv1.JobSpec{
		Template: tmpl, PodFailurePolicy: &schedulingv1.PodFailurePolicy{Rules: []*schedulingv1.PodFailurePolicyRule{{
			Action:      "FailJob",
			OnExitCodes: &schedulingv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{42}},
		}}},
	}}))
	c.until("a pod runs", func() bool { return c.count(running) == 1 })
	for _, p := range c.Pods.All() {
		must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, object.KeyOf(p), func(p *schedulingv1.Pod) error {
			p.Status = &schedulingv1.PodStatus{
				Phase: proto.String("Failed"), ContainerStatuses: []*schedulingv1.ContainerStatus{{
					Name: "web", State: &schedulingv1.ContainerState{
						Terminated: &schedulingv1.ContainerStateTerminated{ExitCode: proto.Int32(42)},
					},
				}},
			}
			return nil
		}))
		must[*schedulingv1.Pod](c)(c.Pods.Delete(c.ctx, "default", p.GetMetadata().GetName(), nil))
	}
	c.until("the job has failed", func() bool {
		j, _ := c.Jobs.Lookup("default", "web")
		cond := object.FindCondition(j.GetStatus().GetConditions(), "Failed")
		return cond.GetReason() == "PodFailurePolicy" && j.GetStatus().GetFailed() == 1 && len(c.Pods.All()) == 0
	})
}
