package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/schedule"
	"google.golang.org/protobuf/proto"
)

// Annotations of the jobs of a cron job.
const (
	scheduledTime = "batch.kubernetes.io/cronjob-scheduled-timestamp" // the time that the job was created for
	// ManualJob is the annotation of a job that a user created from a cron job. It is not one of its times.
	ManualJob = "cronjob.kubernetes.io/instantiate"
)

// Annotations of a cron job, which are written together with its status.
const (
	// startedTimes has the latest times for which jobs were created, in minutes since 1970: which of them came may not be
	// known from the last one alone if the clock was set back.
	startedTimes = "windlass.dev/started-times"
	// reportedTime has the time for which no job was created, and why, that an event reported last.
	reportedTime = "windlass.dev/reported-time"
)

const (
	lateWake  = time.Minute // within which a cron job is decided on after a time has come
	keptTimes = 16          // of startedTimes
	// times that are missed before an event says that they are many. Source: Kubernetes' CronJob
	mostMissed    = 100
	keepSucceeded = 3 // jobs, by default
	keepFailed    = 1
)

// CronJobView is everything that a cron job is decided on.
type CronJobView struct {
	Now     time.Time
	CronJob *schedulingv1.CronJob
	Jobs    []*schedulingv1.Job // those that the cron job manages; others are left alone
	// Named returns the job of the cron job's namespace that has a name; nil if there is none.
	Named func(name string) *schedulingv1.Job
}

// CronJobPlan is what is done for a cron job: first Delete, then Create, then the status.
type CronJobPlan struct {
	Delete []*schedulingv1.Job
	Create *schedulingv1.Job // with its name; nil for none
	Tell   []Event           // beside those of Create and Delete
	Status *schedulingv1.CronJobStatus
	Held   []*metav1.HeldBack // what would be done and waits
	Wake   time.Time          // when to decide again even if nothing changes; zero means never

	started, reported string // values of the annotations; empty for none
	why               reasons
}

// Actions returns what is done, in its order, and why.
func (p CronJobPlan) Actions() []*metav1.PlannedAction {
	var create []*schedulingv1.Job
	if p.Create != nil {
		create = append(create, p.Create)
	}
	return slices.Concat(planned("DeleteJob", p.Delete, p.why), planned("CreateJob", create, p.why))
}

// CronJobAfter returns a cron job as it is stored after a plan was carried out.
func CronJobAfter(c *schedulingv1.CronJob, p CronJobPlan) *schedulingv1.CronJob {
	out := proto.CloneOf(c)
	out.Status = p.Status
	for key, value := range map[string]string{startedTimes: p.started, reportedTime: p.reported} {
		if value != "" {
			out.Metadata.Annotations = label(out.Metadata.Annotations, key, value)
		}
	}
	return out
}

// JobEnded reports whether a job is complete or has failed.
func JobEnded(j *schedulingv1.Job) bool { return endedAs(j, jobComplete) || endedAs(j, jobFailed) }

func endedAs(j *schedulingv1.Job, condition string) bool {
	return object.IsTrue(j.GetStatus().GetConditions(), condition)
}

// CronJob decides which jobs of a cron job are created and deleted. A job is created for a time of the schedule once,
// also if the clock was set or the process that created it ended before it could write that down: the time is in the
// name of the job. Of several times that were missed, it is the last one. Source: Kubernetes' CronJob.
func CronJob(v CronJobView) CronJobPlan {
	c := &cron{
		CronJobView: v, spec: v.CronJob.GetSpec(), started: map[int64]bool{},
		p: CronJobPlan{why: reasons{}, Status: proto.CloneOf(v.CronJob.GetStatus())},
	}
	if c.p.Status == nil {
		c.p.Status = &schedulingv1.CronJobStatus{}
	}
	c.sort()
	if !object.Deleting(v.CronJob) {
		c.schedule()
		c.cleanUp()
	}
	c.observe()
	return c.p
}

// cron is a cron job while a plan is made for it.
type cron struct {
	CronJobView
	spec    *schedulingv1.CronJobSpec
	mine    []*schedulingv1.Job // the oldest first
	active  []*schedulingv1.Job // of a time of the schedule, and not ended
	started map[int64]bool      // times for which jobs were created, in minutes since 1970
	p       CronJobPlan
}

