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
	"github.com/windlass-dev/windlass/kit/spans"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Conditions of a job. Success and failure are decided first, and are in force once all pods of the job are gone or
// have ended.
const (
	jobComplete  = "Complete"
	jobSucceeds  = "SuccessCriteriaMet"
	jobFailed    = "Failed"
	jobFails     = "FailureTarget"
	jobSuspended = "Suspended"
)

const (
	firstBackOff   = 10 * time.Second // between a failed pod and the next one, doubled with each failure
	longestBackOff = 6 * time.Minute
	defaultBackOff = 6 // failed pods that a job bears
)

// countedPods is the annotation of a job with the uids of the pods that were there and had ended when its status was
// last counted up, and that it counts: pods may go, such as with their node, and what they did still counts, once.
const countedPods = "windlass.dev/counted-pods"

// countedMost is how many uids countedPods has: no more than half of what all annotations of an object may have. Pods
// beyond it are counted once counted ones are deleted, as those that are too many are.
const countedMost = 3000

// ControllerUIDLabel is the label by which a job knows its pods: its value is the job's uid.
const ControllerUIDLabel = "batch.kubernetes.io/controller-uid"

// JobView is everything that a job is decided on.
type JobView struct {
	Now   time.Time
	Clock spans.Clock // which measures waits
	Job   *schedulingv1.Job
	Pods  []*schedulingv1.Pod // of the namespace: those that the job manages, and those without a controller

	Deaths YoungDeaths
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
	Counted        []*schedulingv1.Pod // pods that have ended and that Status counts
	Held           []*metav1.HeldBack  // what would be done and waits
	Wake           time.Time           // when to decide again even if nothing changes; zero means never
	States         spans.Seen          // what the next view has seen

	counted  *string // value of the annotation that goes with Status; nil for none
	failures *string // the same of the failures of its indexes
	job      *schedulingv1.Job
	why      reasons
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
	if p.failures != nil {
		out.Metadata.Annotations = label(out.Metadata.Annotations, indexFailures, *p.failures)
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
	v.Clock = clockAt(v.Clock, v.Now)
	j := newJob(v, c.mine)
	switch {
	case object.Deleting(v.Job):
	case j.ended():
		j.expire()
	default:
		j.work()
	}
	j.p.Status, j.p.States = j.status, j.v.Clock.Used
	return j.p
}

// job is a job while a plan is made for it.
type job struct {
	v         JobView
	spec      *schedulingv1.JobSpec
	mine      []*schedulingv1.Pod
	active    []*schedulingv1.Pod
	leaving   []*schedulingv1.Pod // that are being deleted and have not ended
	failures  int                 // since the last pod that succeeded
	failedAt  time.Time           // when the last one failed
	succeeded int
	failed    int
	restarts  int // of containers in pods that are active
	uncounted int // pods that ended, beyond those that countedPods has room for

	doomed string // why a pod that failed fails the job; empty if none does

	// of an indexed job
	doneIndexes, badIndexes indexSet
	failuresOf              map[int]int

	status *schedulingv1.JobStatus
	p      JobPlan
}

func newJob(v JobView, mine []*schedulingv1.Pod) *job {
	j := &job{
		v: v, spec: v.Job.GetSpec(), status: proto.CloneOf(v.Job.GetStatus()), mine: mine,
		p: JobPlan{job: v.Job, why: reasons{}},
	}
	if j.status == nil {
		j.status = &schedulingv1.JobStatus{}
	}
	ready := 0
	var lastSuccess time.Time
	for _, pod := range mine {
		switch {
		case pod.GetStatus().GetPhase() == placement.Succeeded:
			if at := endOf(pod); at.After(lastSuccess) {
				lastSuccess = at
			}
		case pod.GetStatus().GetPhase() == placement.Failed:
		case object.Deleting(pod):
			j.leaving = append(j.leaving, pod)
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
	counted := j.count(mine)
	if j.indexed() {
		j.countIndexes(mine, counted)
	}
	s := j.status
	s.Active, s.Ready, s.Terminating = number(len(j.active)), number(ready), number(len(j.leaving))
	s.Succeeded, s.Failed = number(j.succeeded), number(j.failed)
	return j
}

// count counts the pods that ended since the status was written, and then notes all that are there and counted. It
// returns those whose failure counts now: not those that the failure policy ignores.
func (j *job) count(mine []*schedulingv1.Pod) (failures []*schedulingv1.Pod) {
	text, noted := j.v.Job.GetMetadata().GetAnnotations()[countedPods]
	before := strings.Split(text, ",") // in order
	var uids []string
	var fresh []*schedulingv1.Pod
	for _, pod := range mine {
		switch uid := pod.GetMetadata().GetUid(); {
		case !placement.Terminated(pod):
		case noted && has(before, uid):
			uids = append(uids, uid)
			j.p.Counted = append(j.p.Counted, pod)
		default:
			fresh = append(fresh, pod)
		}
	}
	room := max(0, countedMost-len(uids))
	if room < min(len(fresh), countedMost/2) { // each write has the whole list, so few pods are not counted alone
		room = 0
	}
	room = min(room, len(fresh))
	j.uncounted = len(fresh) - room
	j.p.Counted = append(j.p.Counted, fresh[:room]...)
	for _, pod := range fresh[:room] {
		uids = append(uids, pod.GetMetadata().GetUid())
		if pod.GetStatus().GetPhase() == placement.Succeeded {
			j.succeeded++
			continue
		}
		v := j.verdictOn(pod)
		if v.action == failJob && j.doomed == "" {
			j.doomed = v.message
		}
		if v.action != ignore {
			failures = append(failures, pod)
		}
	}
	j.failed = len(failures)
	s := j.status
	if noted {
		j.succeeded, j.failed = j.succeeded+int(s.GetSucceeded()), j.failed+int(s.GetFailed())
	} else { // which pods the status counts is not known
		j.succeeded, j.failed = max(j.succeeded, int(s.GetSucceeded())), max(j.failed, int(s.GetFailed()))
	}
	if room > 0 {
		slices.Sort(uids)
		j.p.counted = proto.String(strings.Join(uids, ","))
	}
	return failures
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
	ended := j.end().GetLastTransitionTime().AsTime()
	at := j.v.Clock.End(spans.Key(ended, "ended"), ended, seconds(*ttl))
	if j.v.Now.Before(at) {
		j.p.Wake = at
		j.holdSince(j.end().GetLastTransitionTime(), "DeleteJob", fmt.Sprintf("it is kept for %d s after its end", *ttl),
			"the time ends at "+at.UTC().Format(time.RFC3339))
		return
	}
	j.p.Remove = true
	note(j.p.why, fmt.Sprintf("it ended more than %d s ago", *ttl), j.v.Job)
}

// work moves a job on that has not ended.
func (j *job) work() {
	j.checkSuspended()
	if j.ending() == nil {
		j.decideEnd()
	}
	switch c := j.ending(); {
	case c != nil:
		j.finish(c)
	case j.spec.GetSuspend():
		j.drop("the job is suspended")
	default:
		if j.status.GetStartTime() == nil {
			j.status.StartTime = stamp(j.v.Now)
		}
		if j.spec.ActiveDeadlineSeconds != nil {
			j.p.Wake = j.deadline()
		}
		j.manage()
	}
}

// deadline returns when a job that runs fails for its activeDeadlineSeconds.
func (j *job) deadline() time.Time {
	began := j.status.GetStartTime().AsTime()
	return j.v.Clock.End(spans.Key(began, "active"), began, seconds(j.spec.GetActiveDeadlineSeconds()))
}

// ending returns the condition that says how the job will end; nil if that is not decided.
func (j *job) ending() *metav1.Condition {
	for _, typ := range []string{jobFails, jobSucceeds} {
		if c := object.FindCondition(j.status.GetConditions(), typ); c.GetStatus() == "True" {
			return c
		}
	}
	return nil
}

// decideEnd decides whether the job has failed or succeeded. A suspended job fails for its pods, and nothing else.
func (j *job) decideEnd() {
	overdue := j.spec.ActiveDeadlineSeconds != nil && j.status.GetStartTime() != nil && !j.spec.GetSuspend() &&
		!j.v.Now.Before(j.deadline())
	reason, message := j.beyondIndexes()
	switch {
	case j.doomed != "":
		j.setCondition(jobFails, "True", "PodFailurePolicy", j.doomed)
	case j.beyondLimit():
		j.setCondition(jobFails, "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
	case overdue:
		j.setCondition(jobFails, "True", "DeadlineExceeded", "Job was active longer than specified deadline")
	case reason != "":
		j.setCondition(jobFails, "True", reason, message)
	default:
		if message, met := j.successMet(); met {
			j.setCondition(jobSucceeds, "True", "SuccessPolicy", message)
		} else if !j.spec.GetSuspend() && j.done() {
			j.setCondition(jobSucceeds, "True", "CompletionsReached", "Reached expected number of succeeded pods")
		}
	}
}

// finish ends a job whose end is decided: its pods go first.
func (j *job) finish(c *metav1.Condition) {
	j.drop(c.GetMessage())
	if left := slices.Concat(j.leaving, j.active); len(left) > 0 {
		action, typ := "FailJob", jobFailed
		if c.GetType() == jobSucceeds {
			action, typ = "CompleteJob", jobComplete
		}
		j.holdSince(c.GetLastTransitionTime(), action,
			fmt.Sprintf("%d of its pods have not ended, such as %s%s: the job is %s after that", len(left),
				left[0].GetMetadata().GetName(), onNode(left[0]), typ), untilEnded)
		return
	}
	if c.GetType() == jobFails {
		j.setCondition(jobFailed, "True", c.GetReason(), c.GetMessage())
		j.tell("Warning", c.GetReason(), c.GetMessage())
	} else {
		j.setCondition(jobComplete, "True", c.GetReason(), c.GetMessage())
		j.status.CompletionTime = stamp(j.v.Now)
		j.tell("Normal", "Completed", "Job completed")
	}
	if ttl := j.spec.TtlSecondsAfterFinished; ttl != nil {
		j.p.Wake = j.v.Now.Add(seconds(*ttl))
	}
}

// untilEnded releases what waits for a pod that is being deleted.
const untilEnded = "their nodes report that they ended, or the nodes are deleted"

// onNode names the node of a pod, for people.
func onNode(pod *schedulingv1.Pod) string {
	if node := pod.GetSpec().GetNodeName(); node != "" {
		return " on node " + node
	}
	return ""
}

// holdSince notes what waits of the job, and since when.
func (j *job) holdSince(since *timestamppb.Timestamp, action, why, unblock string) {
	h := held(action, j.v.Job, why, unblock)
	h[0].SinceTime = since
	j.p.Held = append(j.p.Held, h...)
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

// beyondLimit reports whether more pods failed than the job bears. Where containers start again in their pods, as many
// starts of those that are active end it, too. Source: Kubernetes' job controller.
func (j *job) beyondLimit() bool {
	limit := defaultBackOff
	if n := j.spec.BackoffLimit; n != nil {
		limit = int(*n)
	} else if j.perIndex() {
		return false
	}
	if j.failed > limit {
		return true
	}
	return j.spec.GetTemplate().GetSpec().GetRestartPolicy() == "OnFailure" && j.restarts >= max(1, limit)
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
	if j.indexed() {
		if j.p.Delete = j.surplus(); len(j.p.Delete) > 0 {
			note(j.p.why, "its index is done or failed, or another pod has it", j.p.Delete...)
			return
		}
	}
	completions, want, all := j.wanted()
	switch {
	case all:
		want = max(0, min(want, completions-j.succeeded-j.badIndexes.size()))
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
	if j.replacesEndedOnly() && missing > 0 && len(j.leaving) > 0 {
		first := j.leaving[0]
		j.holdSince(first.GetMetadata().GetDeletionTimestamp(), "CreatePod",
			fmt.Sprintf("%s, but %d others are being deleted "+
				"and have not ended, such as %s%s, and only pods that have ended are replaced", count, len(j.leaving),
				first.GetMetadata().GetName(), onNode(first)), untilEnded)
		missing -= len(j.leaving)
	}
	if missing <= 0 {
		return
	}
	if j.uncounted > 0 { // what they did may be what is missing
		j.p.Held = append(j.p.Held, held("CreatePod", j.v.Job,
			fmt.Sprintf("%s, but %d that ended are not counted yet", count, j.uncounted),
			"they are counted, at the latest when pods that are counted are deleted")...)
		return
	}
	if j.failures > 0 && !j.perIndex() {
		if at := j.backOffEnds(j.failedAt, j.failures); j.v.Now.Before(at) {
			j.holdSince(stamp(j.failedAt), "CreatePod",
				count+", but the last one failed: the next one comes after a pause, which doubles each time",
				pauseEnds(at))
			j.p.Wake = sooner(j.p.Wake, at)
			return
		}
	}
	if at := j.v.Deaths.until(j.v.Now); j.v.Now.Before(at) {
		j.holdSince(stamp(j.v.Deaths.Last), "CreatePod", count+diedYoung, pauseEnds(at))
		j.p.Wake = sooner(j.p.Wake, at)
		return
	}
	missing = min(missing, maxBurst)
	if j.indexed() {
		for _, index := range j.dueIndexes(j.freeIndexes(missing)) {
			pod := j.pod()
			j.setIndex(pod, index)
			j.p.Create = append(j.p.Create, pod)
		}
	} else {
		for range missing {
			j.p.Create = append(j.p.Create, j.pod())
		}
	}
	note(j.p.why, count, j.p.Create...)
}

// replacesEndedOnly reports whether a pod that is being deleted is replaced only once it has ended.
func (j *job) replacesEndedOnly() bool {
	if p := j.spec.PodReplacementPolicy; p != nil {
		return *p == "Failed"
	}
	return j.spec.GetPodFailurePolicy() != nil
}

// backOffEnds returns when the pause after the last of some failures ends.
func (j *job) backOffEnds(last time.Time, failures int, of ...string) time.Time {
	return j.v.Clock.End(spans.Key(last, append(of, "failed")...), last, doubled(firstBackOff, failures-1, longestBackOff))
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

func (j *job) setCondition(typ, status, reason, message string) {
	j.status.Conditions = object.SetCondition(j.status.GetConditions(), &metav1.Condition{
		Type: typ, Status: status, Reason: proto.String(reason), Message: proto.String(message),
	}, j.v.Now)
}

func (j *job) tell(typ, reason, message string) {
	j.p.Tell = append(j.p.Tell, Event{typ, reason, message})
}
