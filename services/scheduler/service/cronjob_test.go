package service

import (
	"testing"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestACronJobIsPlannedForAnotherTime(t *testing.T) {
	c := start(t)
	of := newPod("x", "1m").GetSpec()
	of.RestartPolicy = "Never"
	cron := &schedulingv1.CronJob{
		Metadata: &metav1.ObjectMeta{Name: "backup"},
		Spec: &schedulingv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: &schedulingv1.JobTemplateSpec{
			Spec: &schedulingv1.JobSpec{Template: &schedulingv1.PodTemplateSpec{Spec: of}},
		}},
	}
	all := schedulingv1.NewCronJobServiceClient(c.admin())
	if _, err := all.CreateCronJob(t.Context(), &schedulingv1.CreateCronJobRequest{CronJob: cron}); err != nil {
		t.Fatal(err)
	}
	next := time.Date(time.Now().UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC)
	now, err := all.PlanCronJob(t.Context(), &schedulingv1.PlanCronJobRequest{Name: "backup"})
	if err != nil || len(now.GetActions()) != 0 || !now.GetWakeTime().AsTime().Equal(next) {
		t.Errorf("now: %v, %v, want nothing until %v", now, err, next)
	}
	then, err := all.PlanCronJob(t.Context(), &schedulingv1.PlanCronJobRequest{Name: "backup", Now: timestamppb.New(next)})
	if err != nil || len(then.GetActions()) != 1 || then.GetActions()[0].GetAction() != "CreateJob" {
		t.Errorf("then: %v, %v, want a job", then, err)
	}
}
