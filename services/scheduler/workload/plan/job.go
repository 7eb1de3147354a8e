package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/object"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Conditions of a job.
const (
	jobComplete  = "Complete"
	jobFailed    = "Failed"
	jobSuspended = "Suspended"
)

const (
	firstBackOff   = 10 * time.Second // between a failed pod and the next one, doubled with each failure
	longestBackOff = 6 * time.Minute
	defaultBackOff = 6 // failed pods that a job bears
)

// countedPods is the annotation of a job with the uids of the pods that are there and have ended, and that its status
// counts: pods may go, such as with their node, and what they did still counts, once.
const countedPods = "windlass.dev/counted-pods"

// ControllerUIDLabel is the label by which a job knows its pods: its value is the job's uid.
const ControllerUIDLabel = "batch.kubernetes.io/controller-uid"

// JobView is everything that a job is decided on.
type JobView struct {
	Now  time.Time
	Job  *schedulingv1.Job
	Pods []*schedulingv1.Pod // of the namespace: those that the job manages, and those without a controller
}

// JobPlan is what is done for a job. While Adopt or Release has anything, there is nothing else in it: look again
// afterwards.
type JobPlan struct {
	Adopt, Release []*schedulingv1.Pod
	Create         []*schedulingv1.Pod // without names
	Delete         []*schedulingv1.Pod
	Remove         bool    // the job has been kept long enough after its end
	Tell           []Event // for the job, beside those of Create and Delete
	Status         *schedulingv1.JobStatus
	Held           []*metav1.HeldBack // what would be done and waits
	Wake           time.Time          // when to decide again even if nothing changes; zero means never

	counted *string // value of the annotation that goes with Status; nil for none
	job     *schedulingv1.Job
	why     reasons
}

// Actions returns what is done, in its order, and why.
func (p JobPlan) Actions() []*metav1.PlannedAction {
	var remove []*schedulingv1.Job
	if p.Remove {
		remove = append(remove, p.job)
	}
	return slices.Concat(transfers(p.Adopt, p.Release), planned("CreatePod", p.Create, p.why),
		planned("DeletePod", p.Delete, p.why), planned("DeleteJob", remove, p.why))
}

// JobAfter returns a job as it is stored after a plan was carried out: what is counted and by which pods is in one
// record.
func JobAfter(j *schedulingv1.Job, p JobPlan) *schedulingv1.Job {
	out := proto.CloneOf(j)
	out.Status = p.Status
	if p.counted != nil {
		out.Metadata.Annotations = label(out.Metadata.Annotations, countedPods, *p.counted)
	}
	return out
}

// JobLabels returns the labels of a job's pods, in the present spelling and in the one that documents still use.
func JobLabels(j *schedulingv1.Job) map[string]string {
	name, uid := j.GetMetadata().GetName(), j.GetMetadata().GetUid()
	return map[string]string{
		"batch.kubernetes.io/job-name": name, "job-name": name, ControllerUIDLabel: uid,
		"controller-uid": uid,
	}
}

// JobSelector returns which pods belong to a job: those that carry its uid, if it has no selector.
func JobSelector(j *schedulingv1.Job) *metav1.LabelSelector {
	if s := j.GetSpec().GetSelector(); len(s.GetMatchLabels()) > 0 || len(s.GetMatchExpressions()) > 0 {
		return s
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{ControllerUIDLabel: j.GetMetadata().GetUid()}}
}

// Job decides which pods a job gets, and whether it has ended.
func Job(v JobView) JobPlan {
	c := claimAll(v.Job, matcher(JobSelector(v.Job)), v.Pods, placement.Active)
	if !c.settled() {
		return JobPlan{Adopt: c.adopt, Release: c.release}
	}
	j := newJob(v, c.mine)
	switch {
	case object.Deleting(v.Job):
	case j.ended():
		j.expire()
	default:
		j.work()
	}
	j.p.Status = j.status
	return j.p
}

// job is a job while a plan is made for it.
type job struct {
	v         JobView
	spec      *schedulingv1.JobSpec
	active    []*schedulingv1.Pod
	failures  int       // since the last pod that succeeded
	failedAt  time.Time // when the last one failed
	succeeded int
	failed    int
	restarts  int // of containers in pods that are active
	status    *schedulingv1.JobStatus
	p         JobPlan
}

