package explain

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	schedulingv1 "github.com/windlass-dev/windlass/gen/windlass/scheduling/v1"
	"github.com/windlass-dev/windlass/services/windlass/client"
	"github.com/windlass-dev/windlass/services/windlass/command/printer"
	"github.com/windlass-dev/windlass/services/windlass/command/session"
	"github.com/windlass-dev/windlass/services/windlass/table"
)

// explainPod prints the scheduler's evaluation of every node for a pod.
func explainPod(ctx context.Context, e *session.Env, c *client.Client, name string, f printer.Format) error {
	r, err := schedulingv1.NewPodServiceClient(c.Conn()).ExplainPod(ctx, &schedulingv1.ExplainPodRequest{
		Namespace: e.PodNamespace(), Name: name,
	})
	if err != nil {
		return err
	}
	if f.Word != printer.Table {
		return printer.Message(e.Out, f, r)
	}
	return printExplanation(e, name, r)
}

func printExplanation(e *session.Env, name string, r *schedulingv1.ExplainPodResponse) error {
	fmt.Fprintf(e.Out, "Pod:        %s/%s\nScheduler:  %s\n", e.PodNamespace(), name, r.GetSchedulerName())
	switch {
	case r.GetBoundTo() != "":
		fmt.Fprintf(e.Out, "Bound to:   %s\n", r.GetBoundTo())
	case r.GetRefused() != "":
		fmt.Fprintf(e.Out, "Not placed: %s\n", r.GetRefused())
	case r.GetBest() != "":
		fmt.Fprintf(e.Out, "Best node:  %s\n", r.GetBest())
	default:
		fmt.Fprintf(e.Out, "Pending:    %s\n", r.GetMessage())
	}
	if len(r.GetNodes()) == 0 {
		return nil
	}
	fmt.Fprintln(e.Out)
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
	if err := table.New(e.Out).Print(rows...); err != nil {
		return err
	}
	return printScores(e, r)
}

// printScores prints the score of each priority for each node that fits.
func printScores(e *session.Env, r *schedulingv1.ExplainPodResponse) error {
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
	fmt.Fprintln(e.Out)
	return table.New(e.Out).Print(rows...)
}
