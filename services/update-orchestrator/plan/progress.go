package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "github.com/windlass-dev/windlass/gen/windlass/meta/v1"
)

// How long an operator may take.
const (
	degradedFor    = 40 * time.Minute // then a degraded operator is a failure
	updatingFor    = 30 * time.Minute // then an operator is called slow
	updatingNodes  = 90 * time.Minute // the same for machine-config, which restarts nodes
	multipleErrors = "MultipleErrors"
)

// NodeOperator is the cluster operator of the nodes' configuration.
const NodeOperator = "machine-config"

// Failure is a manifest that could not be applied.
type Failure struct {
	Reason  string // such as UpdatePayloadFailed; equal reasons are said together
	Name    string // of what failed
	Message string
}

// Run is how an application of a release goes.
type Run struct {
	Version     string
	Mode        Mode
	Done, Total int       // manifests
	Completed   bool      // everything was applied
	Gates       []Gate    // of cluster operators that are not ready
	Failures    []Failure // of manifests
	Invalid     bool      // the desired update is invalid
	Paused      string    // what holds the update back; empty if nothing does
}

// Conditions is what is said of a run: Available, Progressing and Failing, without times. before is what was said last.
func Conditions(r Run, before []*metav1.Condition, now time.Time) []*metav1.Condition {
	failing, why := r.failing(now)
	return []*metav1.Condition{r.available(before), r.progressing(failing, why), failing}
}

func (r Run) available(before []*metav1.Condition) *metav1.Condition {
	last := Find(before, Available)
	switch {
	case r.Completed:
		return condition(Available, True, "", "Done applying "+r.Version)
	case last.GetStatus() == True:
		return condition(Available, True, last.GetReason(), last.GetMessage())
	}
	return condition(Available, False, "", "")
}

// failing returns the condition Failing, and in short what the run is held up by.
func (r Run) failing(now time.Time) (c *metav1.Condition, why string) {
	var failures []Failure
	var overdue, degraded, slow, waiting []string
	for _, g := range r.Gates {
		since := now
		if g.Wait != nil {
			since = g.Wait.GetSince().AsTime()
		}
		late := now.Sub(since)
		switch {
		case g.Effect == Fail:
			failures = append(failures, Failure{g.Reason, g.Operator, g.Message})
		case g.Effect == FailAfterInterval && late > degradedFor:
			overdue = append(overdue, g.Operator)
		case g.Effect == FailAfterInterval:
			degraded = append(degraded, g.Operator)
		case g.Effect == Wait && late > patience(g.Operator):
			slow = append(slow, g.Operator)
		case g.Effect == Wait:
			waiting = append(waiting, g.Operator)
		}
	}
	if len(overdue) > 0 {
		failures = append(failures, Failure{
			operatorDegraded, listed(overdue),
			fmt.Sprintf("wait has exceeded %d minutes for these operators: %s", int(degradedFor.Minutes()), listed(overdue)),
		})
	}
	if failures = append(failures, r.Failures...); len(failures) > 0 {
		reason, message := condense(failures)
		return condition(Failing, True, reason, message), message
	}
	if len(slow) > 0 {
		least := patience(slow[0])
		for _, operator := range slow {
			least = min(least, patience(operator))
		}
		why = fmt.Sprintf("waiting on %s over %d minutes which is longer than expected", listed(slow), int(least.Minutes()))
		return condition(Failing, Unknown, operatorSlow, why), why
	}
	var waits []string
	if len(degraded) > 0 {
		waits = append(waits, fmt.Sprintf("waiting up to %d minutes on %s", int(degradedFor.Minutes()), listed(degraded)))
	}
	if len(waiting) > 0 {
		waits = append(waits, "waiting on "+listed(waiting))
	}
	return condition(Failing, False, "", ""), strings.Join(waits, ", ")
}

func patience(operator string) time.Duration {
	if operator == NodeOperator {
		return updatingNodes
	}
	return updatingFor
}

// listed returns names in order, each once.
func listed(names []string) string {
	names = slices.Sorted(slices.Values(names))
	return strings.Join(slices.Compact(names), ", ")
}

