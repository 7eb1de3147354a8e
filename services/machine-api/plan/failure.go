package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1 "github.com/windlass-dev/windlass/gen/windlass/machine/v1"
	"google.golang.org/protobuf/proto"
)

// Questions to other programs that may fail as actions do. A deletion cannot go on without the answer.
const (
	GetDrain Action = "GetDrain"
	GetNode  Action = "GetNode"
)

const (
	// storeFailureAfter bounds the age of a stored failure whose error did not change: with 5,000 failing machines it
	// is 17 writes a second.
	storeFailureAfter = 5 * time.Minute
	// storeErrorAfter is the time between two stored errors of one step, some of which differ with each attempt.
	storeErrorAfter = time.Minute
	maxErrorLength  = 1024 // bytes; an error may contain a document
)

// Fault is a step that failed just now.
type Fault struct {
	Step    Action
	Message string
}

// AddFailure returns the failures of a machine's steps after one more: of a step that failed before, the attempts are
// counted on and the time of the first one is kept. It does not modify list.
func AddFailure(list []*machinev1.StepFailure, f Fault, now time.Time) []*machinev1.StepFailure {
	failure := &machinev1.StepFailure{Step: string(f.Step), Since: seconds(now)}
	if i := failureOf(list, string(f.Step)); i >= 0 {
		failure = proto.Clone(list[i]).(*machinev1.StepFailure)
	}
	failure.Message = truncate(f.Message, maxErrorLength)
	failure.LastAttemptTime, failure.Attempts = seconds(now), failure.GetAttempts()+1
	failure.Resolution = resolution(f.Step)
	out := append(EndFailure(list, f.Step), failure)
	slices.SortFunc(out, func(a, b *machinev1.StepFailure) int { return cmp.Compare(a.GetStep(), b.GetStep()) })
	return out
}

// EndFailure returns the failures of a machine's steps without those of some steps. It does not modify list.
func EndFailure(list []*machinev1.StepFailure, steps ...Action) []*machinev1.StepFailure {
	var out []*machinev1.StepFailure
	for _, f := range list {
		if !slices.Contains(steps, Action(f.GetStep())) {
			out = append(out, f)
		}
	}
	return out
}

func failureOf(list []*machinev1.StepFailure, step string) int {
	return slices.IndexFunc(list, func(f *machinev1.StepFailure) bool { return f.GetStep() == step })
}

// truncate returns the first n bytes of a text, without a part of a character.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 { // the second or a later byte of a character
		n--
	}
	return text[:n]
}

// resolution returns what lets a failing step succeed.
func resolution(a Action) string {
	const asked = "the step is repeated until it succeeds"
	switch a {
	case GetInstance, DeleteInstance:
		return asked + "; check the provider, or if it no longer exists delete the machine with --forget"
	case CreateDrain, GetDrain, DeleteDrain, GetNode, DeleteNode, UpdateNode:
		return asked + "; check eviction-controller, which owns nodes and drains"
	}
	return asked + "; check the cluster's etcd"
}

// failures takes over the failures of the steps that are still to be done. The stored ones stay as long as the new ones
// say nothing else, so that attempts alone do not write.
func (n *next) failures() {
	var present []*machinev1.StepFailure
	known := n.v.Failures
	for _, f := range n.v.Faults {
		if failureOf(known, string(f.Step)) < 0 {
			known = AddFailure(known, f, n.v.Now)
		}
	}
	for _, f := range known {
		step := Action(f.GetStep())
		called := step == DeleteInstance && n.v.Deletion.Busy // its answer is not there yet
		if n.failed(step) || called || slices.Contains(n.p.Actions, step) {
			present = append(present, f)
		}
	}
	n.p.Failures = present
	stored := n.m.GetStatus().GetStepFailures()
	same := len(stored) == len(present)
	for _, f := range present {
		i := failureOf(stored, f.GetStep())
		if i >= 0 && !tellsMore(stored[i], f) {
			continue
		}
		same = false
		n.tell("Warning", "Failed"+f.GetStep(), fmt.Sprintf("%s (attempts: %d)", f.GetMessage(), f.GetAttempts()))
	}
	if !same {
		n.status.StepFailures = present
	}
	if len(present) > 0 {
		f := present[0]
		text := cmp.Or(n.p.WaitsFor, f.GetStep()+" to succeed")
		if !strings.Contains(text, f.GetMessage()) {
			text += ": " + f.GetMessage()
		}
		n.p.WaitsFor = fmt.Sprintf("%s (%s failed %d times since %s)", text, f.GetStep(), f.GetAttempts(),
			f.GetSince().AsTime().UTC().Format(time.RFC3339))
	}
}

// failed reports whether a question failed when this was observed.
func (n *next) failed(step Action) bool {
	return slices.ContainsFunc(n.v.Faults, func(f Fault) bool { return f.Step == step })
}

// askAgain returns when to repeat a question that failed: after as many seconds as it failed times, at most lookAgain.
func (n *next) askAgain(step Action) time.Time {
	attempts := int32(1)
	if i := failureOf(n.v.Failures, string(step)); i >= 0 {
		attempts = n.v.Failures[i].GetAttempts()
	}
	return n.v.Now.Add(min(lookAgain, time.Duration(max(attempts, 1))*time.Second))
}

// tellsMore reports whether a failure is worth a write in place of the stored one of the same step.
func tellsMore(stored, f *machinev1.StepFailure) bool {
	age := f.GetLastAttemptTime().AsTime().Sub(stored.GetLastAttemptTime().AsTime())
	return !proto.Equal(stored.GetSince(), f.GetSince()) ||
		f.GetAttempts() >= 2*stored.GetAttempts() ||
		age >= storeFailureAfter ||
		f.GetMessage() != stored.GetMessage() && age >= storeErrorAfter
}
