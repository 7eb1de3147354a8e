package plan

import (
	"errors"
	"fmt"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	updatev1 "github.com/windlass-dev/windlass/gen/windlass/update/v1"
)

// DigestAnnotation of a Job is the digest of the release that made it.
const DigestAnnotation = "release.windlass.dev/digest"

// JobStep is what is done next with a Job of a release.
type JobStep int

// Steps of a Job.
const (
	RunJob     JobStep = iota // there is none: it is made
	AwaitJob                  // the release made it already
	ReplaceJob                // an earlier release made it: it is removed first, since a Job runs once
)

// NextOfJob returns what is done next with the Job of a release of a digest. live is the Job of that name, or nil; by
// is the annotation of what releases applied. An error means that no release made the Job, so that none replaces it.
func NextOfJob(live *schedulingv1.Job, by, digest string) (JobStep, error) {
	notes := live.GetMetadata().GetAnnotations()
	switch _, applied := notes[by]; {
	case live == nil:
		return RunJob, nil
	case !applied: // whatever else it says of itself
		return 0, errors.New("no release made the job of that name: delete it, or create it under another name")
	case notes[DigestAnnotation] == digest:
		return AwaitJob, nil
	}
	return ReplaceJob, nil
}

// Unended says which pods of an earlier Job have not ended: the next one begins when they have, since what they do must
// not be done twice at once. It is empty if there are none.
func Unended(pods []*schedulingv1.Pod) string {
	n, name := 0, ""
	for _, p := range pods {
		if phase := p.GetStatus().GetPhase(); phase != "Succeeded" && phase != "Failed" {
			if n++; n == 1 || p.GetMetadata().GetName() < name {
				name = p.GetMetadata().GetName()
			}
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("pod %q of the job before it has not ended", name)
	}
	return fmt.Sprintf("%d pods of the job before it have not ended, such as %q", n, name)
}

// JobsOf returns the Jobs of a release with what is known of their runs: those that ran before stay so, unless their
// manifest is another one.
func JobsOf(jobs, before []*updatev1.ReleaseJob) []*updatev1.ReleaseJob {
	for _, j := range jobs {
		if b := jobOf(before, j.GetObject()); b.GetHash() == j.GetHash() {
			j.Uid, j.CompletionTime = b.GetUid(), b.GetCompletionTime()
		}
	}
	return jobs
}

// Ran reports whether a Job ran to completion for its release.
func Ran(jobs []*updatev1.ReleaseJob, o *metav1.ObjectReference) bool {
	return jobOf(jobs, o).GetCompletionTime() != nil
}

// NoteJob returns the Jobs of a release with the note that one of them ran to completion, unless that is noted. A
// release that was kept before Jobs were noted has none.
func NoteJob(jobs []*updatev1.ReleaseJob, ran *updatev1.ReleaseJob) []*updatev1.ReleaseJob {
	j := jobOf(jobs, ran.GetObject())
	switch {
	case j == nil:
		return append(jobs, ran)
	case j.CompletionTime == nil:
		j.Uid, j.CompletionTime = ran.GetUid(), ran.GetCompletionTime()
	}
	return jobs
}

func jobOf(jobs []*updatev1.ReleaseJob, o *metav1.ObjectReference) *updatev1.ReleaseJob {
	for _, j := range jobs {
		if Identity(j.GetObject()) == Identity(o) {
			return j
		}
	}
	return nil
}
