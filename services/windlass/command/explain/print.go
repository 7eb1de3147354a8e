package explain

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

const (
	// columns is the width of a line, which most terminals have.
	columns = 120
	// keyColumns is the width of a key before its text.
	keyColumns = 12
)

// explained is the scheduler's evaluation of a pod.
type explained struct {
	*schedulingv1.ExplainPodResponse
	pod      string // namespace/name
	supposed []string
	now      time.Time
}

// printExplanation prints an evaluation: the result, then the tables of nodes.
func printExplanation(w io.Writer, r explained) error {
	line := func(key, text string) {
		fmt.Fprintf(w, "%-*s%s\n", keyColumns, key,
			strings.Join(table.Fold(text, columns-keyColumns), "\n"+strings.Repeat(" ", keyColumns)))
	}
	line("Pod:", r.pod)
	line("Scheduler:", r.GetSchedulerName())
	if len(r.supposed) > 0 {
		line("What if:", strings.Join(r.supposed, ", and "))
	}
	if r.GetComputedFrom() == "Copy" {
		line("As of:", fmt.Sprintf("revision %s, computed from a copy of the objects", r.GetResourceVersion()))
	} else if r.GetResourceVersion() != "" {
		line("As of:", fmt.Sprintf("revision %s, computed by the leader", r.GetResourceVersion()))
	}
	r.result(line)
	r.waits(line)
	if err := r.placed(w, line); err != nil || len(r.GetNodes()) == 0 {
		return err
	}
	fmt.Fprintln(w)
	if r.GetBoundTo() != "" {
		fmt.Fprintln(w, "As of now, if the pod were not bound:")
	}
	rows, further := r.verdicts()
	if err := table.NewWithin(w, columns).Print(rows...); err != nil {
		return err
	}
	if further && r.GetBest() == "" && r.GetRefused() == "" {
		fmt.Fprintln(w, "The table has all predicates that a node fails. The message counts the first one of each node, "+
			"unless the\npolicy has alwaysCheckAllPredicates.")
	}
	var fitting []*schedulingv1.ExplainPodResponse_NodeVerdict
	for _, n := range r.GetNodes() {
		if n.GetFits() {
			fitting = append(fitting, n)
		}
	}
	return printScores(w, fitting)
}

// result prints where the pod is or would be, or why it is nowhere.
func (r explained) result(line func(key, text string)) {
	switch {
	case r.GetBoundTo() != "":
		line("Bound to:", r.GetBoundTo())
		if r.GetNodeCount() > 0 {
			line("Best now:", cmp.Or(r.GetBest(), "none: "+r.GetMessage()))
		}
	case r.GetRefused() != "":
		line("Not placed:", r.GetRefused())
	case r.GetBest() != "":
		line("Best node:", r.GetBest())
	default:
		line("Pending:", r.GetMessage())
	}
	for _, x := range r.GetExtenders() {
		line("Extender:", x.GetUrl()+": "+x.GetMessage())
	}
	key := "Would help:"
	for _, c := range r.GetChanges() {
		line(key, changeText(c))
		key = ""
	}
}

// changeText says what would have to change, and for how many nodes.
func changeText(c *schedulingv1.ExplainPodResponse_Change) string {
	n := c.GetNodeCount()
	nodes := fmt.Sprintf("%d nodes would fit", n)
	switch short := strings.HasPrefix(c.GetChange(), "free "); {
	case short && n == 1:
		nodes = "1 node lacks only resources"
	case short:
		nodes = fmt.Sprintf("%d nodes lack only resources", n)
	case n == 1:
		nodes = "1 node would fit"
	}
	return fmt.Sprintf("%s (%s: %s)", c.GetChange(), nodes, examplesText(c.GetExamples(), c.GetNodeCount()))
}

// examplesText lists some of a number of nodes.
func examplesText(names []string, all int32) string {
	text := strings.Join(names, ", ")
	if int(all) > len(names) {
		text += ", …"
	}
	return text
}

// waits prints since when a pod has waited, and for what.
func (r explained) waits(line func(key, text string)) {
	p := r.GetPending()
	if p == nil {
		return
	}
	text := fmt.Sprintf("for %s; tried %d times in a row, last %s ago", table.Age(p.GetSinceTime(), r.now), p.GetTries(),
		table.Age(p.GetLastTryTime(), r.now))
	if at := p.GetNextTryTime(); at != nil {
		text += fmt.Sprintf(", again in %.1f s", max(0, at.AsTime().Sub(r.now).Seconds()))
	}
	line("Waiting:", text)
	line("Until:", p.GetWaitsFor())
	if r.GetBest() != "" {
		line("Last try:", p.GetMessage())
	}
}

// placed prints why a bound pod was placed on its node.
func (r explained) placed(w io.Writer, line func(key, text string)) error {
	p := r.GetPlacement()
	switch {
	case p == nil:
		return nil
	case p.GetUnknown() != "":
		line("Placed:", "why it was placed there is not known: "+p.GetUnknown()+". The scores below are those of now.")
		return nil
	}
	equal := "it alone had the highest total"
	if n := p.GetBestCount(); n > 1 {
		equal = fmt.Sprintf("%d had the highest total, of which it was the next in turn", n)
	}
	line("Placed:", fmt.Sprintf("%s ago; %d nodes fitted, %s", table.Age(p.GetPlaceTime(), r.now), p.GetFittingCount(),
		equal))
	fmt.Fprintln(w, "\nAs it was when the pod was placed, and a node with the next lower total:")
	scored := []*schedulingv1.ExplainPodResponse_NodeVerdict{p.GetChosen()}
	if p.GetNext() != nil {
		scored = append(scored, p.GetNext())
	}
	return printTable(w, scored)
}

// verdicts returns the rows of the nodes, and whether a node fails more than one predicate.
func (r explained) verdicts() (rows [][]string, further bool) {
	rows = [][]string{{"NODE", "FITS", "PREDICATE", "REASON"}}
	for _, n := range r.GetNodes() {
		if n.GetFits() {
			rows = append(rows, []string{n.GetNode(), "yes", "", ""})
		}
		for i, x := range n.GetFailures() {
			node, fits := n.GetNode(), "no"
			if i > 0 {
				node, fits = "", ""
			}
			further = further || x.GetPredicate() != n.GetFailures()[0].GetPredicate()
			rows = append(rows, []string{node, fits, x.GetPart(), x.GetReason()})
			if x.GetUnblock() != "" {
				rows = append(rows, []string{"", "", "", "unblocked by: " + x.GetUnblock()})
			}
		}
	}
	return rows, further
}

// printScores prints the score of each priority for each of some nodes, after an empty line.
func printScores(w io.Writer, nodes []*schedulingv1.ExplainPodResponse_NodeVerdict) error {
	if len(nodes) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return printTable(w, nodes)
}

func printTable(w io.Writer, nodes []*schedulingv1.ExplainPodResponse_NodeVerdict) error {
	rows := [][]string{{"NODE", "TOTAL", "SCORES"}}
	for _, n := range nodes {
		scores := make([]string, len(n.GetScores()))
		for i, s := range n.GetScores() {
			// One word, so that it is not folded.
			scores[i] = fmt.Sprintf("%s=%d", s.GetPriority(), s.GetScore())
			if s.GetWeight() != 1 {
				scores[i] += fmt.Sprintf("x%d", s.GetWeight())
			}
		}
		rows = append(rows, []string{n.GetNode(), strconv.Itoa(int(n.GetTotal())), strings.Join(scores, " ")})
	}
	return table.NewWithin(w, columns).Print(rows...)
}
