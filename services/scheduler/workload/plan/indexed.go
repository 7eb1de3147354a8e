package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/kit/placement"
	"google.golang.org/protobuf/proto"
)

const (
	// IndexKey is the label and the annotation of a pod of an indexed job that hold its index.
	IndexKey = "batch.kubernetes.io/job-completion-index"
	// failuresKey is the annotation of a pod of a job with backoffLimitPerIndex that says how many pods of its index
	// failed before it.
	failuresKey = "batch.kubernetes.io/job-index-failure-count"
	// indexVariable is the environment variable of such a pod.
	indexVariable = "JOB_COMPLETION_INDEX"
	// indexFailures is the annotation of a job with backoffLimitPerIndex that says how many pods of an index failed, such
	// as "3:1,5:2": pods may go, and what they did still counts.
	indexFailures = "windlass.dev/index-failures"
	// Indexed is the completion mode of a job each of whose pods has an index, and needs to succeed once for each.
	Indexed = "Indexed"
)

func (j *job) indexed() bool { return j.spec.GetCompletionMode() == Indexed }

// perIndex reports whether each index has a number of failures of its own that it bears.
func (j *job) perIndex() bool { return j.indexed() && j.spec.BackoffLimitPerIndex != nil }

// indexOf returns the index of a pod; false if it has none below the number of completions.
func (j *job) indexOf(pod *schedulingv1.Pod) (int, bool) {
	n, err := strconv.Atoi(pod.GetMetadata().GetAnnotations()[IndexKey])
	return n, err == nil && n >= 0 && n < orOne(j.spec.Completions)
}

// countIndexes finds the indexes that are done, and those that failed. An index is done once, however many pods of it
// succeeded, and one that is done has not failed. counted are the pods whose failure counts now.
func (j *job) countIndexes(mine, counted []*schedulingv1.Pod) {
	most := orOne(j.spec.Completions)
	j.doneIndexes, _ = parseIndexes(j.status.GetCompletedIndexes(), most) // what cannot be read is no index
	for _, pod := range mine {
		if n, ok := j.indexOf(pod); ok && pod.GetStatus().GetPhase() == placement.Succeeded {
			j.doneIndexes.add(n)
		}
	}
	j.succeeded = j.doneIndexes.size()
	j.status.CompletedIndexes = j.doneIndexes.String()
	if !j.perIndex() {
		return
	}
	j.badIndexes, _ = parseIndexes(j.status.GetFailedIndexes(), most)
	j.failuresOf = parseFailures(j.v.Job.GetMetadata().GetAnnotations()[indexFailures])
	for _, pod := range counted {
		n, ok := j.indexOf(pod)
		if !ok || j.doneIndexes.has(n) {
			continue
		}
		j.failuresOf[n]++
		if j.failuresOf[n] > int(j.spec.GetBackoffLimitPerIndex()) || j.verdictOn(pod).action == failIndex {
			j.badIndexes.add(n)
		}
	}
	maps.DeleteFunc(j.failuresOf, func(n, _ int) bool { return j.doneIndexes.has(n) || j.badIndexes.has(n) })
	j.status.FailedIndexes = proto.String(j.badIndexes.String())
	j.p.failures = proto.String(formatFailures(j.failuresOf))
}

// beyondIndexes returns why the job fails for its failed indexes; "" if it does not.
func (j *job) beyondIndexes() (reason, message string) {
	bad := j.badIndexes.size()
	switch most := j.spec.MaxFailedIndexes; {
	case !j.perIndex() || bad == 0:
	case most != nil && bad > int(*most):
		return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
	case bad+j.doneIndexes.size() >= orOne(j.spec.Completions):
		return "FailedIndexes", "Job has failed indexes"
	}
	return "", ""
}