func newJob(v JobView, mine []*schedulingv1.Pod) *job {
	j := &job{
		v: v, spec: v.Job.GetSpec(), status: proto.CloneOf(v.Job.GetStatus()),
		p: JobPlan{job: v.Job, why: reasons{}},
	}
	if j.status == nil {
		j.status = &schedulingv1.JobStatus{}
	}
	ready, leaving := 0, 0
	var lastSuccess time.Time
	for _, pod := range mine {
		switch {
		case pod.GetStatus().GetPhase() == placement.Succeeded:
			if at := endOf(pod); at.After(lastSuccess) {
				lastSuccess = at
			}
		case pod.GetStatus().GetPhase() == placement.Failed:
		case object.Deleting(pod):
			leaving++
		default:
			j.active = append(j.active, pod)
			j.restarts += int(restarts(pod))
			if placement.IsReady(pod) {
				ready++
			}
		}
	}
	for _, pod := range mine {
		if at := endOf(pod); pod.GetStatus().GetPhase() == placement.Failed && at.After(lastSuccess) {
			j.failures++
			if at.After(j.failedAt) {
				j.failedAt = at
			}
		}
	}
	j.count(mine)
	s := j.status
	s.Active, s.Ready, s.Terminating = number(len(j.active)), number(ready), number(leaving)
	s.Succeeded, s.Failed = number(j.succeeded), number(j.failed)
	return j
}

// count counts the pods that ended since the status was written, and notes all that are there.
func (j *job) count(mine []*schedulingv1.Pod) {
	text, noted := j.v.Job.GetMetadata().GetAnnotations()[countedPods]
	before := strings.Split(text, ",") // in order
	var uids []string
	for _, pod := range mine {
		if !placement.Terminated(pod) {
			continue
		}
		uid := pod.GetMetadata().GetUid()
		uids = append(uids, uid)
		switch {
		case noted && has(before, uid):
		case pod.GetStatus().GetPhase() == placement.Succeeded:
			j.succeeded++
		default:
			j.failed++
		}
	}
	s := j.status
	if noted {
		j.succeeded, j.failed = j.succeeded+int(s.GetSucceeded()), j.failed+int(s.GetFailed())
	} else { // which pods the status counts is not known
		j.succeeded, j.failed = max(j.succeeded, int(s.GetSucceeded())), max(j.failed, int(s.GetFailed()))
	}
	if noted || len(uids) > 0 {
		slices.Sort(uids)
		j.p.counted = proto.String(strings.Join(uids, ","))
	}
}

// has reports whether a value is in a sorted list.
func has(list []string, value string) bool {
	_, found := slices.BinarySearch(list, value)
	return found
}

// endOf returns when a pod ended, as well as it is known.
func endOf(pod *schedulingv1.Pod) time.Time {
	var at time.Time
	for _, c := range pod.GetStatus().GetContainerStatuses() {
		if t := c.GetState().GetTerminated().GetFinishedAt(); t != nil && t.AsTime().After(at) {
			at = t.AsTime()
		}
	}
	if t := placement.PodCondition(pod, "Ready").GetLastTransitionTime(); at.IsZero() && t != nil {
		at = t.AsTime()
	}
	if at.IsZero() {
		return created(pod)
	}
	return at
}

// end returns the condition that says how the job ended; nil if it has not.
func (j *job) end() *metav1.Condition {
	for _, typ := range []string{jobComplete, jobFailed} {
		if c := object.FindCondition(j.status.GetConditions(), typ); c.GetStatus() == "True" {
			return c
		}
	}
	return nil
}

func (j *job) ended() bool { return j.end() != nil }

// expire has the job removed once it has been kept for as long as it says. Pods that still run go before.
func (j *job) expire() {
	j.drop("the job has ended")
	ttl := j.spec.TtlSecondsAfterFinished
	if ttl == nil {
		return
	}
	at := j.end().GetLastTransitionTime().AsTime().Add(seconds(*ttl))
	if j.v.Now.Before(at) {
		j.p.Wake = at
		return
	}
	j.p.Remove = true
	note(j.p.why, fmt.Sprintf("it ended more than %d s ago", *ttl), j.v.Job)
}

// work moves a job on that has not ended.
func (j *job) work() {
	j.checkSuspended()
	if j.spec.GetSuspend() {
		j.drop("the job is suspended")
		return
	}
	if j.status.GetStartTime() == nil {
		j.status.StartTime = stamp(j.v.Now)
	}
	deadline := j.status.GetStartTime().AsTime().Add(seconds(j.spec.GetActiveDeadlineSeconds()))
	limited := j.spec.ActiveDeadlineSeconds != nil
	switch {
	case limited && !j.v.Now.Before(deadline):
		j.fail("DeadlineExceeded", "Job was active longer than specified deadline")
		return
	case j.beyondLimit():
		j.fail("BackoffLimitExceeded", "Job has reached the specified backoff limit")
		return
	case j.done():
		j.complete()
		return
	}
	if limited {
		j.p.Wake = deadline
	}
	j.manage()
}