// sort finds out which jobs run, and which times had theirs.
func (c *cron) sort() {
	for _, text := range strings.Split(c.CronJob.GetMetadata().GetAnnotations()[startedTimes], ",") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			c.started[n] = true
		}
	}
	if at := c.p.Status.GetLastScheduleTime(); at != nil {
		c.started[minute(at.AsTime())] = true
	}
	for _, j := range c.Jobs {
		if !c.owned(j) {
			continue
		}
		c.mine = append(c.mine, j)
		at, err := time.Parse(time.RFC3339, j.GetMetadata().GetAnnotations()[scheduledTime])
		if err == nil {
			c.started[minute(at)] = true
		}
		if !JobEnded(j) && !object.Deleting(j) && j.GetMetadata().GetAnnotations()[ManualJob] == "" {
			c.active = append(c.active, j)
		}
	}
	slices.SortFunc(c.mine, byAge)
	slices.SortFunc(c.active, byAge)
}

// owned reports whether a job belongs to the cron job.
func (c *cron) owned(j *schedulingv1.Job) bool {
	return object.ControllerOf(j).GetUid() == c.CronJob.GetMetadata().GetUid()
}

// nameFor returns the name of the job of a time.
func (c *cron) nameFor(due time.Time) string {
	return fmt.Sprintf("%s-%d", c.CronJob.GetMetadata().GetName(), minute(due))
}

func (c *cron) wakeAt(next time.Time) {
	if c.p.Wake = next; next.IsZero() {
		c.hold("its schedule never comes again", "it is changed")
	}
}

func minute(t time.Time) int64 { return t.Unix() / 60 }

// schedule creates the job of the last time that has come and had none.
func (c *cron) schedule() {
	if c.spec.GetSuspend() {
		c.hold("the cron job is suspended", "spec.suspend is set to false")
		return
	}
	times, err := schedule.Parse(c.spec.GetSchedule(), c.spec.GetTimeZone())
	if err != nil {
		c.hold("its schedule cannot be read: "+err.Error(), "it is corrected")
		return
	}
	after, known := c.after()
	if !known {
		last := c.p.Status.GetLastScheduleTime().AsTime()
		c.p.Wake = times.Next(last)
		c.hold("the clock was set back, and which times up to "+clock(last)+" had their jobs is not known",
			"the time after "+clock(last)+" comes")
		return
	}
	due := schedule.Latest(times, after, c.Now)
	if due.IsZero() {
		c.wakeAt(times.Next(after))
		return
	}
	c.wakeAt(times.Next(due))
	if c.started[minute(due)] {
		if c.owned(c.Named(c.nameFor(due))) { // it was created, and that was not written down
			c.note(due)
		}
		return
	}
	limit := c.spec.StartingDeadlineSeconds
	deadline := due.Add(seconds(c.spec.GetStartingDeadlineSeconds()))
	if limit != nil && deadline.Before(c.Now) {
		c.report("MissSchedule", due, "Missed scheduled time to start a job: "+clock(due))
		return
	}
	c.start(times, after, due)
	if limit != nil && c.p.Create == nil {
		c.p.Wake = sooner(c.p.Wake, deadline.Add(time.Second)) // to say so if it is missed
	}
}

// after returns the time after which times had no job. It is not known if the clock was set back to before all times
// that are known.
func (c *cron) after() (at time.Time, known bool) {
	last := c.p.Status.GetLastScheduleTime()
	if last == nil {
		at = created(c.CronJob)
		if at.After(c.Now) { // the clock was set back: the time that comes next has its job
			at = c.Now.Add(-lateWake)
		}
		return at, true
	}
	if !last.AsTime().After(c.Now) {
		return last.AsTime(), true
	}
	for n := range c.started {
		if t := time.Unix(n*60, 0); !t.After(c.Now) && t.After(at) {
			at, known = t, true
		}
	}
	return at, known
}

// start creates the job of a time, unless it has to wait.
func (c *cron) start(times schedule.Times, after, due time.Time) {
	name := c.nameFor(due)
	if c.Named(name) != nil {
		c.report("FailedCreate", due, fmt.Sprintf("Job %q exists and does not belong to the cron job", name))
		c.hold("there is a job "+name+" that does not belong to the cron job", "it is deleted")
		return
	}
	if len(c.active) > 0 {
		switch c.spec.GetConcurrencyPolicy() {
		case "Forbid":
			c.report("JobAlreadyActive", due,
				"Not starting job because prior execution is running and concurrency policy is Forbid")
			c.hold("it is time since "+clock(due)+", but job "+c.active[0].GetMetadata().GetName()+
				" runs, and concurrencyPolicy is Forbid", "that job ends")
			return
		case "Replace":
			c.p.Delete = c.active
			note(c.p.why, "the job of "+clock(due)+" replaces it", c.active...)
			c.active = nil
		}
	}
	missed := -1 // the one that is not missed
	for t := times.Next(after); missed <= mostMissed && !t.IsZero() && !t.After(due); t = times.Next(t) {
		missed++
	}
	if missed > mostMissed {
		c.tell("Warning", "TooManyMissedTimes", fmt.Sprintf("too many missed start times: more than %d. Set or decrease "+
			".spec.startingDeadlineSeconds or check clock skew", mostMissed))
	}
	c.p.Create = c.job(name, due)
	note(c.p.why, "its time was "+clock(due), c.p.Create)
	c.note(due)
}