// successMet returns which rule of the success policy is met; false for none.
func (j *job) successMet() (message string, met bool) {
	if !j.indexed() || j.doneIndexes.size() == 0 {
		return "", false
	}
	for i, r := range j.spec.GetSuccessPolicy().GetRules() {
		done, need := j.doneIndexes.size(), int(r.GetSucceededCount())
		if r.SucceededIndexes != nil {
			set, err := parseIndexes(r.GetSucceededIndexes(), orOne(j.spec.Completions))
			if err != nil {
				continue // the rules of the kind keep it out
			}
			done, need = j.doneIndexes.within(set), cmp.Or(need, set.size())
		}
		if need > 0 && done >= need {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}

// surplus returns the active pods whose index is done or failed, or belongs to an older active pod, or that have none.
func (j *job) surplus() []*schedulingv1.Pod {
	taken := map[int]bool{}
	var out []*schedulingv1.Pod
	for _, pod := range slices.SortedFunc(slices.Values(j.active), byAge) {
		n, ok := j.indexOf(pod)
		if !ok || taken[n] || j.doneIndexes.has(n) || j.badIndexes.has(n) {
			out = append(out, pod)
			continue
		}
		taken[n] = true
	}
	return out
}

// freeIndexes returns the lowest n indexes that are to run and that no pod has which is active or, if only pods that
// have ended are replaced, terminating.
func (j *job) freeIndexes(n int) (out []int) {
	var taken indexSet
	holders := j.active
	if j.replacesEndedOnly() {
		holders = slices.Concat(j.active, j.leaving)
	}
	for _, pod := range holders {
		if i, ok := j.indexOf(pod); ok {
			taken.add(i)
		}
	}
	for i, most := 0, orOne(j.spec.Completions); i < most && len(out) < n; i++ {
		skipped := false
		for _, set := range []indexSet{j.doneIndexes, j.badIndexes, taken} {
			if set.has(i) {
				i, skipped = set[set.at(i)].last, true
				break
			}
		}
		if !skipped {
			out = append(out, i)
		}
	}
	return out
}

// dueIndexes returns those of some indexes whose last pod did not fail a short time ago. The others wait.
func (j *job) dueIndexes(list []int) (out []int) {
	if !j.perIndex() {
		return list
	}
	type lost struct {
		count int
		at    time.Time
	}
	last := map[int]lost{}
	for _, pod := range j.mine {
		if n, ok := j.indexOf(pod); ok && pod.GetStatus().GetPhase() == placement.Failed {
			l := last[n]
			l.count++
			if at := endOf(pod); at.After(l.at) {
				l.at = at
			}
			last[n] = l
		}
	}
	for _, n := range list {
		l := last[n]
		if l.count > 0 {
			if at := j.backOffEnds(l.at, l.count, strconv.Itoa(n)); j.v.Now.Before(at) {
				j.holdSince(stamp(l.at), "CreatePod",
					fmt.Sprintf("index %d has no pod, but its last one failed: the next one comes "+
						"after a pause, which doubles each time", n), pauseEnds(at))
				j.p.Wake = sooner(j.p.Wake, at)
				continue
			}
		}
		out = append(out, n)
	}
	return out
}

// setIndex gives a new pod its index.
func (j *job) setIndex(pod *schedulingv1.Pod, index int) {
	text := strconv.Itoa(index)
	m := pod.GetMetadata()
	m.Labels, m.Annotations = label(m.Labels, IndexKey, text), label(m.Annotations, IndexKey, text)
	if j.perIndex() {
		m.Annotations[failuresKey] = strconv.Itoa(j.failuresOf[index])
	}
	name := j.v.Job.GetMetadata().GetName()
	suffix := "-" + text
	m.GenerateName = name[:min(len(name), maxBase-1-len(suffix))] + suffix + "-"
	if pod.Spec.Hostname == "" && len(name)+len(suffix) <= 63 { // as a DNS label may be
		pod.Spec.Hostname = name + suffix
	}
	for _, c := range slices.Concat(pod.Spec.GetInitContainers(), pod.Spec.GetContainers()) {
		if !slices.ContainsFunc(c.GetEnv(), func(e *schedulingv1.EnvVar) bool { return e.GetName() == indexVariable }) {
			c.Env = append(c.Env, &schedulingv1.EnvVar{Name: indexVariable, Value: proto.String(text)})
		}
	}
}

// parseFailures reads what formatFailures wrote; what cannot be read is no failure.
func parseFailures(text string) map[int]int {
	out := map[int]int{}
	for part := range strings.SplitSeq(text, ",") {
		index, count, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(index)
		if failures, err2 := strconv.Atoi(count); err == nil && err2 == nil && n >= 0 && failures > 0 {
			out[n] = failures
		}
	}
	return out
}

func formatFailures(of map[int]int) string {
	var out []string
	for _, n := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%d:%d", n, of[n]))
	}
	return strings.Join(out, ",")
}