// condense makes one reason and message of all failures.
func condense(failures []Failure) (reason, message string) {
	byReason := map[string][]Failure{}
	for _, f := range failures {
		byReason[f.Reason] = append(byReason[f.Reason], f)
	}
	var reasons, messages []string
	for reason, list := range byReason {
		if plural, text := together(reason, list); plural != "" {
			reasons, messages = append(reasons, plural), append(messages, text)
			continue
		}
		for _, f := range list {
			reasons, messages = append(reasons, f.Reason), append(messages, f.Message)
		}
	}
	messages = slices.Compact(slices.Sorted(slices.Values(messages)))
	reasons = slices.Compact(slices.Sorted(slices.Values(reasons)))
	switch {
	case len(messages) > 1:
		return multipleErrors, "Multiple errors are preventing progress:\n* " + strings.Join(messages, "\n* ")
	case len(reasons) > 1:
		return multipleErrors, messages[0]
	}
	return reasons[0], messages[0]
}

// together says in one sentence what is wrong with several operators. The reason is empty if it cannot.
func together(reason string, list []Failure) (plural, text string) {
	what, ok := map[string]string{
		operatorNotAvailable: "not available", operatorDegraded: "degraded",
		operatorNoVersions: "of unknown version",
	}[reason]
	if !ok || len(list) < 2 {
		return "", ""
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	return "ClusterOperators" + strings.TrimPrefix(reason, "ClusterOperator"), fmt.Sprintf("Cluster operators %s are %s",
		listed(names), what)
}

func (r Run) progressing(failing *metav1.Condition, why string) *metav1.Condition {
	failed := failing.GetStatus() == True
	reason := failing.GetReason()
	if r.Mode == Reconciling || r.Completed {
		switch {
		case failed:
			return condition(Progressing, False, reason, fmt.Sprintf("Error while reconciling %s: %s", r.Version, lower(why)))
		case r.Invalid:
			return condition(Progressing, False, "InvalidClusterVersion",
				fmt.Sprintf("Stopped at %s: the cluster version is invalid", r.Version))
		}
		return condition(Progressing, False, "", "Cluster version is "+r.Version)
	}
	switch {
	case failed:
		text := fmt.Sprintf("Unable to apply %s: %s", r.Version, lower(why))
		if r.Paused != "" {
			text += "; " + r.Paused
		}
		return condition(Progressing, True, reason, text)
	case r.Invalid:
		return condition(Progressing, True, "InvalidClusterVersion",
			fmt.Sprintf("Reconciling %s: the cluster version is invalid", r.Version))
	case r.Paused != "":
		return condition(Progressing, True, UpdatesPaused,
			fmt.Sprintf("Working towards %s: %d of %d done (%d%% complete), %s",
				r.Version, r.Done, r.Total, r.Done*100/max(r.Total, 1), r.Paused))
	case r.Total > 0:
		text := fmt.Sprintf("Working towards %s: %d of %d done (%d%% complete)", r.Version, r.Done, r.Total,
			r.Done*100/r.Total)
		if why != "" {
			text += ", " + why
		}
		return condition(Progressing, True, cmp.Or(reason, r.waitReason()), text)
	case why != "":
		return condition(Progressing, True, cmp.Or(reason, r.waitReason()), fmt.Sprintf("Working towards %s: %s", r.Version,
			why))
	}
	return condition(Progressing, True, "", "Working towards "+r.Version)
}

// waitReason is the reason of what a run waits for: that of the gates if they agree.
func (r Run) waitReason() string {
	reason := ""
	for _, g := range r.Gates {
		if !g.Blocks() {
			continue
		}
		if reason != "" && reason != g.Reason {
			return multipleReasons
		}
		reason = g.Reason
	}
	return reason
}

// lower begins a sentence of ours as a part of another.
func lower(s string) string {
	for _, start := range []string{"Cluster ", "Multiple "} {
		if strings.HasPrefix(s, start) {
			return strings.ToLower(s[:1]) + s[1:]
		}
	}
	return s
}
