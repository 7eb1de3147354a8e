package kinds

import (
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/resource"
	"github.com/windlass-dev/windlass/kit/schedule"
	"google.golang.org/protobuf/proto"
)

// longestCron is the longest name of a cron job, in characters. The names of its jobs are label values, and add at most
// 11 characters.
const longestCron = 52

// jobTemplate is where a cron job has the spec of its jobs.
const jobTemplate = "spec.jobTemplate.spec"

func defaultCronJob(c *schedulingv1.CronJob) {
	if c.Spec == nil {
		c.Spec = &schedulingv1.CronJobSpec{}
	}
	s := c.Spec
	orElse(&s.ConcurrencyPolicy, "Allow")
	if s.Suspend == nil {
		s.Suspend = proto.Bool(false)
	}
	numberOr(&s.SuccessfulJobsHistoryLimit, 3)
	numberOr(&s.FailedJobsHistoryLimit, 1)
	if t := s.GetJobTemplate().GetSpec().GetTemplate(); t != nil {
		defaultTemplate(t)
	}
}

func validateCronJob(c *schedulingv1.CronJob) []object.Fault {
	s := c.GetSpec()
	var bad []object.Fault
	if len(c.GetMetadata().GetName()) > longestCron {
		bad = append(bad, object.Faultf("metadata.name",
			"must be no more than %d characters, so that the names of its jobs can be labels", longestCron))
	}
	if _, err := schedule.Parse("@daily", s.GetTimeZone()); err != nil {
		bad = append(bad, object.Fault{Path: "spec.timeZone", Description: err.Error()})
	}
	if _, err := schedule.Parse(s.GetSchedule(), ""); err != nil {
		bad = append(bad, object.Fault{Path: "spec.schedule", Description: err.Error()})
	} else if why := schedule.Fault(s.GetSchedule(), time.Minute); why != "" { // names of jobs have the minute
		bad = append(bad, object.Fault{Path: "spec.schedule", Description: why})
	}
	if s.GetJobTemplate().GetSpec() == nil {
		return append(bad, object.Fault{Path: jobTemplate, Description: "must be given"})
	}
	if s.GetJobTemplate().GetSpec().GetManualSelector() {
		return append(bad, object.Fault{
			Path: jobTemplate + ".manualSelector", Description: "must be left out: each job has a selector of its own",
		})
	}
	if s.GetJobTemplate().GetSpec().GetSelector() != nil {
		bad = append(bad, object.Fault{
			Path: jobTemplate + ".selector", Description: "must be left out: each job has a selector of its own",
		})
	}
	j := &schedulingv1.Job{
		Metadata: &metav1.ObjectMeta{Name: c.GetMetadata().GetName()}, Spec: proto.CloneOf(s.GetJobTemplate().GetSpec()),
	}
	j.Spec.Selector = nil
	defaultJob(j)
	for _, f := range validateJob(j) {
		bad = append(bad, object.Fault{
			Path: jobTemplate + strings.TrimPrefix(f.Path, "spec"), Description: f.Description,
		})
	}
	return bad
}

// admitCronJob is the rule of the templates of jobs' pods; see templates.
func admitCronJob(t *Tables) func(*resource.Write[*schedulingv1.CronJob]) error {
	return templatesAt(t, jobTemplate+".template", func(c *schedulingv1.CronJob) *schedulingv1.PodTemplateSpec {
		return c.GetSpec().GetJobTemplate().GetSpec().GetTemplate()
	})
}