// job returns the job of a time.
func (c *cron) job(name string, due time.Time) *schedulingv1.Job {
	m := c.spec.GetJobTemplate().GetMetadata()
	return &schedulingv1.Job{
		Metadata: &metav1.ObjectMeta{
			Name: name, Namespace: c.CronJob.GetMetadata().GetNamespace(), Labels: m.GetLabels(),
			Annotations:     label(m.GetAnnotations(), scheduledTime, clock(due)),
			Finalizers:      m.GetFinalizers(),
			OwnerReferences: []*metav1.OwnerReference{object.OwnedBy(c.CronJob)},
		},
		Spec: proto.CloneOf(c.spec.GetJobTemplate().GetSpec()),
	}
}

// note writes down that a time has its job.
func (c *cron) note(due time.Time) {
	c.p.Status.LastScheduleTime = stamp(due)
	c.started[minute(due)] = true
	var list []int64
	for n := range c.started {
		list = append(list, n)
	}
	slices.Sort(list)
	var text []string
	for _, n := range list[max(0, len(list)-keptTimes):] {
		text = append(text, strconv.FormatInt(n, 10))
	}
	c.p.started = strings.Join(text, ",")
}

// report has an event say why a time has no job, once.
func (c *cron) report(reason string, due time.Time, message string) {
	c.p.reported = clock(due) + " " + reason
	if c.CronJob.GetMetadata().GetAnnotations()[reportedTime] != c.p.reported {
		c.tell("Warning", reason, message)
	}
}

func (c *cron) hold(why, unblock string) {
	c.p.Held = append(c.p.Held, held("CreateJob", c.CronJob, why, unblock)...)
}

func (c *cron) tell(typ, reason, message string) {
	c.p.Tell = append(c.p.Tell, Event{typ, reason, message})
}

// JobCreated is the event of a job that was created for a cron job.
func JobCreated(name string) Event { return Event{"Normal", "SuccessfulCreate", "Created job " + name} }

// JobDeleted is the event of a job that was deleted for a cron job.
func JobDeleted(name string) Event { return Event{"Normal", "SuccessfulDelete", "Deleted job " + name} }

// clock returns a time as documents have it.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// cleanUp deletes the oldest jobs that have ended, beyond those that are kept.
func (c *cron) cleanUp() {
	for _, end := range []struct {
		condition string
		limit     *int32
		keep      int
	}{
		{jobComplete, c.spec.SuccessfulJobsHistoryLimit, keepSucceeded},
		{jobFailed, c.spec.FailedJobsHistoryLimit, keepFailed},
	} {
		keep := end.keep
		if end.limit != nil {
			keep = int(*end.limit)
		}
		list := slices.DeleteFunc(slices.Clone(c.mine), func(j *schedulingv1.Job) bool {
			return !endedAs(j, end.condition) || object.Deleting(j)
		})
		old := list[:max(0, len(list)-keep)]
		old = old[:min(len(old), maxBurst)]
		note(c.p.why, fmt.Sprintf("%d later jobs that are %s are kept", keep, end.condition), old...)
		c.p.Delete = append(c.p.Delete, old...)
	}
}

// observe sets the status as seen before the plan is carried out, but for the time of the job that it creates.
func (c *cron) observe() {
	byUID := map[string]*schedulingv1.Job{}
	for _, j := range c.mine {
		byUID[j.GetMetadata().GetUid()] = j
		if at := j.GetStatus().GetCompletionTime(); endedAs(j, jobComplete) && at != nil &&
			at.AsTime().After(c.p.Status.GetLastSuccessfulTime().AsTime()) {
			c.p.Status.LastSuccessfulTime = at
		}
	}
	for _, was := range c.p.Status.GetActive() {
		j := byUID[was.GetUid()]
		switch {
		case j == nil:
			c.tell("Normal", "MissingJob", "Active job went missing: "+was.GetName())
		case endedAs(j, jobComplete):
			c.tell("Normal", "SawCompletedJob", "Saw completed job: "+was.GetName()+", condition: "+jobComplete)
		case endedAs(j, jobFailed):
			c.tell("Normal", "SawCompletedJob", "Saw completed job: "+was.GetName()+", condition: "+jobFailed)
		}
	}
	c.p.Status.Active = nil
	for _, j := range c.active {
		c.p.Status.Active = append(c.p.Status.Active, object.Reference(j))
	}
}
