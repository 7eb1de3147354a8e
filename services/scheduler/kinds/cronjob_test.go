package kinds

import (
	"slices"
	"strings"
	"testing"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"google.golang.org/protobuf/proto"
)

func cronJob() *schedulingv1.CronJob {
	return &schedulingv1.CronJob{
		Metadata: &metav1.ObjectMeta{Name: "backup", Namespace: "default"},
		Spec: &schedulingv1.CronJobSpec{
			Schedule: "0 3 * * *", JobTemplate: &schedulingv1.JobTemplateSpec{Spec: &schedulingv1.JobSpec{
				Template: &schedulingv1.PodTemplateSpec{Spec: podSpec("Never")},
			}},
		},
	}
}

func TestCronJobsAreCompletedAndChecked(t *testing.T) {
	all := tables(t)
	got, err := all.CronJobs.Create(byUser(t), cronJob())
	if err != nil {
		t.Fatal(err)
	}
	s := got.GetSpec()
	if s.GetConcurrencyPolicy() != "Allow" || s.GetSuccessfulJobsHistoryLimit() != 3 ||
		s.GetFailedJobsHistoryLimit() != 1 ||
		s.Suspend == nil || s.GetJobTemplate().GetSpec().GetSelector() != nil {
		t.Errorf("it is stored as %v", s)
	}
	for path, change := range map[string]func(c *schedulingv1.CronJob){
		"spec.schedule": func(c *schedulingv1.CronJob) { c.Spec.Schedule = "@every 59s" },
		"spec.timeZone": func(c *schedulingv1.CronJob) {
			c.Spec.TimeZone = proto.String("Mars/Olympus")
		},
		"spec.concurrencyPolicy": func(c *schedulingv1.CronJob) { c.Spec.ConcurrencyPolicy = "Often" },
		"metadata.name":          func(c *schedulingv1.CronJob) { c.Metadata.Name = strings.Repeat("a", 53) },
		"spec.jobTemplate.spec":  func(c *schedulingv1.CronJob) { c.Spec.JobTemplate = nil },
		"spec.jobTemplate.spec.manualSelector": func(c *schedulingv1.CronJob) {
			c.Spec.JobTemplate.Spec.ManualSelector = proto.Bool(true)
		},
		"spec.jobTemplate.spec.selector": func(c *schedulingv1.CronJob) {
			of := map[string]string{"a": "b"}
			c.Spec.JobTemplate.Spec.Selector = &metav1.LabelSelector{MatchLabels: of}
			c.Spec.JobTemplate.Spec.Template.Metadata = &metav1.ObjectMeta{Labels: of}
		},
		"spec.jobTemplate.spec.template.spec.restartPolicy": func(c *schedulingv1.CronJob) {
			c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = "Always"
		},
		"spec.jobTemplate.spec.completions": func(c *schedulingv1.CronJob) {
			c.Spec.JobTemplate.Spec.CompletionMode = proto.String("Indexed")
			c.Spec.JobTemplate.Spec.Parallelism = proto.Int32(2)
		},
	} {
		c := cronJob()
		c.Metadata.Name = "other"
		change(c)
		if _, err := all.CronJobs.Create(byUser(t), c); !slices.Equal(wrong(err), []string{path}) {
			t.Errorf("%s: wrong are %v: %v", path, wrong(err), err)
		}
	}
}
