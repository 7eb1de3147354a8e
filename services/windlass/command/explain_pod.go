package command

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// explainPod prints the scheduler's evaluation of every node for a pod.
func (e *env) explainPod(ctx context.Context, c *client.Client, name string, f format) error {
	r, err := schedulingv1.NewPodServiceClient(c.Conn()).ExplainPod(ctx, &schedulingv1.ExplainPodRequest{
		Namespace: e.podNamespace(), Name: name,
	})
	if err != nil {
		return err
	}
	if f.word != formatTable {
		return messageOut(e.out, f, r)
	}
	return e.printExplanation(name, r)
}

func (e *env) printExplanation(name string, r *schedulingv1.ExplainPodResponse) error {
	fmt.Fprintf(e.out, "Pod:        %s/%s\nScheduler:  %s\n", e.podNamespace(), name, r.GetSchedulerName())
	switch {
	case r.GetBoundTo() != "":
		fmt.Fprintf(e.out, "Bound to:   %s\n", r.GetBoundTo())
	case r.GetRefused() != "":
		fmt.Fprintf(e.out, "Not placed: %s\n", r.GetRefused())
	case r.GetBest() != "":
		fmt.Fprintf(e.out, "Best node:  %s\n", r.GetBest())
	default:
		fmt.Fprintf(e.out, "Pending:    %s\n", r.GetMessage())
	}
	if len(r.GetNodes()) == 0 {
		return nil
	}
	fmt.Fprintln(e.out)
	rows := [][]string{{"NODE", "FITS", "PREDICATE", "REASON", "UNBLOCKED BY"}}
	for _, n := range r.GetNodes() {
		if n.GetFits() {
			rows = append(rows, []string{n.GetNode(), "yes", "", "", ""})
		}
		for i, x := range n.GetFailures() {
			node, fits := n.GetNode(), "no"
			if i > 0 {
				node, fits = "", ""
			}
			rows = append(rows, []string{node, fits, x.GetPredicate(), x.GetReason(), x.GetUnblock()})
		}
	}
	if err := table.New(e.out).Print(rows...); err != nil {
		return err
	}
	return e.printScores(r)
}

// printScores prints the score of each priority for each node that fits.
func (e *env) printScores(r *schedulingv1.ExplainPodResponse) error {
	var rows [][]string
	for _, n := range r.GetNodes() {
		if !n.GetFits() {
			continue
		}
		if rows == nil {
			head := []string{"NODE"}
			for _, s := range n.GetScores() {
				head = append(head, fmt.Sprintf("%s x%d", strings.ToUpper(s.GetPriority()), s.GetWeight()))
			}
			rows = append(rows, append(head, "TOTAL"))
		}
		row := []string{n.GetNode()}
		for _, s := range n.GetScores() {
			row = append(row, strconv.Itoa(int(s.GetScore())))
		}
		rows = append(rows, append(row, strconv.Itoa(int(n.GetTotal()))))
	}
	if rows == nil {
		return nil
	}
	fmt.Fprintln(e.out)
	return table.New(e.out).Print(rows...)
}