// checkSuspended keeps the condition Suspended and the time of the start in sync with the spec.
func (j *job) checkSuspended() {
	was := object.IsTrue(j.status.GetConditions(), jobSuspended)
	switch suspend := j.spec.GetSuspend(); {
	case suspend && !was:
		j.setCondition(jobSuspended, "True", "JobSuspended", "Job suspended")
		j.status.StartTime = nil
		j.tell("Normal", "Suspended", "Job suspended")
	case !suspend && was:
		j.setCondition(jobSuspended, "False", "JobResumed", "Job resumed")
		j.status.StartTime = nil
		j.tell("Normal", "Resumed", "Job resumed")
	}
}

// beyondLimit reports whether more failed than the job bears. Where containers start again in their pods, these starts
// count as well.
func (j *job) beyondLimit() bool {
	limit := defaultBackOff
	if n := j.spec.BackoffLimit; n != nil {
		limit = int(*n)
	}
	if j.failed > limit {
		return true
	}
	return j.spec.GetTemplate().GetSpec().GetRestartPolicy() == "OnFailure" && j.restarts > 0 &&
		j.failed+j.restarts > limit
}

// wanted returns how many pods must succeed, and how many may run at once. all is false for a job that is done when one
// pod has succeeded and no other runs.
func (j *job) wanted() (completions, parallelism int, all bool) {
	parallelism = orOne(j.spec.Parallelism)
	if j.spec.Completions == nil && j.spec.Parallelism != nil {
		return 0, parallelism, false
	}
	return orOne(j.spec.Completions), parallelism, true
}

func (j *job) done() bool {
	completions, _, all := j.wanted()
	if !all {
		return j.succeeded > 0 && len(j.active) == 0
	}
	return j.succeeded >= completions
}

// manage makes the pods that are missing, and removes those that are too many.
func (j *job) manage() {
	completions, want, all := j.wanted()
	switch {
	case all:
		want = min(want, completions-j.succeeded)
	case j.succeeded > 0: // the work is used up: what runs ends by itself
		want = min(want, len(j.active))
	}
	count := fmt.Sprintf("%d of %d pods that may run now are there", len(j.active), want)
	missing := want - len(j.active)
	if missing < 0 {
		leastMissed(j.active, nil)
		j.p.Delete = j.active[:min(-missing, maxBurst)]
		for _, pod := range j.p.Delete {
			note(j.p.why, count+", and this one is missed least: "+lessMissed(pod), pod)
		}
	}
	if missing <= 0 {
		return
	}
	if j.failures > 0 {
		if at := j.failedAt.Add(doubled(firstBackOff, j.failures-1, longestBackOff)); j.v.Now.Before(at) {
			j.p.Held = held("CreatePod", j.v.Job,
				count+", but the last one failed: the next one comes after a pause, which doubles each time",
				"the pause ends at "+at.UTC().Format(time.RFC3339))
			j.p.Wake = sooner(j.p.Wake, at)
			return
		}
	}
	for range min(missing, maxBurst) {
		j.p.Create = append(j.p.Create, j.pod())
	}
	note(j.p.why, count, j.p.Create...)
}

func (j *job) pod() *schedulingv1.Pod {
	pod := newPod(j.v.Job, j.spec.GetTemplate())
	for key, value := range JobLabels(j.v.Job) {
		if len(value) <= validation.LabelValueMaxLength {
			pod.Metadata.Labels = label(pod.Metadata.Labels, key, value)
		}
	}
	return pod
}

// drop has all pods removed that run.
func (j *job) drop(why string) {
	j.p.Delete = j.active
	note(j.p.why, why, j.active...)
}

func (j *job) fail(reason, message string) {
	j.drop(message)
	j.setCondition(jobFailed, "True", reason, message)
	j.tell("Warning", reason, message)
	j.wakeToExpire()
}

func (j *job) complete() {
	j.drop("the job is complete")
	j.setCondition(jobComplete, "True", "CompletionsReached", "Reached expected number of succeeded pods")
	j.status.CompletionTime = stamp(j.v.Now)
	j.tell("Normal", "Completed", "Job completed")
	j.wakeToExpire()
}

func (j *job) wakeToExpire() {
	if ttl := j.spec.TtlSecondsAfterFinished; ttl != nil {
		j.p.Wake = j.v.Now.Add(seconds(*ttl))
	}
}

func (j *job) setCondition(typ, status, reason, message string) {
	j.status.Conditions = object.SetCondition(j.status.GetConditions(), &metav1.Condition{
		Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message),
	}, j.v.Now)
}

func (j *job) tell(typ, reason, message string) {
	j.p.Tell = append(j.p.Tell, Event{typ, reason, message})
}
