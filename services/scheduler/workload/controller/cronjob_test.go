package controller_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// createCronJob creates a cron job that was due the last minute, as if no leader had been there.
func (c *cluster) createCronJob(name string) *schedulingv1.CronJob {
	c.t.Helper()
	of := template("v1")
	of.Spec.RestartPolicy = "Never"
	return must[*schedulingv1.CronJob](c)(c.CronJobs.Create(c.ctx, &schedulingv1.CronJob{
		Metadata: &metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: &schedulingv1.CronJobSpec{
			Schedule: "0 0 1 1 *", Suspend: proto.Bool(true),
			JobTemplate: &schedulingv1.JobTemplateSpec{Spec: &schedulingv1.JobSpec{Template: of}},
		},
	}))
}

// release has a cron job find its last time missed.
func (c *cluster) release(name string) {
	c.t.Helper()
	key := object.Key{Namespace: "default", Name: name}
	must[*schedulingv1.CronJob](c)(c.CronJobs.Modify(c.ctx, key, func(o *schedulingv1.CronJob) error {
		o.Status = &schedulingv1.CronJobStatus{LastScheduleTime: &timestamppb.Timestamp{Seconds: 1_700_000_000}}
		o.Spec.Suspend = nil
		return nil
	}))
}

func (c *cluster) cronJob(name string) *schedulingv1.CronJob {
	o, _ := c.CronJobs.Lookup("default", name)
	return o
}

func TestACronJobHasItsJobAndKnowsWhenItEnds(t *testing.T) {
	c := start(t)
	c.createCronJob("backup")
	c.release("backup")
	c.until("a job runs", func() bool { return len(c.cronJob("backup").GetStatus().GetActive()) == 1 })
	var job *schedulingv1.Job
	for _, j := range c.Jobs.All() {
		job = j
	}
	if !strings.HasPrefix(job.GetMetadata().GetName(), "backup-") || c.told("SuccessfulCreate") == 0 {
		t.Errorf("job %q, events %v", job.GetMetadata().GetName(), c.events)
	}
	c.until("its pod runs", func() bool { return c.count(running) == 1 })
	for _, p := range c.Pods.All() {
		must[*schedulingv1.Pod](c)(c.Pods.Modify(c.ctx, object.KeyOf(p), func(p *schedulingv1.Pod) error {
			p.Status = &schedulingv1.PodStatus{Phase: proto.String("Succeeded")}
			return nil
		}))
	}
	c.until("the job has ended", func() bool {
		st := c.cronJob("backup").GetStatus()
		return len(st.GetActive()) == 0 && st.GetLastSuccessfulTime() != nil && c.told("SawCompletedJob") == 1
	})
	if n := len(c.Jobs.All()); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

// TestNoJobIsCreatedTwiceByTwoLeaders has the leader change while many cron jobs are due.
func TestNoJobIsCreatedTwiceByTwoLeaders(t *testing.T) {
	const many = 40
	c := start(t)
	for n := range many {
		c.createCronJob(fmt.Sprint("cron-", n))
	}
	next := join(t, c.client, c.prefix, "second")
	next.agent.setIdle(true) // one agent is enough
	for n := range many {
		c.release(fmt.Sprint("cron-", n))
		if n == many/2 {
			c.resign()
		}
	}
	c.until("each has its job", func() bool {
		for n := range many {
			if len(c.cronJob(fmt.Sprint("cron-", n)).GetStatus().GetActive()) != 1 {
				return false
			}
		}
		return true
	})
	if n := len(c.Jobs.All()); n != many {
		t.Errorf("%d jobs, want %d", n, many)
	}
	if n := c.told("SuccessfulCreate") + next.told("SuccessfulCreate"); n < many {
		t.Errorf("%d creations were reported, want at least %d", n, many)
	}
}
